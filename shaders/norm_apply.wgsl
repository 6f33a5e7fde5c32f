// Standardize elements with the moments of their group.
// spec: ONNX MeanVarianceNormalization-13, second half
// x: [...] f32
// moments: [groups, 2] f32, mean and one over the standard deviation
// y: [...] f32
// text: MAPS with `group_of` (element to twice its group)
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> moments: array<T>;
@group(0) @binding(2) var<storage, read_write> y: array<T>;
@group(0) @binding(3) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
${MAPS}
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
    let place = group_of(i);
    store_y(i, (load_x(i) - load_moments(place)) * load_moments(place + 1u));
}
