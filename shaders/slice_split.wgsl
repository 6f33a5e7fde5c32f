// Columns of x, copied to several outputs that are matrices [rows, their columns].
// spec: ONNX Split-18
// x: [rows, columns] any; `width` of the columns are read
// BODY: the branches; where they copy four neighbours, all counts are of groups of four
// flags: ONE_ROW (the matrices have one row)
// dispatch: one workgroup computes WORKGROUP_SIZE elements, or groups of four
struct Params {
    size: u32,
    columns: u32,
    width: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
${OUTPUTS}
@group(0) @binding(${LAST}) var<uniform> params: Params;
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
//# if ONE_ROW
    let row = 0u;
    let column = i;
//# else
    let row = i / params.width;
    let column = i % params.width;
//# endif
    let place = row * params.columns + column;
${BODY}
}
