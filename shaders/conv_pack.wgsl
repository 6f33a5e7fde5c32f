// Weights of a convolution in the order its kernel reads them: blocks of PACK output channels.
// spec: ONNX Conv-22 and ConvTranspose-22, weights that are no constants
// w: [...] f32, element (group, row, channel, tap) at the sum of the strides
// packed: [groups, packs, group_in * taps, PACK] f32, zeros past the last row
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    packs: u32,
    group_in: u32,
    group_out: u32,
    taps: u32,
    group_stride: u32,
    row_stride: u32,
    channel_stride: u32,
}
@group(0) @binding(0) var<storage, read> w: array<T>;
@group(0) @binding(1) var<storage, read_write> packed: array<T>;
@group(0) @binding(2) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
override PACK: u32 = 8u;
//# include lib/index.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
    let lane = i % PACK;
    let place = i / PACK;
    let depth = params.group_in * params.taps;
    let k = place % depth;
    let block = place / depth;
    let row = (block % params.packs) * PACK + lane;
    let from_group = (block / params.packs) * params.group_stride;
    let from_tap = (k / params.taps) * params.channel_stride + k % params.taps;
    let inside = row < params.group_out;
    let source = from_group + min(row, params.group_out - 1u) * params.row_stride + from_tap;
    store_packed(i, select(0.0, load_w(source), inside));
}
