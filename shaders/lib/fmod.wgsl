// The exact remainder of floats, truncated (sign of x) or floored (sign of y).
// Calls lib/float.wgsl. At most 32 loop trips.
fn fmod_f32(x: f32, y: f32) -> f32 {
    let a = bitcast<u32>(x) & 0x7fffffffu;
    let b = bitcast<u32>(y) & 0x7fffffffu;
    if (a >= 0x7f800000u || b > 0x7f800000u || b == 0u) {
        return nan_f32();
    }
    if (a < b) {
        return x;
    }
    let a_exponent = max(a >> 23u, 1u);
    let b_exponent = max(b >> 23u, 1u);
    let divisor = (b & 0x007fffffu) | select(0u, 0x00800000u, b >= 0x00800000u);
    var rest = ((a & 0x007fffffu) | select(0u, 0x00800000u, a >= 0x00800000u)) % divisor;
    var left = a_exponent - b_exponent;
    while (left > 0u) {
        let step = min(left, 8u);
        rest = (rest << step) % divisor;
        left -= step;
    }
    return with_sign(scale_f32(f32(rest), i32(b_exponent) - 150), x);
}

fn floormod_f32(x: f32, y: f32) -> f32 {
    let rest = fmod_f32(x, y);
    let opposite = ((bitcast<u32>(rest) ^ bitcast<u32>(y)) & 0x80000000u) != 0u;
    if (is_nan(rest)) {
        return rest;
    }
    if ((bitcast<u32>(rest) & 0x7fffffffu) == 0u) {
        return with_sign(rest, y);
    }
    return select(rest, rest + y, opposite);
}
