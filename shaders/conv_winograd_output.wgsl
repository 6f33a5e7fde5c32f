// The end of Winograd's 3x3 convolution: one tile of one channel an invocation.
// spec: ONNX Conv-22
// products: [(SIZE + 2)^2, tiles, channels] f32, tiles being [N, tiles_h, tiles_w]
// b: [channels] f32, with BIAS
// y: [N, channels, out_h, out_w] f32
// TRANSFORM: loads, sums and stores, from engine/ops/_conv_winograd.py
// flags: BIAS
// overrides: SIZE, outputs of a tile along an axis
// dispatch: one workgroup computes WORKGROUP_SIZE tiles
struct Params {
    tiles_h: u32,
    tiles_w: u32,
    count: u32,
    channels: u32,
    out_h: u32,
    out_w: u32,
}
@group(0) @binding(0) var<storage, read> products: array<T>;
//# if BIAS
@group(0) @binding(1) var<storage, read> b: array<T>;
//# endif
@group(0) @binding(2) var<storage, read_write> y: array<T>;
@group(0) @binding(3) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
override SIZE: u32 = 4u;
//# include lib/index.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let index = flat_index(id, groups);
    if (index >= params.count) {
        return;
    }
    let channel = index % params.channels;
    let tile = index / params.channels;
    let tile_rest = tile / params.tiles_w;
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
