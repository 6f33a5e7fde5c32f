// The end of a product or convolution whose sums were split: adds up the parts, scales, adds c.
// spec: ONNX MatMul-13, Gemm-13, Conv-22
// sums: [size / step, parts, step] f32
// c: [rows, columns] f32, broadcast; with the flag BIAS
// y: [size] f32
// flags: BIAS (c is added)
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    parts: u32,
    step: u32,
    rows: u32,
    columns: u32,
    c_row: u32,
    c_column: u32,
    alpha: f32,
    beta: f32,
}
@group(0) @binding(0) var<storage, read> sums: array<T>;
//# if BIAS
@group(0) @binding(1) var<storage, read> c: array<T>;
//# endif
@group(0) @binding(2) var<storage, read_write> y: array<T>;
@group(0) @binding(3) var<uniform> params: Params;
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
    let first = i / params.step * params.parts * params.step + i % params.step;
    var sum = 0.0;
    for (var part = 0u; part < params.parts; part += 1u) {
        sum += load_sums(first + part * params.step);
    }
    sum *= params.alpha;
//# if BIAS
    let row = (i / params.columns) % params.rows;
    sum += params.beta * load_c(row * params.c_row + (i % params.columns) * params.c_column);
//# endif
    store_y(i, sum);
}
