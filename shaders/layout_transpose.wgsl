// Blocks of 4 x 4 elements, turned in registers: rows of x become columns of y.
// spec: ONNX Transpose-25
// x: [...] any; four rows of a block are params.x_step apart
// y: [...] any; four rows of a block are params.y_step apart
// MAPS: where block i starts in x (`source`) and in y (`place`)
// dispatch: one workgroup moves WORKGROUP_SIZE blocks
struct Params {
    size: u32,
    x_step: u32,
    y_step: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read_write> y: array<T>;
@group(0) @binding(2) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl

${MAPS}
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
    let from_x = source(i);
    let a = load4_x(from_x);
    let b = load4_x(from_x + params.x_step);
    let c = load4_x(from_x + 2u * params.x_step);
    let d = load4_x(from_x + 3u * params.x_step);
    let to_y = place(i);
    store4_y(to_y, vec4(a.x, b.x, c.x, d.x));
    store4_y(to_y + params.y_step, vec4(a.y, b.y, c.y, d.y));
    store4_y(to_y + 2u * params.y_step, vec4(a.z, b.z, c.z, d.z));
    store4_y(to_y + 3u * params.y_step, vec4(a.w, b.w, c.w, d.w));
}
