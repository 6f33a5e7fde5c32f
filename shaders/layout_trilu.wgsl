// The upper or lower triangle of a stack of matrices; zero elsewhere.
// spec: ONNX Trilu-14
// x: [..., rows, columns] any
// y: [..., rows, columns] any
// flags: UPPER from the diagonal up, else down
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    rows: u32,
    columns: u32,
    diagonal: i32,
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
    let row = (i / params.columns) % params.rows;
    let column = i % params.columns;
    let above = i32(column) - i32(row) - params.diagonal;
//# if UPPER
    let inside = above >= 0;
//# else
    let inside = above <= 0;
//# endif
    store_y(i, select(${T}(), load_x(i), inside));
}
