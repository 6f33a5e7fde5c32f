// Transposed convolution by gathering: each output pixel sums the input pixels that reach it.
// One loop, as software likes it; for GPUs there is conv_transpose_phases.wgsl.
// spec: ONNX ConvTranspose-22
// x: [N, groups * group_in, in_d, in_h, in_w] f32
// w: [groups, blocks, group_in * kernel_d * kernel_h * kernel_w, PACK] f32, zeros past the last row
// b: [out_channels] f32, with BIAS
// y: [N, groups * group_out, out_d, out_h, out_w] f32
// BUILTINS, ENTER, START, SUM, STORE: the unrolled tile, from engine/ops/_conv_tile.py
// flags: BIAS
// overrides: WORKGROUP_X tiles by WORKGROUP_Y channel blocks; PACK channels a block of `w`; ROWS
// dispatch: x and z count tiles of pixels that lie stride_w apart, y blocks of ROWS channels
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
}
//# include lib/conv_tensors.wgsl

fn pixel(row: u32, column: i32) -> f32 {
    let inside = u32(column) < params.in_w;
    return select(0.0, load_x(row + select(0u, u32(column), inside)), inside);
}

//# include lib/taps.wgsl

fn tap_count(first: u32, step: u32, kernel: u32) -> u32 {
    return (max(kernel, first) - first + step - 1u) / step;
}

@compute @workgroup_size(WORKGROUP_X, WORKGROUP_Y)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
${BUILTINS}) {
    let place_in_grid = (workgroup.x + workgroup.z * workgroups.x) * WORKGROUP_X + local.x;
    let block = workgroup.y * WORKGROUP_Y + local.y;
${ENTER}
    let phase_rest = tile / params.tiles_w;
    let column = (tile % params.tiles_w) * params.columns;
    let phase = phase_rest % params.stride_w;
    let oh_rest = phase_rest / params.stride_w;
    let oh = oh_rest % params.out_h;
    let od_rest = oh_rest / params.out_h;
    let od = od_rest % params.out_d;
    let n = od_rest / params.out_d;
    let column_end = (params.out_w + params.stride_w - 1u - phase) / params.stride_w;
    if (column >= column_end) {
        return;
    }
    let group = block / params.group_blocks;
    let part = (block % params.group_blocks) * ROWS;
    let channel = group * params.group_out + part;
    let channel_end = (group + 1u) * params.group_out;
    let last = channel_end - 1u;
    let start = phase + column * params.stride_w;
    let ow = i32(start) + params.pad_w;
    let oh_padded = i32(oh) + params.pad_h;
    let od_padded = i32(od) + params.pad_d;
    let kx_first =
        first_tap(ow, params.stride_w, params.step_w, params.inverse_w, params.kernel_w);
    let ky_first =
        first_tap(oh_padded, params.stride_h, params.step_h, params.inverse_h, params.kernel_h);
    let kz_first =
        first_tap(od_padded, params.stride_d, params.step_d, params.inverse_d, params.kernel_d);
    let packs = (params.group_out + PACK - 1u) / PACK;
    let depth = params.group_in * params.kernel_d * params.kernel_h * params.kernel_w;
    let base = ((group * packs + part / PACK) * depth * PACK + part % PACK) / 4u;
    let image = (n * params.groups + group) * params.group_in;
${START}
    // one loop over input channels and the taps that meet: loops cost more than these selects
    let count = params.group_in * tap_count(kz_first, params.step_d, params.kernel_d)
        * tap_count(ky_first, params.step_h, params.kernel_h)
        * tap_count(kx_first, params.step_w, params.kernel_w);
    let iz_first = (od_padded - i32(kz_first * params.dilation_d)) / i32(params.stride_d);
    let ih_first = (oh_padded - i32(ky_first * params.dilation_h)) / i32(params.stride_h);
    let iw_first = (ow - i32(kx_first * params.dilation_w)) / i32(params.stride_w);
    var c = 0u;
    var kz = kz_first;
    var ky = ky_first;
    var kx = kx_first;
    var iz = iz_first;
    var ih = ih_first;
    var iw = iw_first;
    for (var r = 0u; r < count; r++) {
        if (u32(iz) < params.in_d && u32(ih) < params.in_h) {
            let row = (((image + c) * params.in_d + u32(iz)) * params.in_h + u32(ih)) * params.in_w;
            let tap = ((c * params.kernel_d + kz) * params.kernel_h + ky) * params.kernel_w + kx;
            let at = base + tap * (PACK / 4u);
${SUM}
        }
        kx += params.step_w;
        let row_done = kx >= params.kernel_w;
        kx = select(kx, kx_first, row_done);
        iw = select(iw - params.jump_w, iw_first, row_done);
        ky += select(0u, params.step_h, row_done);
        let slice_done = ky >= params.kernel_h;
        ky = select(ky, ky_first, slice_done);
        ih = select(ih - select(0, params.jump_h, row_done), ih_first, slice_done);
        kz += select(0u, params.step_d, slice_done);
        let channel_done = kz >= params.kernel_d;
        kz = select(kz, kz_first, channel_done);
        iz = select(iz - select(0, params.jump_d, slice_done), iz_first, channel_done);
        c += select(0u, 1u, channel_done);
    }
    let place = (((n * params.groups * params.group_out + channel) * params.out_d + od)
        * params.out_h + oh) * params.out_w + start;
${STORE}
}
