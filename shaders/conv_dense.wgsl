// Convolution as an implicit matrix product: a tile of channels by pixels of a row per invocation.
// spec: ONNX Conv-22
// x: [N, channels, in_d, in_h, in_w] f32
// w: [groups, blocks, group_in * kernel_d * kernel_h * kernel_w, PACK] f32, zeros past the last row
// b: [out_channels] f32, with BIAS
// y: [N, out_channels, out_d, out_h, out_w] f32
// BUILTINS, ENTER, START, SUM, STORE, SUMS (with APART): the unrolled tile, from
// engine/ops/_conv_tile.py
// PIXELS, IZ, IH: how rows and pixels are found that may be outside, from engine/ops/conv.py
// flags: BIAS; SHARED: subgroups must stay whole, INSIDE (without SHARED): no row that is met is outside, APART (without SHARED): a function sums up a row
// overrides: WORKGROUP_X tiles by WORKGROUP_Y channel blocks; PACK channels a block of `w`; ROWS
// dispatch: x and z count tiles of pixels, y blocks of ROWS channels, uniform if WORKGROUP_Y is 1
struct Params {
//# include lib/conv_params.wgsl
//# include lib/window_params.wgsl
}
//# include lib/conv_tensors.wgsl

${PIXELS}
//# if APART
${SUMS}

// Drivers are given loops that count their trips, from when their function begins. Here a wave has
// one count for all of its invocations: in `main` these would count by themselves, as some leave out
// rows.
fn add_row(
    start: u32,
    weights: u32,
    first: i32,
    group: u32,
    first_plane: u32,
    row_step: u32,
    at_step: u32,
) {
    let limit = params.in_w;
    var row = start;
    var at = weights;
${SUM}
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
    let oh_rest = tile / params.tiles_w;
    let column = (tile % params.tiles_w) * params.columns;
    let oh = oh_rest % params.out_h;
    let od_rest = oh_rest / params.out_h;
    let od = od_rest % params.out_d;
    let n = od_rest / params.out_d;
    let group = block / params.group_blocks;
    let part = (block % params.group_blocks) * ROWS;
    let channel = group * params.group_out + part;
    let channel_end = (group + 1u) * params.group_out;
    let last = channel_end - 1u;
    let first = i32(column * params.stride_w) - params.pad_w;
    let first_h = i32(oh * params.stride_h) - params.pad_h;
    let first_d = i32(od * params.stride_d) - params.pad_d;
    let taps = params.kernel_d * params.kernel_h * params.kernel_w;
    let packs = (params.group_out + PACK - 1u) / PACK;
    // weights are counted in fours
    let base = ((group * packs + part / PACK) * params.group_in * taps * PACK + part % PACK) / 4u;
    let at_step = taps * (PACK / 4u);
    let row_step = params.in_d * params.in_h * params.in_w;
    let first_plane = (n * params.groups + group) * params.group_in;
    let image = first_plane * params.in_d;
${START}
    // channels are the inner loop: what is outside of the input is the same for all of them
    for (var r = 0u; r < params.kernel_d * params.kernel_h; r++) {
        let iz = ${IZ};
        let ih = ${IH};
//# if SHARED
        let inside = u32(iz) < params.in_d && u32(ih) < params.in_h;
        let limit = select(0u, params.in_w, inside);
        var row = select(0u, (image + u32(iz)) * params.in_h + u32(ih), inside) * params.in_w;
//# else
//# if not INSIDE
        let inside = u32(iz) < params.in_d && u32(ih) < params.in_h;
        if (!inside) {
            continue;
        }
//# endif
        let limit = params.in_w;
        var row = ((image + u32(iz)) * params.in_h + u32(ih)) * params.in_w;
//# endif
        var at = base + r * params.kernel_w * (PACK / 4u);
//# if APART
        add_row(row, at, first, group, first_plane, row_step, at_step);
//# else
${SUM}
//# endif
    }
    let column_end = params.out_w;
    let place = (((n * params.groups * params.group_out + channel) * params.out_d + od)
        * params.out_h + oh) * params.out_w + column;
${STORE}
}
