// Powers with the special cases of IEEE 754 (negative bases, zeros, infinities), to about 1 ULP.
// Calls lib/float.wgsl.

// The upper 12 bits of the significand: products of two such numbers are exact.
fn upper_f32(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
}

// a^y for finite a > 0 and finite y, through a base-2 logarithm kept in two parts.
fn power_of_positive(a: f32, y: f32) -> f32 {
    let bits = bitcast<u32>(a);
    let denormal = bits < 0x00800000u;
    let shifted = select(bits, bitcast<u32>(f32(bits)), denormal) - 0x3f3504f3u;
    let e = f32((bitcast<i32>(shifted) >> 23u) - select(0, 149, denormal));
    let m = bitcast<f32>((shifted & 0x007fffffu) + 0x3f3504f3u);
    let f = m - 1.0;
    let s = f / (m + 1.0);
    let s_upper = upper_f32(s);
    let sum_upper = upper_f32(m + 1.0);
    let sum_lower = m - (sum_upper - 1.0);
    let s_lower = ((f - s_upper * sum_upper) - s_upper * sum_lower) / (m + 1.0);
    let z = s * s;
    let tail = s * z * (0.961796679 + z * (0.577083002 + z * (0.41169615 + z * 0.340423195)));
    // log2(m) = s * 2 / log(2) + tail, 2 / log(2) = 2.884765625 + 0.000624456778
    let p = s_upper * 2.884765625;
    let lower = s_lower * 2.884765625 + s * 0.000624456778 + tail;
    let log_upper = upper_f32(e + p + lower);
    let log_lower = ((e - log_upper) + p) + lower;
    let y_upper = upper_f32(y);
    let t_upper = y_upper * log_upper;
    let t_lower = (y - y_upper) * log_upper + y * log_lower;
    let t = clamp(t_upper + t_lower, -200.0, 200.0);
    let n = round(t);
    let r = select(t - n, (t_upper - n) + t_lower, abs(t) < 199.0);
    let q = 1.0 + r * (0.693147181 + r * (0.240226511 + r * (0.0555041097 + r * (0.00961803316
        + r * (0.00133334256 + r * (0.00015468391 + r * 1.53161965e-5))))));
    return scale_f32(q, i32(n));
}

// x^y; `odd` and `whole` say whether y is an odd and a whole number.
fn power_with_parity(x: f32, y: f32, odd: bool, whole: bool) -> f32 {
    let x_bits = bitcast<u32>(x) & 0x7fffffffu;
    let y_bits = bitcast<u32>(y) & 0x7fffffffu;
    let negative = (bitcast<u32>(x) & 0x80000000u) != 0u;
    if (y_bits == 0u || bitcast<u32>(x) == 0x3f800000u) {
        return 1.0;
    }
    if (x_bits > 0x7f800000u || y_bits > 0x7f800000u) {
        return nan_f32();
    }
    let falling = (bitcast<u32>(y) & 0x80000000u) != 0u;
    if (y_bits == 0x7f800000u) {
        if (x_bits == 0x3f800000u) {
            return 1.0;
        }
        return select(0.0, infinity_f32(), (x_bits > 0x3f800000u) != falling);
    }
    var size = 0.0;
    if (x_bits == 0u || x_bits == 0x7f800000u) {
        size = select(0.0, infinity_f32(), (x_bits != 0u) != falling);
    } else {
        if (negative && !whole) {
            return nan_f32();
        }
        size = power_of_positive(abs(x), y);
    }
    return select(size, -size, negative && odd);
}

fn pow_f32(x: f32, y: f32) -> f32 {
    let a = abs(y);
    let whole = a >= 8388608.0 || floor(a) == a;
    let odd = whole && a < 16777216.0 && (u32(min(a, 16777216.0)) & 1u) != 0u;
    return power_with_parity(x, y, odd, whole);
}

fn pow_f32_i32(x: f32, y: i32) -> f32 {
    return power_with_parity(x, f32(y), (y & 1) != 0, true);
}

fn pow_f32_u32(x: f32, y: u32) -> f32 {
    return power_with_parity(x, f32(y), (y & 1u) != 0u, true);
}

fn pow_u32(x: u32, y: u32) -> u32 {
    var result = 1u;
    var square = x;
    var left = y;
    while (left != 0u) {
        result = select(result, result * square, (left & 1u) != 0u);
        square = square * square;
        left = left >> 1u;
    }
    return result;
}

// x^y, wrapping; the truncated fraction for y < 0, and 0 where that is 0^y.
fn pow_i32(x: i32, y: i32) -> i32 {
    if (y >= 0) {
        return bitcast<i32>(pow_u32(bitcast<u32>(x), bitcast<u32>(y)));
    }
    let parity = select(1, -1, (y & 1) != 0);
    return select(select(0, parity, x == -1), 1, x == 1);
}
