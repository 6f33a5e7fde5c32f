// Tests and constants of f32 that drivers may not optimise away: NaN, infinity, signs.
// Comparisons with NaN and the built-in max, min, sign are unreliable; bits are not.
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

fn nan_f32() -> f32 {
    var bits = 0x7fc00000u;
    return bitcast<f32>(bits);
}

fn infinity_f32() -> f32 {
    var bits = 0x7f800000u;
    return bitcast<f32>(bits);
}

// Not with masks of bits: LLVM 15 merges them with a select behind them, wrongly for AVX-512.
fn with_sign(size: f32, sign_of: f32) -> f32 {
    return select(abs(size), -abs(size), bitcast<i32>(sign_of) < 0);
}

// Mesa takes the square of a plain sqrt(x) for abs(x).
fn sqrt_f32(x: f32) -> f32 {
    return select(sqrt(x), nan_f32(), x < 0.0);
}

// x * 2^n for n in [-252, 254], in two steps so that neither factor overflows.
fn scale_f32(x: f32, n: i32) -> f32 {
    let half = n >> 1u;
    return x * bitcast<f32>((half + 127) << 23u) * bitcast<f32>((n - half + 127) << 23u);
}

// The larger of two numbers, NaN if any is NaN.
fn max_f32(a: f32, b: f32) -> f32 {
    return select(select(max(a, b), b, is_nan(b)), a, is_nan(a));
}

// The smaller of two numbers, NaN if any is NaN.
fn min_f32(a: f32, b: f32) -> f32 {
    return select(select(min(a, b), b, is_nan(b)), a, is_nan(a));
}
