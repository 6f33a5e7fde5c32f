// Hyperbolic functions and their inverses to a few ULP over the whole range.
// Calls lib/float.wgsl, lib/exp.wgsl and lib/log.wgsl.
fn tanh_f32(x: f32) -> f32 {
    let z = x * x;
    let near = x + x * z * (-0.333332816 + z * (0.133314247 + z * (-0.0537376064
        + z * (0.0206303916 - z * 0.00569349922))));
    let far = 1.0 - 2.0 / (exp_f32(2.0 * min(abs(x), 10.0)) + 1.0);
    return select(with_sign(select(far, near, abs(x) < 0.625), x), x, is_nan(x));
}

fn sinh_f32(x: f32) -> f32 {
    let z = x * x;
    let near = x + x * z * (0.166666665 + z * (0.00833335166 + z * (0.000198358544 + z * 2.8186873e-6)));
    let half = exp_f32(0.5 * abs(x));
    let far = with_sign(0.5 * half * half - 0.5 / half / half, x);
    return select(select(far, near, abs(x) < 1.0), x, is_nan(x));
}

fn cosh_f32(x: f32) -> f32 {
    let half = exp_f32(0.5 * abs(x));
    return 0.5 * half * half + 0.5 / half / half;
}

fn asinh_f32(x: f32) -> f32 {
    let a = abs(x);
    if (a > 1.0e9) {
        return with_sign(log_f32(a) + 0.693147181, x);
    }
    return select(with_sign(log1p_f32(a + a * a / (1.0 + sqrt(1.0 + a * a))), x), x, is_nan(x));
}

fn acosh_f32(x: f32) -> f32 {
    if (x > 1.0e9) {
        return log_f32(x) + 0.693147181;
    }
    if (x < 1.0 || is_nan(x)) {
        return nan_f32();
    }
    let t = x - 1.0;
    return log1p_f32(t + sqrt(2.0 * t + t * t));
}

fn atanh_f32(x: f32) -> f32 {
    let a = abs(x);
    if (a > 1.0 || is_nan(x)) {
        return nan_f32();
    }
    return with_sign(0.5 * log1p_f32(2.0 * a / (1.0 - a)), x);
}
