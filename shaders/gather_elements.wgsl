// One element of x for each index; zero where an index is outside the axis.
// spec: ONNX GatherElements-13
// x: [...] any
// indices: [size] i32, negative from the end
// y: [size] any
// MAP: `base`, the element of x at the same place but at 0 on the axis
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    axis_size: u32,
    axis_stride: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> indices: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<T>;
@group(0) @binding(3) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
//# include lib/wrap_index.wgsl

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
    let at = wrap_index(i32(load_indices(i)), params.axis_size);
    var value = ${T}();
    if (at < params.axis_size) {
        value = load_x(base(i) + at * params.axis_stride);
    }
    store_y(i, value);
}
