// int2 kept in i32, or four in a word, a byte for each: wraps on the way in.
fn narrow_i2(v: i32) -> i32 {
    return (v << 30u) >> 30u;
}

fn narrow4_i2(v: vec4<i32>) -> vec4<i32> {
    return (v << vec4<u32>(30u)) >> vec4<u32>(30u);
}

fn unpack_i2(word: u32, lane: u32) -> i32 {
    return narrow_i2(bitcast<i32>(word >> (8u * lane)));
}

fn unpack4_i2(word: u32) -> vec4<i32> {
    return narrow4_i2(bitcast<vec4<i32>>(vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)));
}

fn pack4_i2(v: vec4<i32>) -> u32 {
    let bytes = (bitcast<vec4<u32>>(v) & vec4<u32>(0x3u)) << vec4<u32>(0u, 8u, 16u, 24u);
    return bytes.x | bytes.y | bytes.z | bytes.w;
}
