// Convolution with a 1x1 kernel and no padding: a matrix product over the pixels of a plane.
// spec: ONNX Conv-22
// x: [N, groups * group_in, in_plane] f32; STRIDED: [N, ..., in_plane / (in_h * in_w), in_h, in_w]
// w: [groups, blocks, group_in, PACK] f32, zeros past the last row
// b: [out_channels] f32, with BIAS
// y: [N, out_channels, plane] f32
// BUILTINS, ENTER, START, SUM, STORE: the unrolled tile, from engine/ops/_conv_tile.py
// flags: BIAS, STRIDED
// overrides: WORKGROUP_X tiles by WORKGROUP_Y channel blocks; PACK channels a block of `w`; ROWS
// dispatch: x and z count tiles of pixels, y blocks of ROWS channels, uniform if WORKGROUP_Y is 1
struct Params {
//# include lib/conv_params.wgsl
    in_plane: u32,
//# if STRIDED
    in_h: u32,
    in_w: u32,
    out_h: u32,
    out_w: u32,
    stride_d: u32,
    stride_h: u32,
    stride_w: u32,
//# endif
}
//# include lib/conv_tensors.wgsl

//# if STRIDED
fn source(pixel: u32) -> u32 {
    let row = pixel / params.out_w;
    let ih = (row % params.out_h) * params.stride_h;
    let id = (row / params.out_h) * params.stride_d;
    return (id * params.in_h + ih) * params.in_w + (pixel % params.out_w) * params.stride_w;
}
//# endif

@compute @workgroup_size(WORKGROUP_X, WORKGROUP_Y)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
${BUILTINS}) {
    let place_in_grid = (workgroup.x + workgroup.z * workgroups.x) * WORKGROUP_X + local.x;
    let block = workgroup.y * WORKGROUP_Y + local.y;
${ENTER}
    let n = tile / params.tiles_w;
    let column = (tile % params.tiles_w) * params.columns;
    let group = block / params.group_blocks;
    let part = (block % params.group_blocks) * ROWS;
    let channel = group * params.group_out + part;
    let channel_end = (group + 1u) * params.group_out;
    let last = channel_end - 1u;
    let packs = (params.group_out + PACK - 1u) / PACK;
    var at = ((group * packs + part / PACK) * params.group_in * PACK + part % PACK) / 4u;
${START}
${SUM}
    let column_end = params.plane;
    let place = (n * params.groups * params.group_out + channel) * params.plane + column;
${STORE}
}
