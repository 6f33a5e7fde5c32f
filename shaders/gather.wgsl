// Slices of x along one axis, picked by index; zeros where an index is outside the axis.
// spec: ONNX Gather-13
// x: [outer, axis, inner] any
// indices: [picked] i32, negative from the end
// y: [outer, picked, inner] any
// flags: WIDE inner and size count groups of four elements
// dispatch: one workgroup computes WORKGROUP_SIZE elements, or groups of four
struct Params {
    size: u32,
    axis_size: u32,
    picked: u32,
    inner: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> indices: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<T>;
@group(0) @binding(3) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
//# include lib/wrap_index.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
    let row = i / params.inner;
    let at = wrap_index(i32(load_indices(row % params.picked)), params.axis_size);
    let source = (row / params.picked * params.axis_size + at) * params.inner + i % params.inner;
    let inside = at < params.axis_size;
//# if WIDE
    var value = vec4<${T}>();
    if (inside) {
        value = load4_x(source * 4u);
    }
    store4_y(i * 4u, value);
//# else
    var value = ${T}();
    if (inside) {
        value = load_x(source);
    }
    store_y(i, value);
//# endif
}
