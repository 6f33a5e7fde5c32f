// Maximum, mean or p-norm of sliding windows: four neighbouring outputs of a row per invocation.
// spec: ONNX MaxPool-22, AveragePool-22, LpPool-22
// x: [planes, in_d, in_h, in_w] f32; with MAX also i32 or u32 of 8 bits, which f32 holds
// y: [planes, out_d, out_h, out_w] as x
// indices: [planes, out_d, out_h, out_w] i32, with INDICES: flat place in `x` of each maximum
// flags: MAX, INDICES (with MAX), AVERAGE; neither: p-norm. QUADS (4 divides in_w; without INDICES), DILATED (with AVERAGE)
// dispatch: one workgroup computes 4 * WORKGROUP_SIZE outputs
struct Params {
    tiles: u32,
    tiles_w: u32,
//# include lib/window_params.wgsl
    outside: f32,
//# if INDICES
    place_d: u32,
    place_h: u32,
    place_w: u32,
//# endif
//# if AVERAGE
    low_d: i32,
    low_h: i32,
    low_w: i32,
    high_d: i32,
    high_h: i32,
    high_w: i32,
//# endif
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read_write> y: array<T>;
//# if INDICES
@group(0) @binding(2) var<storage, read_write> indices: array<T>;
//# endif
@group(0) @binding(3) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl

fn pixel(row: u32, column: i32) -> f32 {
    let inside = u32(column) < params.in_w;
    let value = f32(load_x(row + select(0u, u32(column), inside)));
    return select(params.outside, value, inside);
}

//# if QUADS
// Four pixels from `column` on, a multiple of four: all of them are in the row or none.
fn quad(row: u32, column: i32) -> vec4<f32> {
    let inside = u32(column) < params.in_w;
    let values = vec4<f32>(load4_x(row + select(0u, u32(column), inside)));
    return select(vec4<f32>(params.outside), values, inside);
}
//# endif

//# if MAX
//# include lib/float.wgsl

fn join(best: f32, v: f32) -> f32 {
    return select(best, v, v > best || is_nan(v));
}
//# else
fn join(sum: f32, v: f32) -> f32 {
    return sum + ${POWER};
}
//# endif

//# if AVERAGE
// Taps of a window from `start` on that lie in [low, high).
fn inside_taps(start: i32, low: i32, high: i32, kernel: u32, dilation: u32) -> f32 {
//# if DILATED
    let step = i32(dilation);
    let first = max(0, (low - start + step - 1) / step);
    let last = min(i32(kernel) - 1, (high - 1 - start + step) / step - 1);
//# else
    let first = max(0, low - start);
    let last = min(i32(kernel), high - start) - 1;
//# endif
    return f32(max(0, last - first + 1));
}
//# endif

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let tile = flat_index(id, groups);
    if (tile >= params.tiles) {
        return;
    }
    let h_rest = tile / params.tiles_w;
    let column = (tile % params.tiles_w) * 4u;
    let oh = h_rest % params.out_h;
    let d_rest = h_rest / params.out_h;
    let od = d_rest % params.out_d;
    let plane = d_rest / params.out_d;
    let first = i32(column * params.stride_w) - params.pad_w;
    let first_h = i32(oh * params.stride_h) - params.pad_h;
    let first_d = i32(od * params.stride_d) - params.pad_d;
    var m0 = params.outside;
    var m1 = params.outside;
    var m2 = params.outside;
    var m3 = params.outside;
//# if INDICES
    var found = vec4<i32>(-1);
//# endif
    for (var kz = 0u; kz < params.kernel_d; kz++) {
        let iz = first_d + i32(kz * params.dilation_d);
        for (var ky = 0u; ky < params.kernel_h; ky++) {
            let ih = first_h + i32(ky * params.dilation_h);
            if (u32(iz) >= params.in_d || u32(ih) >= params.in_h) {
                continue;
            }
            let row = ((plane * params.in_d + u32(iz)) * params.in_h + u32(ih)) * params.in_w;
${TAPS}
        }
    }
    var v = vec4<f32>(m0, m1, m2, m3);
//# if AVERAGE
    let rows = inside_taps(first_d, params.low_d, params.high_d, params.kernel_d, params.dilation_d)
        * inside_taps(first_h, params.low_h, params.high_h, params.kernel_h, params.dilation_h);
    for (var j = 0u; j < 4u; j++) {
        let start = first + i32(j * params.stride_w);
        v[j] /= rows
            * inside_taps(start, params.low_w, params.high_w, params.kernel_w, params.dilation_w);
    }
//# endif
//# if not MAX
    v = ${ROOT};
//# endif
    let place = h_rest * params.out_w + column;
//# if INDICES
    let size = i32(params.in_d * params.in_h * params.in_w);
    let index = select(found + i32(plane) * size, found, found < vec4<i32>(0));
//# endif
${STORE}
}
