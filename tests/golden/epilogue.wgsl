fn at_x0_in0(i: u32) -> u32 {
    let rest = i;
    let c1 = rest % params.at_x0_in0_size1;
    return c1;
}

fn store_y(i: u32, start: f32) {
    let x0_in0 = load_in0(at_x0_in0(i));
    let x1_in1 = load_in1(i);
    // Add
    let v0 = start + x0_in0;
    // Relu
    let v1 = select(f32(0), v0, bitcast<i32>(v0) > i32(-8388608));
    // Add
    let v2 = v1 + x1_in1;
    store_out0(i, v2);
}

fn store4_y(i: u32, start: vec4<f32>) {
    let x0_in0 = load4_in0(at_x0_in0(i));
    let x1_in1 = load4_in1(i);
    // Add
    let v0 = start + x0_in0;
    // Relu
    let v1 = select(vec4<f32>(0), v0, bitcast<vec4<i32>>(v0) > vec4<i32>(-8388608));
    // Add
    let v2 = v1 + x1_in1;
    store4_out0(i, v2);
}
