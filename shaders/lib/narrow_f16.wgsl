// float16 kept in f32, or two in a word: rounded half to even, infinite from 65520 on.
// Rounded by its bits, because conversions in hardware may round towards zero.
fn narrow_f16(v: f32) -> f32 {
    let size = bitcast<u32>(v) & 0x7fffffffu;
    // a carry out of the ten bits of mantissa goes into the exponent
    let rounded = (size + 0xfffu + ((size >> 13u) & 1u)) & 0xffffe000u;
    let normal = select(rounded, 0x7f800000u, size >= 0x477ff000u);
    // below 2^-14 lie the multiples of 2^-24
    let small = bitcast<u32>(round(bitcast<f32>(size) * 16777216.0) * 0.000000059604644775390625);
    let finite = select(normal, small, size < 0x38800000u);
    let bits = select(finite, 0x7fc00000u, size > 0x7f800000u);
    return bitcast<f32>(bits | (bitcast<u32>(v) & 0x80000000u));
}

fn narrow4_f16(v: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(narrow_f16(v.x), narrow_f16(v.y), narrow_f16(v.z), narrow_f16(v.w));
}

fn unpack_f16(word: u32, lane: u32) -> f32 {
    return unpack2x16float(word >> (16u * lane)).x;
}

fn unpack4_f16(words: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

fn pack4_f16(v: vec4<f32>) -> vec2<u32> {
    let rounded = narrow4_f16(v);
    return vec2<u32>(pack2x16float(rounded.xy), pack2x16float(rounded.zw));
}
