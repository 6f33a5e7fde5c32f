// Softmax or its logarithm along one axis, one row an invocation.
// spec: ONNX Softmax-13, LogSoftmax-13
// input: [rows / stride, count, stride] f32
// output: [rows / stride, count, stride] f32
// flags: LOG (logarithm), VEC4 (stride is 1 and 4 divides count)
// dispatch: one workgroup computes WORKGROUP_SIZE rows
//# include lib/row_tensors.wgsl
//# include lib/index.wgsl
//# include lib/float.wgsl
//# include lib/exp.wgsl
//# include lib/log.wgsl
//# include lib/softmax.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let row = flat_index(id, groups);
    if (row >= params.rows) {
        return;
    }
    // NaN that a maximum drops comes back in the sum
    var top = -infinity_f32();
    var sum = 0.0;
//# if VEC4
    let first = row * params.count;
    let end = first + params.count;
    for (var i = first; i < end; i += 4u) {
        let v = load4_input(i);
        top = max(top, max(max(v.x, v.y), max(v.z, v.w)));
    }
    for (var i = first; i < end; i += 4u) {
        let e = exp_each(load4_input(i) - top);
        sum += (e.x + e.y) + (e.z + e.w);
    }
    let scale = scale_of(sum);
    for (var i = first; i < end; i += 4u) {
        store4_output(i, scaled4(load4_input(i) - top, scale));
    }
//# else
    let first = row / params.stride * params.stride * params.count + row % params.stride;
    let end = first + params.count * params.stride;
    for (var i = first; i < end; i += params.stride) {
        top = max(top, load_input(i));
    }
    for (var i = first; i < end; i += params.stride) {
        sum += exp_f32(load_input(i) - top);
    }
    let scale = scale_of(sum);
    for (var i = first; i < end; i += params.stride) {
        store_output(i, scaled(load_input(i) - top, scale));
    }
//# endif
}
