// Convolution with one input channel a group: a strip of rows of one channel per invocation.
// With one output channel a group, the input channels of a group are the depth of x and w.
// spec: ONNX Conv-22
// x: [N, groups, in_d, in_h, in_w] f32
// w: [groups * multiplier, kernel_d, kernel_h, kernel_w] f32
// b: [groups * multiplier] f32, with BIAS
// y: [N, groups * multiplier, out_d, out_h, out_w] f32
// flags: BIAS; ROLLED: the text is a loop over rows that stores them, and the depth is 1; FLAT: the depth of y is 1; IMAGES: there may be several; MULTIPLIED: the multiplier may be over 1
// dispatch: one workgroup computes WORKGROUP_SIZE strips
struct Params {
    tiles: u32,
    tiles_w: u32,
    columns: u32,
    tiles_h: u32,
    rows: u32,
    groups: u32,
    multiplier: u32,
//# include lib/window_params.wgsl
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> w: array<T>;
//# if BIAS
@group(0) @binding(2) var<storage, read> b: array<T>;
//# endif
@group(0) @binding(3) var<storage, read_write> y: array<T>;
@group(0) @binding(4) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl

fn pixel(row: u32, row_inside: bool, column: i32) -> f32 {
    let inside = row_inside && u32(column) < params.in_w;
    return select(0.0, load_x(row + select(0u, u32(column), inside)), inside);
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
    let h_rest = tile / params.tiles_w;
    let column = (tile % params.tiles_w) * params.columns;
    let oh = (h_rest % params.tiles_h) * params.rows;
    let d_rest = h_rest / params.tiles_h;
//# if FLAT
    let od = 0u;
    let plane = d_rest;
//# else
    let od = d_rest % params.out_d;
    let plane = d_rest / params.out_d;
//# endif
//# if IMAGES
    let channel = plane % (params.groups * params.multiplier);
//# else
    let channel = plane;
//# endif
//# if MULTIPLIED
    // the multiplier divides the channels of an image
    let image = plane / params.multiplier * params.in_d;
//# else
    let image = plane * params.in_d;
//# endif
    let first = i32(column * params.stride_w) - params.pad_w;
    let first_h = i32(oh * params.stride_h) - params.pad_h;
    let first_d = i32(od * params.stride_d) - params.pad_d;
//# if BIAS
    let bias = load_b(channel);
//# else
    let bias = 0.0;
//# endif
    var at = channel * params.kernel_d * params.kernel_h * params.kernel_w;
${START}
//# if ROLLED
    let slice = image * params.in_h;
    let place = (plane * params.out_h + oh) * params.out_w + column;
${TAPS}
//# else
    for (var kz = 0u; kz < params.kernel_d; kz++) {
        let iz = first_d + i32(kz * params.dilation_d);
        if (u32(iz) >= params.in_d) {
            at += params.kernel_h * params.kernel_w;
            continue;
        }
        let slice = (image + u32(iz)) * params.in_h;
${TAPS}
    }
    let place = ((plane * params.out_d + od) * params.out_h + oh) * params.out_w + column;
//# endif
${STORE}
}
