// The range of a tensor, in two dispatches: of each part, then of all, as scale and zero point.
// spec: ONNX DynamicQuantizeLinear-11
// x: [size] float32; with LAST [parts, 2] float32, least and greatest of each part
// ends: [parts, 2] float32, without LAST
// scale: [] float32, with LAST
// zero_point: [] uint8, with LAST
// flags: LAST
// dispatch: one workgroup takes every parts-th block of 4 * WORKGROUP_SIZE elements; LAST: all
struct Params {
    size: u32,
    parts: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
//# if LAST
@group(0) @binding(1) var<storage, read_write> scale: array<T>;
@group(0) @binding(2) var<storage, read_write> zero_point: array<T>;
//# else
@group(0) @binding(1) var<storage, read_write> ends: array<T>;
//# endif
@group(0) @binding(3) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/float.wgsl
var<workgroup> lows: array<f32, WORKGROUP_SIZE>;
var<workgroup> highs: array<f32, WORKGROUP_SIZE>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    // the range contains 0
    var low = 0.0;
    var high = 0.0;
//# if LAST
    for (var i = lane; i < params.parts; i += WORKGROUP_SIZE) {
        low = min_f32(low, load_x(2u * i));
        high = max_f32(high, load_x(2u * i + 1u));
    }
//# else
    let first = (group.x * WORKGROUP_SIZE + lane) * 4u;
    for (var i = first; i < params.size; i += params.parts * WORKGROUP_SIZE * 4u) {
        let v = load4_x(i);
        for (var k = 0u; k < min(params.size - i, 4u); k++) {
            low = min_f32(low, v[k]);
            high = max_f32(high, v[k]);
        }
    }
//# endif
    lows[lane] = low;
    highs[lane] = high;
    workgroupBarrier();
    for (var half = WORKGROUP_SIZE / 2u; half > 0u; half /= 2u) {
        if (lane < half) {
            lows[lane] = min_f32(lows[lane], lows[lane + half]);
            highs[lane] = max_f32(highs[lane], highs[lane + half]);
        }
        workgroupBarrier();
    }
    if (lane == 0u) {
//# if LAST
        let width = highs[0] - lows[0];
        let step = select(width / 255.0, 1.0, width == 0.0);
        store_scale(0u, step);
        store_zero_point(0u, u32(clamp(round(-lows[0] / step), 0.0, 255.0)));
//# else
        store_ends(2u * group.x, lows[0]);
        store_ends(2u * group.x + 1u, highs[0]);
//# endif
    }
}
