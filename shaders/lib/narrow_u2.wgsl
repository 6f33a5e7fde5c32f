// uint2 kept in u32, or four in a word, a byte for each: wraps on the way in.
fn narrow_u2(v: u32) -> u32 {
    return v & 0x3u;
}

fn narrow4_u2(v: vec4<u32>) -> vec4<u32> {
    return v & vec4<u32>(0x3u);
}

fn unpack_u2(word: u32, lane: u32) -> u32 {
    return narrow_u2(word >> (8u * lane));
}

fn unpack4_u2(word: u32) -> vec4<u32> {
    return narrow4_u2(vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u));
}

fn pack4_u2(v: vec4<u32>) -> u32 {
    let bytes = (v & vec4<u32>(0x3u)) << vec4<u32>(0u, 8u, 16u, 24u);
    return bytes.x | bytes.y | bytes.z | bytes.w;
}
