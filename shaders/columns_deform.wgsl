// What the taps of a deformable convolution see: x between its pixels, at places that offsets move.
// spec: ONNX DeformConv-22
// x: [N, channels, sizes...] f32
// offset: [N, offset groups, taps, rank, places] f32, in pixels
// mask: [N, offset groups, taps, places] f32
// columns: [N, channels, taps, places] f32
// flags: MASK (given)
// READS: the coordinates p, pixels b below them and how far behind; FINDS: place and weight of a corner
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    places: u32,
    taps: u32,
    channels: u32,
    offset_groups: u32,
    group_channels: u32,
    pixels: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> offset: array<T>;
//# if MASK
@group(0) @binding(2) var<storage, read> mask: array<T>;
//# endif
@group(0) @binding(3) var<storage, read_write> columns: array<T>;
@group(0) @binding(4) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl

const FAR = 16777216.0;

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
    let place = i % params.places;
    let tap = i / params.places % params.taps;
    let plane = i / params.places / params.taps;
    let group = plane / params.channels * params.offset_groups
        + plane % params.channels / params.group_channels;
    let block = group * params.taps + tap;
    let moved = block * ${RANK} * params.places + place;
    let base = plane * params.pixels;
    var output_rest = place;
    var kernel_rest = tap;
${READS}
    var total = 0.0;
    for (var corner = 0u; corner < ${CORNERS}; corner++) {
        var weight = 1.0;
        var position = 0u;
        var inside = true;
${FINDS}
        if (inside && weight != 0.0) {
            total += weight * load_x(base + position);
        }
    }
//# if MASK
    total *= load_mask(block * params.places + place);
//# endif
    store_columns(i, total);
}
