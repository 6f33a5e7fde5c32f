// Regions of feature maps, pooled from a fixed number of linear samples in each bin.
// spec: ONNX RoiAlign-22
// x: [N, channels, height, width] f32
// rois: [regions, 4] f32: x1, y1, x2, y2
// batch_indices: [regions] i32
// y: [regions, channels, out_height, out_width] f32
// flags: HALF_PIXEL (pixel centres lie at halves), MAX (instead of the mean)
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    channels: u32,
    height: u32,
    width: u32,
    out_height: u32,
    out_width: u32,
    ratio: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> rois: array<T>;
@group(0) @binding(2) var<storage, read> batch_indices: array<i32>;
@group(0) @binding(3) var<storage, read_write> y: array<T>;
@group(0) @binding(4) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
//# include lib/float.wgsl

struct Pixels {
    low: u32,
    high: u32,
    low_weight: f32,
    high_weight: f32,
}

// The two pixels that a position draws from; none counts if it lies past the edge by over a pixel.
fn pixels_at(position: f32, size: u32) -> Pixels {
    let inside = max(position, 0.0);
    let low = min(u32(inside), size - 1u);
    let high = min(low + 1u, size - 1u);
    let fraction = select(inside - f32(low), 0.0, low >= size - 1u);
    let counts = select(0.0, 1.0, position >= -1.0 && position <= f32(size));
    return Pixels(low, high, (1.0 - fraction) * counts, fraction * counts);
}

// Size of the bins along one axis of a region that spans `extent`.
fn bin_size(extent: f32, bins: u32) -> f32 {
//# if HALF_PIXEL
    return extent / f32(bins);
//# else
    return max(extent, 1.0) / f32(bins);
//# endif
}

fn joined(a: f32, b: f32) -> f32 {
//# if MAX
    return max_f32(a, b);
//# else
    return a + b;
//# endif
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
    let column = i % params.out_width;
    let row = i / params.out_width % params.out_height;
    let channel = i / (params.out_width * params.out_height) % params.channels;
    let region = i / (params.out_width * params.out_height * params.channels);
//# if HALF_PIXEL
    let shift = 0.5;
//# else
    let shift = 0.0;
//# endif
    let left = load_rois(region * 4u) * params.scale - shift;
    let top = load_rois(region * 4u + 1u) * params.scale - shift;
    let right = load_rois(region * 4u + 2u) * params.scale - shift;
    let bottom = load_rois(region * 4u + 3u) * params.scale - shift;
    let bin_h = bin_size(bottom - top, params.out_height);
    let bin_w = bin_size(right - left, params.out_width);
    let image = u32(load_batch_indices(region)) * params.channels + channel;
    let first = image * params.height * params.width;
    let ratio = f32(params.ratio);
    var total = 0.0;
    var started = false;
    for (var j = 0u; j < params.ratio; j++) {
        let down = (f32(j) + 0.5) * bin_h / ratio;
        let v = pixels_at(top + f32(row) * bin_h + down, params.height);
        for (var k = 0u; k < params.ratio; k++) {
            let along = (f32(k) + 0.5) * bin_w / ratio;
            let h = pixels_at(left + f32(column) * bin_w + along, params.width);
            let upper = first + v.low * params.width;
            let lower = first + v.high * params.width;
            let a = load_x(upper + h.low) * (v.low_weight * h.low_weight);
            let b = load_x(upper + h.high) * (v.low_weight * h.high_weight);
            let c = load_x(lower + h.low) * (v.high_weight * h.low_weight);
            let d = load_x(lower + h.high) * (v.high_weight * h.high_weight);
            let value = joined(joined(a, b), joined(c, d));
            total = select(value, joined(total, value), started);
            started = true;
        }
    }
//# if MAX
    store_y(i, total);
//# else
    store_y(i, total / (ratio * ratio));
//# endif
}
