// Inverse trigonometric functions to a few ULP; WGSL's own may be off by thousands.
// Calls lib/float.wgsl.

// asin(x) for |x| <= 1/2
fn asin_near(x: f32) -> f32 {
    let z = x * x;
    return x + x * z * (0.166666594 + z * (0.0750054208 + z * (0.0445093589 + z * (0.0318736879
        + z * (0.0141801561 + z * 0.0378910988)))));
}

// 2 asin(sqrt((1 - a) / 2)) = acos(a) for 1/2 <= a <= 1
fn acos_near_one(a: f32) -> f32 {
    return 2.0 * asin_near(sqrt(max(0.5 * (1.0 - a), 0.0)));
}

fn asin_f32(x: f32) -> f32 {
    let a = abs(x);
    let size = select(1.57079633 - acos_near_one(a), asin_near(a), a <= 0.5);
    return select(with_sign(size, x), nan_f32(), a > 1.0 || is_nan(x));
}

fn acos_f32(x: f32) -> f32 {
    let a = abs(x);
    let far = select(acos_near_one(a), 3.14159265 - acos_near_one(a), x < 0.0);
    return select(select(far, 1.57079633 - asin_near(x), a <= 0.5), nan_f32(), a > 1.0 || is_nan(x));
}

fn atan_f32(x: f32) -> f32 {
    let a = abs(x);
    let steep = a > 2.41421356;
    let middle = a > 0.414213562;
    let t = select(select(a, (a - 1.0) / (a + 1.0), middle), -1.0 / a, steep);
    let base = select(select(0.0, 0.785398163, middle), 1.57079633, steep);
    let z = t * t;
    let angle = base + (t + t * z * (-0.333333147 + z * (0.199984344 + z * (-0.142427407
        + z * (0.105873571 - z * 0.0606051367)))));
    return select(with_sign(angle, x), x, is_nan(x));
}
