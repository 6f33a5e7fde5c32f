// Every element of y is the element of x that a generated index map names.
// spec: ONNX Transpose-25, Expand-13, Tile-13, Slice-13, DepthToSpace-28, SpaceToDepth-28
// x: [...] any
// y: [size] any
// flags: WIDE, SPLAT, FOUR (four elements of y, from neighbours, one, or distant ones of x)
// dispatch: one workgroup computes WORKGROUP_SIZE elements, or groups of four
struct Params {
    size: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read_write> y: array<T>;
@group(0) @binding(2) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl

${MAP}
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
//# if WIDE
    store4_y(i * 4u, load4_x(source(i) * 4u));
//# else
//# if SPLAT
    let value = load_x(source(i));
    store4_y(i * 4u, vec4(value, value, value, value));
//# else
//# if FOUR
    let at = source(i);
    let first = vec2(load_x(at), load_x(at + params.step));
    let last = vec2(load_x(at + 2u * params.step), load_x(at + 3u * params.step));
    store4_y(i * 4u, vec4(first, last));
//# else
    store_y(i, load_x(source(i)));
//# endif
//# endif
//# endif
}
