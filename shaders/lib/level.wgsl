// The integer level of a float: rounded half to even, shifted, kept within bounds; 0 for NaN.
//# include lib/float.wgsl
fn level(x: f32, zero: f32, low: f32, high: f32) -> f32 {
    let shifted = round(x) + zero;
    return select(clamp(shifted, low, high), 0.0, is_nan(shifted));
}
