fn at_x1_in1(i: u32) -> u32 {
    let rest = i;
    let c1 = rest % params.at_x1_in1_size1;
    return c1;
}

fn at_x2_in2(i: u32) -> u32 {
    var rest = i;
    rest = rest / params.at_x2_in2_size2;
    let c1 = rest % params.at_x2_in2_size1;
    return c1;
}

fn chain(i: u32) {
    let x0_in0 = load4_in0(i);
    let x1_in1 = load4_in1(at_x1_in1(i));
    let x2_in2 = vec4<f32>(load_in2(at_x2_in2(i)));
    // Add
    let v0 = x0_in0 + x1_in1;
    // Mul
    let v1 = v0 * x2_in2;
    // Sigmoid
    let v2 = vec4<f32>(1.0 / (1.0 + exp_f32(-v1.x)), 1.0 / (1.0 + exp_f32(-v1.y)), 1.0 / (1.0 + exp_f32(-v1.z)), 1.0 / (1.0 + exp_f32(-v1.w)));
    // Sub
    let v3_0 = bitcast<vec4<f32>>(bitcast<vec4<u32>>(v2) ^ vec4<u32>(bitcast<u32>(params.n3_zero)));
    let v3 = v3_0 - v0;
    store4_out0(i, v2);
    store4_out1(i, v3);
}
