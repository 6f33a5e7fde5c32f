// Matrix product in registers: an invocation sums a tile of rows and columns over the inner axis.
// With few rows, or a long inner axis, invocations of a workgroup share that (SHARED), then add up.
// spec: ONNX MatMul-13, Gemm-13, MatMulInteger-10, com.microsoft MatMulNBits-1
// a: [batch, rows, inner] T, or [inner, rows]
// b: [batch, inner, columns] T, or [columns, inner], or [columns / 32, inner, 32]
// c: [rows, columns] T, broadcast; with the flag BIAS
// a_zero: [rows] T or [], with A_ZERO, is subtracted from a; b_zero likewise
// b_zero: [columns] T or [], with B_ZERO
// b_scale: [columns, blocks] T, with B_SCALE
// y: [batch, rows, columns] T
// flags: BIAS (c is added), A_ZERO, B_ZERO, B_SCALE, SHARED
// MAPS: where a batch of a and of b starts; how b is read if it is packed
// BUILTINS, BODY: the unrolled tile, from engine/ops/_matmul_text.py
// VECTOR, PARTIALS: type and number of the sums that a workgroup adds up, with SHARED
// dispatch: one workgroup a task: column blocks, then row blocks, then batches
struct Params {
    rows: u32,
    columns: u32,
    inner: u32,
    column_blocks: u32,
    row_blocks: u32,
    tasks: u32,
}
@group(0) @binding(0) var<storage, read> a: array<T>;
@group(0) @binding(1) var<storage, read> b: array<T>;
//# if BIAS
@group(0) @binding(2) var<storage, read> c: array<T>;
//# endif
//# if A_ZERO
@group(0) @binding(3) var<storage, read> a_zero: array<T>;
//# endif
//# if B_ZERO
@group(0) @binding(4) var<storage, read> b_zero: array<T>;
//# endif
//# if B_SCALE
@group(0) @binding(5) var<storage, read> b_scale: array<T>;
//# endif
@group(0) @binding(6) var<storage, read_write> y: array<T>;
@group(0) @binding(7) var<uniform> params: Params;
override WORKGROUP_X: u32 = 64u;
override WORKGROUP_Y: u32 = 1u;

//# if SHARED
var<workgroup> partial: array<${VECTOR}, ${PARTIALS}>;
//# endif
${MAPS}
@compute @workgroup_size(WORKGROUP_X, WORKGROUP_Y)
fn main(
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
${BUILTINS}) {
    let task = group.x + group.y * groups.x;
    if (task >= params.tasks) {
        return;
    }
    let column_block = task % params.column_blocks;
    let stack = task / params.column_blocks;
    let block = stack % params.row_blocks;
    let batch = stack / params.row_blocks;
    let a_start = batch_a(batch);
    let b_start = batch_b(batch);
    let y_start = batch * params.rows * params.columns;
${BODY}
}
