// Determinants of small square matrices, by elimination with the largest pivot of each column.
// spec: ONNX Det-22
// x: [count, N, N] f32
// y: [count] f32
// N: rows of a matrix
// dispatch: one workgroup computes WORKGROUP_SIZE determinants
struct Params {
    count: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read_write> y: array<T>;
@group(0) @binding(2) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
//# include lib/float.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.count) {
        return;
    }
    var m: array<f32, ${N}u * ${N}u>;
    for (var k = 0u; k < ${N}u * ${N}u; k++) {
        m[k] = load_x(i * ${N}u * ${N}u + k);
    }
    var product = 1.0;
    for (var step = 0u; step < ${N}u; step++) {
        var pivot = step;
        for (var row = step + 1u; row < ${N}u; row++) {
            let size = abs(m[row * ${N}u + step]);
            if (size > abs(m[pivot * ${N}u + step]) || is_nan(size)) {
                pivot = row;
            }
        }
        let head = m[pivot * ${N}u + step];
        product *= select(head, -head, pivot != step);
        if (product == 0.0) {
            break;
        }
        for (var column = step; column < ${N}u; column++) {
            let kept = m[step * ${N}u + column];
            m[step * ${N}u + column] = m[pivot * ${N}u + column];
            m[pivot * ${N}u + column] = kept;
        }
        for (var row = step + 1u; row < ${N}u; row++) {
            let factor = m[row * ${N}u + step] / head;
            for (var column = step + 1u; column < ${N}u; column++) {
                m[row * ${N}u + column] -= factor * m[step * ${N}u + column];
            }
        }
    }
    store_y(i, product);
}
