// Convolution of integers, exact in i32: four channels by four neighbours of a row an invocation.
// spec: ONNX ConvInteger-10, QLinearConv-10
// x: [N, groups * group_in, in_d, in_h, in_w] 8-bit integers
// w: [groups * group_out, group_in, kernel_d, kernel_h, kernel_w] 8-bit integers
// x_zero: [] as x, with X_ZERO; else the parameter x_level
// w_zero: [] or [groups * group_out] as w, with W_ZERO; else the parameter w_level
// b: [groups * group_out] int32, with BIAS
// y: [N, groups * group_out, out_d, out_h, out_w] int32
// flags: X_ZERO, W_ZERO, BIAS, WIDE (4 divides out_w)
// dispatch: one workgroup computes WORKGROUP_SIZE tiles of 4 x 4
struct Params {
    tiles: u32,
    tiles_w: u32,
    blocks: u32,
    groups: u32,
    group_in: u32,
    group_out: u32,
    x_level: i32,
    w_level: i32,
    w_zero_step: u32,
//# include lib/window_params.wgsl
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> w: array<T>;
//# if X_ZERO
@group(0) @binding(2) var<storage, read> x_zero: array<T>;
//# endif
//# if W_ZERO
@group(0) @binding(3) var<storage, read> w_zero: array<T>;
//# endif
//# if BIAS
@group(0) @binding(4) var<storage, read> b: array<T>;
//# endif
@group(0) @binding(5) var<storage, read_write> y: array<T>;
@group(0) @binding(6) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl

// What lies outside is the zero point, which counts as 0.
fn pixel(row: u32, column: i32, zero: i32) -> i32 {
    let inside = u32(column) < params.in_w;
    return select(0, i32(load_x(row + select(0u, u32(column), inside))) - zero, inside);
}

fn kernel_zero(channel: u32) -> i32 {
//# if W_ZERO
    return i32(load_w_zero(channel * params.w_zero_step));
//# else
    return params.w_level;
//# endif
}

fn bias(channel: u32) -> vec4<i32> {
//# if BIAS
    return vec4<i32>(load_b(channel));
//# else
    return vec4<i32>();
//# endif
}

fn store_row(place: u32, columns: u32, sums: vec4<i32>) {
//# if WIDE
    store4_y(place, sums);
//# else
    store_y(place, sums.x);
    if (columns > 1u) {
        store_y(place + 1u, sums.y);
    }
    if (columns > 2u) {
        store_y(place + 2u, sums.z);
    }
    if (columns > 3u) {
        store_y(place + 3u, sums.w);
    }
//# endif
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let tile = flat_index(id, workgroups);
    if (tile >= params.tiles) {
        return;
    }
    let column = (tile % params.tiles_w) * 4u;
    var rest = tile / params.tiles_w;
    let oh = rest % params.out_h;
    rest /= params.out_h;
    let od = rest % params.out_d;
    rest /= params.out_d;
    let block = rest % params.blocks;
    rest /= params.blocks;
    let group = rest % params.groups;
    let n = rest / params.groups;
    let part = block * 4u;
    let last = params.group_out - 1u;
    let base = group * params.group_out;
    let c0 = base + part;
    let c1 = base + min(part + 1u, last);
    let c2 = base + min(part + 2u, last);
    let c3 = base + min(part + 3u, last);
    let depth = params.group_in * params.kernel_d * params.kernel_h * params.kernel_w;
    let zeros = vec4<i32>(kernel_zero(c0), kernel_zero(c1), kernel_zero(c2), kernel_zero(c3));
//# if X_ZERO
    let zero = i32(load_x_zero(0u));
//# else
    let zero = params.x_level;
//# endif
    let first_w = i32(column * params.stride_w) - params.pad_w;
    let first_h = i32(oh * params.stride_h) - params.pad_h;
    let first_d = i32(od * params.stride_d) - params.pad_d;
    var sum0 = bias(c0);
    var sum1 = bias(c1);
    var sum2 = bias(c2);
    var sum3 = bias(c3);
    var kx = 0u;
    var ky = 0u;
    var kz = 0u;
    var image = (n * params.groups + group) * params.group_in * params.in_d;
    // one loop over channels and taps: loops cost more than these selects
    for (var k = 0u; k < depth; k++) {
        let iz = first_d + i32(kz * params.dilation_d);
        let ih = first_h + i32(ky * params.dilation_h);
        if (u32(iz) < params.in_d && u32(ih) < params.in_h) {
            let row = ((image + u32(iz)) * params.in_h + u32(ih)) * params.in_w;
            let at = first_w + i32(kx * params.dilation_w);
            let step = i32(params.stride_w);
            let pixels = vec4<i32>(
                pixel(row, at, zero),
                pixel(row, at + step, zero),
                pixel(row, at + 2 * step, zero),
                pixel(row, at + 3 * step, zero),
            );
            sum0 += (i32(load_w(c0 * depth + k)) - zeros.x) * pixels;
            sum1 += (i32(load_w(c1 * depth + k)) - zeros.y) * pixels;
            sum2 += (i32(load_w(c2 * depth + k)) - zeros.z) * pixels;
            sum3 += (i32(load_w(c3 * depth + k)) - zeros.w) * pixels;
        }
        kx += 1u;
        let row_done = kx == params.kernel_w;
        kx = select(kx, 0u, row_done);
        ky += select(0u, 1u, row_done);
        let slice_done = ky == params.kernel_h;
        ky = select(ky, 0u, slice_done);
        kz += select(0u, 1u, slice_done);
        let channel_done = kz == params.kernel_d;
        kz = select(kz, 0u, channel_done);
        image += select(0u, params.in_d, channel_done);
    }
    let plane = params.out_d * params.out_h * params.out_w;
    let channel = n * params.groups * params.group_out + c0;
    let place = channel * plane + (od * params.out_h + oh) * params.out_w + column;
    let columns = params.out_w - column;
    store_row(place, columns, sum0);
    if (part + 1u <= last) {
        store_row(place + plane, columns, sum1);
    }
    if (part + 2u <= last) {
        store_row(place + 2u * plane, columns, sum2);
    }
    if (part + 3u <= last) {
        store_row(place + 3u * plane, columns, sum3);
    }
}
