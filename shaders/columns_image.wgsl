// Images as the sum of windows that overlap: each pixel adds up the taps that lie on it.
// spec: ONNX Col2Im-18
// x: [planes, taps, windows] f32
// y: [planes, image...] f32
// text: PLACES, the padded coordinates of a pixel; FINDS, the window that has it as its `tap`
// dispatch: one workgroup computes WORKGROUP_SIZE pixels
struct Params {
    size: u32,
    taps: u32,
    windows: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read_write> y: array<T>;
@group(0) @binding(2) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
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
    var rest = i;
${PLACES}
    let plane = rest;
    var total = 0.0;
    for (var number = 0u; number < params.taps; number++) {
        var tap = number;
        var inside = true;
${FINDS}
        if (inside) {
            total += load_x((plane * params.taps + number) * params.windows + window);
        }
    }
    store_y(i, total);
}
