// Mean, and one over the standard deviation, over any axes; one group of elements a workgroup.
// spec: ONNX MeanVarianceNormalization-13, first half
// x: [...] f32
// moments: [size, 2] f32
// text: MAPS with `kept` (group to its first element) and `along` (index in a group to an offset)
// dispatch: one workgroup computes the moments of one group
struct Params {
    size: u32,
    count: u32,
    epsilon: f32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read_write> moments: array<T>;
@group(0) @binding(2) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
var<workgroup> shared_values: array<f32, WORKGROUP_SIZE>;
//# include lib/tree.wgsl
${MAPS}
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group.x + group.y * groups.x;
    if (index >= params.size) {
        return;
    }
    let first = kept(index);
    var sum = 0.0;
    for (var r = lane; r < params.count; r += WORKGROUP_SIZE) {
        sum += load_x(first + along(r));
    }
    let middle = tree_sum(lane, sum) / f32(params.count);
    var square = 0.0;
    for (var r = lane; r < params.count; r += WORKGROUP_SIZE) {
        let d = load_x(first + along(r)) - middle;
        square += d * d;
    }
    let deviation = sqrt(tree_sum(lane, square) / f32(params.count));
    if (lane == 0u) {
        store_moments(index * 2u, middle);
        store_moments(index * 2u + 1u, 1.0 / (deviation + params.epsilon));
    }
}
