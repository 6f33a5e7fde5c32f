// Hardmax along one axis, one row an invocation: 1 at the first largest element (NaN is largest).
// spec: ONNX Hardmax-13
// input: [rows / stride, count, stride] f32
// output: [rows / stride, count, stride] f32
// dispatch: one workgroup computes WORKGROUP_SIZE rows
//# include lib/row_tensors.wgsl
//# include lib/index.wgsl
//# include lib/float.wgsl

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
    var place = first;
    var top = load_input(first);
    for (var i = first; i < end; i += params.stride) {
        let v = load_input(i);
        if (!is_nan(top) && (v > top || is_nan(v))) {
            place = i;
            top = v;
        }
    }
    for (var i = first; i < end; i += params.stride) {
        store_output(i, select(0.0, 1.0, i == place));
    }
}
