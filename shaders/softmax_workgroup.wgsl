// Softmax or its logarithm along one axis, LANES invocations of a workgroup a row.
// spec: ONNX Softmax-13, LogSoftmax-13
// input: [rows / stride, count, stride] f32
// output: [rows / stride, count, stride] f32
// flags: LOG (logarithm), VEC4 (stride is 1 and 4 divides count)
// overrides: LANES, a power of two that divides WORKGROUP_SIZE
// dispatch: one workgroup computes WORKGROUP_SIZE / LANES rows
//# include lib/row_tensors.wgsl
override LANES: u32 = 64u;
var<workgroup> shared_values: array<f32, WORKGROUP_SIZE>;
//# include lib/float.wgsl
//# include lib/exp.wgsl
//# include lib/log.wgsl
//# include lib/softmax.wgsl
//# include lib/tree.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    // the last workgroup may have rows too many: they are empty, as all must reach the barriers
    let row = (group.x + group.y * groups.x) * (WORKGROUP_SIZE / LANES) + local / LANES;
    let lane = local % LANES;
    let count = select(0u, params.count, row < params.rows);
    // NaN that a maximum drops comes back in the sum
    var top = -infinity_f32();
    var sum = 0.0;
//# if VEC4
    let first = row * params.count + lane * 4u;
    let end = row * params.count + count;
    for (var i = first; i < end; i += LANES * 4u) {
        let v = load4_input(i);
        top = max(top, max(max(v.x, v.y), max(v.z, v.w)));
    }
    top = tree_max_of(LANES, local, top);
    for (var i = first; i < end; i += LANES * 4u) {
        let e = exp_each(load4_input(i) - top);
        sum += (e.x + e.y) + (e.z + e.w);
    }
    let scale = scale_of(tree_sum_of(LANES, local, sum));
    for (var i = first; i < end; i += LANES * 4u) {
        store4_output(i, scaled4(load4_input(i) - top, scale));
    }
//# else
    let start = row / params.stride * params.stride * params.count + row % params.stride;
    let first = start + lane * params.stride;
    let end = start + count * params.stride;
    for (var i = first; i < end; i += LANES * params.stride) {
        top = max(top, load_input(i));
    }
    top = tree_max_of(LANES, local, top);
    for (var i = first; i < end; i += LANES * params.stride) {
        sum += exp_f32(load_input(i) - top);
    }
    let scale = scale_of(tree_sum_of(LANES, local, sum));
    for (var i = first; i < end; i += LANES * params.stride) {
        store_output(i, scaled(load_input(i) - top, scale));
    }
//# endif
}
