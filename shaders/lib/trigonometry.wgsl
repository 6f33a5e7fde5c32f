// sin, cos and tan to a few ULP for every finite argument, arguments reduced exactly where large.
// Calls lib/float.wgsl.
struct Reduced {
    r: f32,
    quadrant: u32,
}

fn high_product(a: u32, b: u32) -> u32 {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    let middle = a1 * b0 + ((a0 * b0) >> 16u);
    let other = a0 * b1 + (middle & 0xffffu);
    return a1 * b1 + (middle >> 16u) + (other >> 16u);
}

// a modulo pi / 2 for a >= 8192, from the bits of 2 / pi (Payne and Hanek).
fn reduce_large(a: f32) -> Reduced {
    var digits = array<u32, 8>(
        0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu,
    );
    let bits = bitcast<u32>(a);
    let mantissa = (bits & 0x007fffffu) | 0x00800000u;
    // first digit that matters modulo 4, in a table that starts with 32 zero digits
    let first = (bits >> 23u) - 150u - 2u + 32u;
    let word = first >> 5u;
    let shift = first & 31u;
    var window: array<u32, 3>;
    for (var j = 0u; j < 3u; j++) {
        let low = select(digits[word + j + 1u] >> (32u - max(shift, 1u)), 0u, shift == 0u);
        window[j] = (digits[word + j] << shift) | low;
    }
    let low = high_product(mantissa, window[2]);
    let middle = mantissa * window[1] + low;
    let carry = select(0u, 1u, middle < low);
    let top = mantissa * window[0] + high_product(mantissa, window[1]) + carry;
    var quadrant = top >> 30u;
    var fraction = (top << 2u) | (middle >> 30u);
    var rest = middle << 2u;
    let above = fraction >= 0x80000000u;
    if (above) {
        quadrant += 1u;
        fraction = ~fraction + select(0u, 1u, rest == 0u);
        rest = ~rest + 1u;
    }
    let size = f32(fraction) * 2.3283064e-10 + f32(rest) * 5.4210109e-20;
    return Reduced(select(size, -size, above) * 1.57079633, quadrant);
}

fn reduce_angle(x: f32) -> Reduced {
    let a = abs(x);
    if (a >= 8192.0) {
        let large = reduce_large(select(8192.0, a, is_finite(x)));
        let negative = x < 0.0;
        return Reduced(
            select(large.r, -large.r, negative), select(large.quadrant, 0u - large.quadrant, negative)
        );
    }
    let k = round(x * 0.636619772);
    let r = ((x - k * 1.5703125) - k * 0.00048375129) - k * 7.5495336e-8 - k * 2.5633442e-12;
    return Reduced(r, bitcast<u32>(i32(k)));
}

fn sin_near(r: f32) -> f32 {
    let z = r * r;
    return r + r * z * (-0.166666666 + z * (0.00833332902 + z * (-0.000198392175 + z * 2.71719635e-6)));
}

fn cos_near(r: f32) -> f32 {
    let z = r * r;
    return 1.0 - (0.5 * z
        - z * z * (0.0416666666 + z * (-0.00138888833 + z * (2.47993946e-5 - z * 2.7199887e-7))));
}

fn sin_f32(x: f32) -> f32 {
    let reduced = reduce_angle(x);
    let size = select(sin_near(reduced.r), cos_near(reduced.r), (reduced.quadrant & 1u) != 0u);
    let y = select(size, -size, (reduced.quadrant & 2u) != 0u);
    return select(nan_f32(), select(y, x, x == 0.0), is_finite(x));
}

fn cos_f32(x: f32) -> f32 {
    let reduced = reduce_angle(x);
    let size = select(cos_near(reduced.r), sin_near(reduced.r), (reduced.quadrant & 1u) != 0u);
    return select(nan_f32(), select(size, -size, ((reduced.quadrant + 1u) & 2u) != 0u), is_finite(x));
}

fn tan_f32(x: f32) -> f32 {
    let reduced = reduce_angle(x);
    let r = reduced.r;
    let z = r * r;
    let t = r + r * z * (0.333333565 + z * (0.133324345 + z * (0.0540854781 + z * (0.021151675
        + z * (0.01117109 + z * (-0.000332381403 + z * 0.00458311681))))));
    let y = select(t, -1.0 / t, (reduced.quadrant & 1u) != 0u);
    return select(nan_f32(), select(y, x, x == 0.0), is_finite(x));
}
