// exp and expm1 to about 1 ULP; WGSL allows the built-in an error that grows with |x|.
// Calls lib/float.wgsl.

// (exp(r) - 1 - r) / r^2 for |r| <= log(2) / 2
fn exp_tail(r: f32) -> f32 {
    return 0.50000001 + r * (0.166665129 + r * (0.0416661873 + r * (0.00836959866 + r * 0.00139517147)));
}

fn exp_f32(x: f32) -> f32 {
    let limited = clamp(x, -104.0, 89.0);
    let n = round(limited * 1.44269504);
    let r = (limited - n * 0.693359375) + n * 2.12194440e-4;
    let value = scale_f32(1.0 + (r + r * r * exp_tail(r)), i32(n));
    return select(value, x, is_nan(x));
}

fn expm1_f32(x: f32) -> f32 {
    return select(exp_f32(x) - 1.0, x + x * x * exp_tail(x), abs(x) < 0.35);
}
