// Ones on a diagonal of a matrix, zeros elsewhere.
// spec: ONNX EyeLike-22
// y: [rows, columns] any
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    columns: u32,
    diagonal: i32,
}
@group(0) @binding(0) var<storage, read_write> y: array<T>;
@group(0) @binding(1) var<uniform> params: Params;
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
    let above = i32(i % params.columns) - i32(i / params.columns);
    store_y(i, select(${T}(0), ${T}(1), above == params.diagonal));
}
