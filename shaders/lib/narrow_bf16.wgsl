// bfloat16 kept in f32, or two in a word: the upper half of an f32, rounded half to even.
fn narrow_bf16(v: f32) -> f32 {
    let bits = bitcast<u32>(v);
    let rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) & 0xffff0000u;
    let quiet = (bits & 0x80000000u) | 0x7fc00000u;
    return bitcast<f32>(select(rounded, quiet, (bits & 0x7fffffffu) > 0x7f800000u));
}

fn narrow4_bf16(v: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(narrow_bf16(v.x), narrow_bf16(v.y), narrow_bf16(v.z), narrow_bf16(v.w));
}

fn unpack_bf16(word: u32, lane: u32) -> f32 {
    return bitcast<f32>((word >> (16u * lane)) << 16u);
}

fn unpack4_bf16(words: vec2<u32>) -> vec4<f32> {
    let low = bitcast<vec2<f32>>(words << vec2<u32>(16u));
    let high = bitcast<vec2<f32>>(words & vec2<u32>(0xffff0000u));
    return vec4<f32>(low.x, high.x, low.y, high.y);
}

fn pack4_bf16(v: vec4<f32>) -> vec2<u32> {
    let bits = bitcast<vec4<u32>>(narrow4_bf16(v));
    return (bits.xz >> vec2<u32>(16u)) | bits.yw;
}
