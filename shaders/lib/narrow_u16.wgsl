// uint16 kept in u32, or two in a word: wraps on the way in.
fn narrow_u16(v: u32) -> u32 {
    return v & 0xffffu;
}

fn narrow4_u16(v: vec4<u32>) -> vec4<u32> {
    return v & vec4<u32>(0xffffu);
}

fn unpack_u16(word: u32, lane: u32) -> u32 {
    return narrow_u16(word >> (16u * lane));
}

fn unpack4_u16(words: vec2<u32>) -> vec4<u32> {
    return narrow4_u16(words.xxyy >> vec4<u32>(0u, 16u, 0u, 16u));
}

fn pack4_u16(v: vec4<u32>) -> vec2<u32> {
    let halves = v & vec4<u32>(0xffffu);
    return halves.xz | (halves.yw << vec2<u32>(16u));
}
