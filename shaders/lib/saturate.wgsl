// Float to integer: truncated, the nearest end of the range beyond it, 0 for NaN.
// Calls lib/float.wgsl.
fn saturate_i32(x: f32) -> i32 {
    let inside = i32(clamp(x, -2147483648.0, 2147483520.0));
    return select(select(inside, 2147483647, x >= 2147483648.0), 0, is_nan(x));
}

fn saturate_u32(x: f32) -> u32 {
    let inside = u32(clamp(x, 0.0, 4294967040.0));
    return select(select(inside, 4294967295u, x >= 4294967296.0), 0u, is_nan(x));
}

// The low bits of the float as an integer of 64 bits, at least 16 of them.
fn wrapped_i32(x: f32) -> i32 {
    let whole = trunc(x);
    let low = i32(whole - floor(whole / 65536.0) * 65536.0);
    let wrapped = select(low, i32(clamp(whole, -2147483648.0, 2147483520.0)), abs(x) < 2147483648.0);
    let inside = select(wrapped, select(0, -1, x > 0.0), abs(x) >= 9223372036854775808.0);
    return select(inside, 0, is_nan(x));
}
