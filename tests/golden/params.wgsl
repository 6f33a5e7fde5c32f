fn chain(i: u32) {
    let x0_in0 = load4_in0(i);
    let c1 = vec4<f32>(params.c1);
    // LeakyRelu
    let v0 = select(x0_in0, x0_in0 * params.n0_alpha, x0_in0 < vec4<f32>(0));
    // Mul
    let v1 = v0 * c1;
    // LeakyRelu
    let v2 = select(v1, v1 * params.n2_alpha, v1 < vec4<f32>(0));
    store4_out0(i, v2);
}
