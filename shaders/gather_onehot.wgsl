// values[1] where the new axis equals the index, else values[0].
// spec: ONNX OneHot-28
// indices: [outer, inner] i32, negative from the end
// values: [2] any
// y: [outer, depth, inner] any
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    depth: u32,
    inner: u32,
}
@group(0) @binding(0) var<storage, read> indices: array<i32>;
@group(0) @binding(1) var<storage, read> values: array<T>;
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
    let at = row / params.depth * params.inner + i % params.inner;
    let index = wrap_index(i32(load_indices(at)), params.depth);
    store_y(i, select(load_values(0u), load_values(1u), index == row % params.depth));
}
