// What softmax kernels do with one element, given the sum of exponentials of its row.
// Calls lib/float.wgsl, lib/exp.wgsl and lib/log.wgsl.
fn exp_each(v: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(exp_f32(v.x), exp_f32(v.y), exp_f32(v.z), exp_f32(v.w));
}

//# if LOG
fn scale_of(sum: f32) -> f32 {
    return log_f32(sum);
}

fn scaled(v: f32, scale: f32) -> f32 {
    return v - scale;
}

fn scaled4(v: vec4<f32>, scale: f32) -> vec4<f32> {
    return v - scale;
}
//# else
fn scale_of(sum: f32) -> f32 {
    return 1.0 / sum;
}

fn scaled(v: f32, scale: f32) -> f32 {
    return exp_f32(v) * scale;
}

fn scaled4(v: vec4<f32>, scale: f32) -> vec4<f32> {
    return exp_each(v) * scale;
}
//# endif
