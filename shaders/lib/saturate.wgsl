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
