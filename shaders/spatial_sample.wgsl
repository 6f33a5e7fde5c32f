// Pixels, or what lies between them, at the positions that a grid names.
// spec: ONNX GridSample-22
// x: [N, channels, sizes...] f32
// grid: [N, points, rank] f32, from -1 to 1, the last size first
// y: [N, channels, points] f32
// flags: ALIGN (corners are pixel centres), BORDER, REFLECTION (not zeros), NEAREST, CUBIC
// text: READS, the coordinates p and pixels b below them; FINDS, weight and place of one corner
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    channels: u32,
    pixels: u32,
    points: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> grid: array<T>;
@group(0) @binding(2) var<storage, read_write> y: array<T>;
@group(0) @binding(3) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
//# include lib/float.wgsl

const FAR = 16777216.0;

//# if REFLECTION
// x mirrored at the first and last pixel, or at their outer edges, until it lies between them.
fn mirrored(x: f32, size: u32) -> f32 {
//# if ALIGN
    let low = 0.0;
    let high = f32(size) - 1.0;
//# else
    let low = -0.5;
    let high = f32(size) - 0.5;
//# endif
    let span = high - low;
    if (span <= 0.0) {
        return low;
    }
    let below = x < low;
    if (!below && !(x > high)) {
        return x;
    }
    let distance = select(x - high, low - x, below);
    let turns = floor(distance / span);
    let rest = distance - turns * span;
    let even = fract(turns * 0.5) == 0.0;
    return select(high - rest, low + rest, even == below);
}
//# endif

fn brought_inside(at: f32, size: u32) -> f32 {
//# if REFLECTION
    return mirrored(at, size);
//# else
//# if BORDER
//# if not CUBIC
    return select(clamp(at, 0.0, f32(size) - 1.0), at, is_nan(at));
//# else
    return at;
//# endif
//# else
    return at;
//# endif
//# endif
}

// The coordinate in pixels of a position from -1 to 1.
fn coordinate(position: f32, size: u32) -> f32 {
//# if ALIGN
    let at = (position + 1.0) * 0.5 * (f32(size) - 1.0);
//# else
    let at = ((position + 1.0) * f32(size) - 1.0) * 0.5;
//# endif
    let limited = select(clamp(at, -FAR, FAR), at, is_nan(at));
//# if NEAREST
    return round(brought_inside(round(limited), size));
//# else
    return brought_inside(limited, size);
//# endif
}

// How far the pixel number `tap` lies from the one below the coordinate.
fn offset(tap: u32) -> f32 {
//# if CUBIC
    return f32(tap) - 1.0;
//# else
    return f32(tap);
//# endif
}

//# if CUBIC
fn near(d: f32) -> f32 {
    return (1.25 * d - 2.25) * d * d + 1.0;
}

fn far(d: f32) -> f32 {
    return ((-0.75 * d + 3.75) * d - 6.0) * d + 3.0;
}
//# endif

// The weight of pixel number `tap`, for the fraction t of a coordinate.
fn tap_weight(t: f32, tap: u32) -> f32 {
//# if NEAREST
    return 1.0;
//# else
//# if CUBIC
    if (tap == 0u) {
        return far(t + 1.0);
    }
    if (tap == 1u) {
        return near(t);
    }
    if (tap == 2u) {
        return near(1.0 - t);
    }
    return far(2.0 - t);
//# else
    return select(1.0 - t, t, tap == 1u);
//# endif
//# endif
}

fn counts(index: f32, size: u32) -> f32 {
//# if BORDER
    return 1.0;
//# else
//# if REFLECTION
    return 1.0;
//# else
    return select(0.0, 1.0, !is_nan(index) && index >= 0.0 && index <= f32(size) - 1.0);
//# endif
//# endif
}

fn pixel(index: f32, size: u32) -> u32 {
    var at = index;
//# if REFLECTION
    at = mirrored(index, size);
//# endif
    at = select(at, 0.0, is_nan(at));
    return u32(clamp(at, 0.0, f32(size) - 1.0));
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
    let plane = i / params.points;
    let point = (plane / params.channels * params.points + i % params.points) * ${RANK};
${READS}
    var total = 0.0;
    for (var corner = 0u; corner < ${CORNERS}; corner++) {
        var weight = 1.0;
        var position = 0u;
${FINDS}
        if (!(weight == 0.0)) {  // NaN counts
            total += weight * load_x(plane * params.pixels + position);
        }
    }
    store_y(i, total);
}
