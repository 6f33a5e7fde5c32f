// Rows of x, each written behind what a row of y holds already.
// spec: ONNX Concat-13, computed in place
// x: [outer, row] any
// y: [outer, grown_row] any; the elements from `begin` on are written
// dispatch: one workgroup copies WORKGROUP_SIZE elements
struct Params {
    size: u32,
    row: u32,
    grown_row: u32,
    begin: u32,
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
    store_y(i / params.row * params.grown_row + params.begin + i % params.row, load_x(i));
}
