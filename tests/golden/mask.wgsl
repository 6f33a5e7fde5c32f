fn chain(i: u32) {
    let x0_in0 = load4_in0(i);
    let x1_in1 = load4_in1(i);
    // Greater
    let v0 = x0_in0 > x1_in1;
    // Where
    let v1 = select(x1_in1, x0_in0, v0);
    // Cast
    let v2 = vec4<f32>(f32(v1.x), f32(v1.y), f32(v1.z), f32(v1.w));
    store4_out0(i, v0);
    store4_out1(i, v2);
}
