// int8 kept in i32, or four in a word: wraps on the way in.
fn narrow_i8(v: i32) -> i32 {
    return (v << 24u) >> 24u;
}

fn narrow4_i8(v: vec4<i32>) -> vec4<i32> {
    return (v << vec4<u32>(24u)) >> vec4<u32>(24u);
}

fn unpack_i8(word: u32, lane: u32) -> i32 {
    return narrow_i8(bitcast<i32>(word >> (8u * lane)));
}

fn unpack4_i8(word: u32) -> vec4<i32> {
    return narrow4_i8(bitcast<vec4<i32>>(vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)));
}

fn pack4_i8(v: vec4<i32>) -> u32 {
    let bytes = (bitcast<vec4<u32>>(v) & vec4<u32>(0xffu)) << vec4<u32>(0u, 8u, 16u, 24u);
    return bytes.x | bytes.y | bytes.z | bytes.w;
}
