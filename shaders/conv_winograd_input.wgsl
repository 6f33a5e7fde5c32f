// Winograd's transform of the input of a 3x3 convolution: one tile of one channel an invocation.
// spec: ONNX Conv-22
// x: [N, channels, in_h, in_w] f32
// spread: [(SIZE + 2)^2, channels, inner] f32, or [(SIZE + 2)^2, tiles, inner] if channels_inner
// Tiles are counted by rows, those of all images under each other, from row
// repeat_index() * band_rows on.
// TRANSFORM: loads, sums and stores, from engine/ops/_conv_winograd.py; FOLDS: functions for it
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
    in_h: u32,
    in_w: u32,
    pad_h: i32,
    pad_w: i32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read_write> spread: array<T>;
@group(0) @binding(2) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
override SIZE: u32 = 4u;
//# include lib/index.wgsl
${FOLDS}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let index = flat_index(id, groups);
    if (index >= params.count) {
        return;
    }
    let along = index % params.inner;
    let across = index / params.inner;
    let channel = select(across, along, params.channels_inner != 0u);
    let tile = min(select(along, across, params.channels_inner != 0u), params.tiles - 1u);
    let tile_rest = tile / params.tiles_w
        + min(repeat_index() * params.band_rows, params.last_row);
    let n = tile_rest / params.tiles_h;
    let first_h = i32((tile_rest % params.tiles_h) * SIZE) - params.pad_h;
    let first_w = i32((tile % params.tiles_w) * SIZE) - params.pad_w;
    let plane = (n * params.channels + channel) * params.in_h * params.in_w;
${TRANSFORM}
}
