// The end of Winograd's 3x3 convolution: one tile of one channel an invocation.
// spec: ONNX Conv-22
// products: [(SIZE + 2)^2, channels, inner] f32, or [(SIZE + 2)^2, tiles, inner] if channels_inner
// x: [N, group_in, in_h, in_w] f32
// w: [channels, group_in, 3, 3] f32; of x and w, rows of results are summed anew of which one is
// infinite or NaN, as that would spread over the tile
// b: [channels] f32, with BIAS
// y: [N, channels, out_h, out_w] f32
// Tiles are counted by rows, those of all images under each other, from row
// repeat_index() * band_rows on.
// TRANSFORM: loads, sums and stores; IY: the row of pixels that a row of taps meets; TAPS: the sum
// of that row, from engine/ops/_conv_winograd.py; FOLDS: functions for pixels
// flags: BIAS
// overrides: SIZE, outputs of a tile along an axis
// dispatch: one workgroup computes WORKGROUP_SIZE tiles
struct Params {
    tiles_h: u32,
    tiles_w: u32,
    tiles: u32,
    inner: u32,
    channels_inner: u32,
    band_rows: u32,
    last_row: u32,
    count: u32,
    channels: u32,
    out_h: u32,
    out_w: u32,
    group_in: u32,
    in_h: u32,
    in_w: u32,
    pad_h: i32,
    pad_w: i32,
}
@group(0) @binding(0) var<storage, read> products: array<T>;
@group(0) @binding(1) var<storage, read> x: array<T>;
@group(0) @binding(2) var<storage, read> w: array<T>;
//# if BIAS
@group(0) @binding(3) var<storage, read> b: array<T>;
//# endif
@group(0) @binding(4) var<storage, read_write> y: array<T>;
@group(0) @binding(5) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
override SIZE: u32 = 4u;
//# include lib/index.wgsl
//# include lib/float.wgsl
${FOLDS}

// The sum of one result over channels and taps.
fn summed(n: u32, channel: u32, oh: u32, ow: u32) -> f32 {
    let first_h = i32(oh) - params.pad_h;
    let first_w = i32(ow) - params.pad_w;
    var sum = 0.0;
    for (var row = 0u; row < 3u * params.group_in; row++) {
        let iy = u32(${IY});
        let plane = (n * params.group_in + row / 3u) * params.in_h * params.in_w;
        let line = plane + iy * params.in_w;
        let at = (channel * params.group_in * 3u + row) * 3u;
${TAPS}
    }
    return sum;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let index = flat_index(id, groups);
    let along = index % params.inner;
    let across = index / params.inner;
    let channel = select(across, along, params.channels_inner != 0u);
    let tile = select(along, across, params.channels_inner != 0u);
    if (index >= params.count || tile >= params.tiles) {
        return;
    }
    let tile_rest = tile / params.tiles_w
        + min(repeat_index() * params.band_rows, params.last_row);
    let n = tile_rest / params.tiles_h;
    let oh = (tile_rest % params.tiles_h) * SIZE;
    let ow = (tile % params.tiles_w) * SIZE;
//# if BIAS
    let bias = load_b(channel);
//# else
    let bias = 0.0;
//# endif
    let place = ((n * params.channels + channel) * params.out_h + oh) * params.out_w + ow;
${TRANSFORM}
}
