// log and log1p to about 1 ULP, also near 1 and for denormals.
// Calls lib/float.wgsl.

// log(1 + f) for 1 + f in [sqrt(1/2), sqrt(2)]
fn log_near_one(f: f32) -> f32 {
    let s = f / (2.0 + f);
    let z = s * s;
    let rest = 2.0 * z * (0.333333328 + z * (0.200001728 + z * (0.142683013 + z * 0.117981689)));
    return f - s * (f - rest);
}

fn log_f32(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    if ((bits & 0x7fffffffu) == 0u) {
        return -infinity_f32();
    }
    if (bits > 0x7f800000u) {
        return nan_f32();
    }
    if (bits == 0x7f800000u) {
        return x;
    }
    let denormal = bits < 0x00800000u;
    // the bits of a denormal count units of 2^-149
    let shifted = select(bits, bitcast<u32>(f32(bits)), denormal) - 0x3f3504f3u;
    let e = f32((bitcast<i32>(shifted) >> 23u) - select(0, 149, denormal));
    let f = bitcast<f32>((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0;
    return e * 0.693359375 + (log_near_one(f) - e * 2.12194440e-4);
}

fn log1p_f32(x: f32) -> f32 {
    if (x > -0.2928 && x < 0.4142) {
        return log_near_one(x);
    }
    return log_f32(1.0 + x);
}
