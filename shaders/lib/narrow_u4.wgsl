// uint4 kept in u32, or four in a word, a byte for each: wraps on the way in.
fn narrow_u4(v: u32) -> u32 {
    return v & 0xfu;
}

fn narrow4_u4(v: vec4<u32>) -> vec4<u32> {
    return v & vec4<u32>(0xfu);
}

fn unpack_u4(word: u32, lane: u32) -> u32 {
    return narrow_u4(word >> (8u * lane));
}

fn unpack4_u4(word: u32) -> vec4<u32> {
    return narrow4_u4(vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u));
}

fn pack4_u4(v: vec4<u32>) -> u32 {
    let bytes = (v & vec4<u32>(0xfu)) << vec4<u32>(0u, 8u, 16u, 24u);
    return bytes.x | bytes.y | bytes.z | bytes.w;
}
