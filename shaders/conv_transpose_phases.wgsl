// Transposed convolution for GPUs: outputs a stride apart meet the same taps, so a workgroup takes
// such outputs only, and loads its weights once for all of it.
// spec: ONNX ConvTranspose-22
// x: [N, groups * group_in, in_d, in_h, in_w] f32
// w: [groups, blocks, group_in * kernel_d * kernel_h * kernel_w, PACK] f32, zeros past the last row
// b: [out_channels] f32, with BIAS
// y: [N, groups * group_out, out_d, out_h, out_w] f32
// BUILTINS, ENTER, START, SUM, STORE, SUMS (with APART): the unrolled tile, from
// engine/ops/_conv_tile.py
// flags: BIAS, INSIDE: no row that is met is outside, APART: a function sums up a tap
// overrides: WORKGROUP_X tiles by WORKGROUP_Y channel blocks; PACK channels a block of `w`; ROWS
// dispatch: x and z count tiles of pixels that lie stride_w apart, y blocks of ROWS channels, each
// once for every place within a stride
struct Params {
//# include lib/conv_params.wgsl
//# include lib/window_params.wgsl
    step_d: u32,
    step_h: u32,
    step_w: u32,
    inverse_d: u32,
    inverse_h: u32,
    inverse_w: u32,
    jump_d: i32,
    jump_h: i32,
    jump_w: i32,
    rows_d: u32,
    rows_h: u32,
}
//# include lib/conv_tensors.wgsl

//# include lib/taps.wgsl
//# if APART
${SUMS}

// As in conv_dense.wgsl: a wave has one count of this loop's trips.
fn add_tap(start: u32, weights: u32, first: i32, step: u32, at_step: u32) {
    var place = start;
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
    let phase_w = workgroup.y % params.stride_w;
    let phase_w_rest = workgroup.y / params.stride_w;
    let phase_h = phase_w_rest % params.stride_h;
    let phase_h_rest = phase_w_rest / params.stride_h;
    let phase_d = phase_h_rest % params.stride_d;
    let block = phase_h_rest / params.stride_d * WORKGROUP_Y + local.y;
${ENTER}
    let row_rest = tile / params.tiles_w;
    let column = (tile % params.tiles_w) * params.columns;
    let oh = (row_rest % params.rows_h) * params.stride_h + phase_h;
    let slice_rest = row_rest / params.rows_h;
    let od = (slice_rest % params.rows_d) * params.stride_d + phase_d;
    let n = slice_rest / params.rows_d;
    let column_end = (params.out_w + params.stride_w - 1u - phase_w) / params.stride_w;
    if (column >= column_end || oh >= params.out_h || od >= params.out_d) {
        return;
    }
    let group = block / params.group_blocks;
    let part = (block % params.group_blocks) * ROWS;
    let channel = group * params.group_out + part;
    let channel_end = (group + 1u) * params.group_out;
    let last = channel_end - 1u;
    let start = phase_w + column * params.stride_w;
    // taps that meet, and where their first one does: the same for all of a workgroup, but for
    // whole strides
    let at_w = i32(phase_w) + params.pad_w;
    let at_h = i32(phase_h) + params.pad_h;
    let at_d = i32(phase_d) + params.pad_d;
    let kx_first =
        first_tap(at_w, params.stride_w, params.step_w, params.inverse_w, params.kernel_w);
    let ky_first =
        first_tap(at_h, params.stride_h, params.step_h, params.inverse_h, params.kernel_h);
    let kz_first =
        first_tap(at_d, params.stride_d, params.step_d, params.inverse_d, params.kernel_d);
    let iw_first = (at_w - i32(kx_first * params.dilation_w)) / i32(params.stride_w);
    let ih_first = (at_h - i32(ky_first * params.dilation_h)) / i32(params.stride_h)
        + i32(oh / params.stride_h);
    let iz_first = (at_d - i32(kz_first * params.dilation_d)) / i32(params.stride_d)
        + i32(od / params.stride_d);
    let packs = (params.group_out + PACK - 1u) / PACK;
    let taps = params.kernel_d * params.kernel_h * params.kernel_w;
    let base = ((group * packs + part / PACK) * params.group_in * taps * PACK + part % PACK) / 4u;
    let at_step = taps * (PACK / 4u);
    let step = params.in_d * params.in_h * params.in_w;
    let image = (n * params.groups + group) * params.group_in * params.in_d;
${START}
    var iz = iz_first;
    for (var kz = kz_first; kz < params.kernel_d; kz += params.step_d) {
        var ih = ih_first;
        for (var ky = ky_first; ky < params.kernel_h; ky += params.step_h) {
            var iw = iw_first;
//# if not INSIDE
            let inside = u32(iz) < params.in_d && u32(ih) < params.in_h;
//# endif
            let row = ((image + u32(iz)) * params.in_h + u32(ih)) * params.in_w;
//# if INSIDE
            for (var kx = kx_first; kx < params.kernel_w; kx += params.step_w) {
//# else
            for (var kx = kx_first; inside && kx < params.kernel_w; kx += params.step_w) {
//# endif
                let first = i32(column) + iw;
                var at = base + ((kz * params.kernel_h + ky) * params.kernel_w + kx) * (PACK / 4u);
                var place = row + u32(first);
//# if APART
                add_tap(place, at, first, step, at_step);
//# else
${SUM}
//# endif
                iw -= params.jump_w;
            }
            ih -= params.jump_h;
        }
        iz -= params.jump_d;
    }
    let place = (((n * params.groups * params.group_out + channel) * params.out_d + od)
        * params.out_h + oh) * params.out_w + start;
${STORE}
}
