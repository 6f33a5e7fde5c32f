// Rows along one axis over their 1-norm or 2-norm, 0 where that is 0; one row an invocation.
// spec: ONNX LpNormalization-22
// input: [rows / stride, count, stride] f32
// output: [rows / stride, count, stride] f32
// flags: ONE (the 1-norm)
// dispatch: one workgroup computes WORKGROUP_SIZE rows
//# include lib/row_tensors.wgsl
//# include lib/index.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let row = flat_index(id, groups);
    if (row >= params.rows) {
        return;
    }
    let first = row / params.stride * params.stride * params.count + row % params.stride;
    let end = first + params.count * params.stride;
    var size = 0.0;
    for (var i = first; i < end; i += params.stride) {
        let v = load_input(i);
//# if ONE
        size += abs(v);
//# else
        size += v * v;
//# endif
    }
//# if not ONE
    size = sqrt(size);
//# endif
    for (var i = first; i < end; i += params.stride) {
        store_output(i, select(load_input(i) / select(size, 1.0, size == 0.0), 0.0, size == 0.0));
    }
}
