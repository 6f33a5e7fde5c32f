// The error function to about 1 ULP.
// Calls lib/float.wgsl and lib/exp.wgsl.
fn erf_f32(x: f32) -> f32 {
    let a = abs(x);
    if (a < 1.0) {
        let z = x * x;
        return x + x * (0.12837917 + z * (-0.376126251 + z * (0.112835753 + z * (-0.0268533521
            + z * (0.00518736288 + z * (-0.000800092854 + z * 7.82069688e-5))))));
    }
    let b = min(a, 4.0);
    let tail = exp_f32(-b * b - (0.000312446156 + b * (1.12720238 + b * (-0.362035172
        + b * (0.103256356 + b * (-0.0219065523 + b * (0.0029640258 - b * 0.000187973768)))))));
    return select(with_sign(1.0 - tail, x), x, is_nan(x));
}
