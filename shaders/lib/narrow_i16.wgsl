// int16 kept in i32, or two in a word: wraps on the way in.
fn narrow_i16(v: i32) -> i32 {
    return (v << 16u) >> 16u;
}

fn narrow4_i16(v: vec4<i32>) -> vec4<i32> {
    return (v << vec4<u32>(16u)) >> vec4<u32>(16u);
}

fn unpack_i16(word: u32, lane: u32) -> i32 {
    return narrow_i16(bitcast<i32>(word >> (16u * lane)));
}

fn unpack4_i16(words: vec2<u32>) -> vec4<i32> {
    return narrow4_i16(bitcast<vec4<i32>>(words.xxyy >> vec4<u32>(0u, 16u, 0u, 16u)));
}

fn pack4_i16(v: vec4<i32>) -> vec2<u32> {
    let halves = bitcast<vec4<u32>>(v) & vec4<u32>(0xffffu);
    return halves.xz | (halves.yw << vec2<u32>(16u));
}
