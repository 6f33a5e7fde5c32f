// Running sums or products along one axis, one line an invocation.
// spec: ONNX CumSum-14, CumProd-26
// x: [lines / stride, count, stride] any
// y: [lines / stride, count, stride] any
// flags: EXCLUSIVE (without the element itself), REVERSE (from the end), PARTIAL (see below)
// text: T element type; START what nothing gives; JOIN + or *
// dispatch: one workgroup computes WORKGROUP_SIZE lines
struct Params {
    lines: u32,
    count: u32,
    stride: u32,
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
    let line = flat_index(id, groups);
    if (line >= params.lines) {
        return;
    }
    let first = line / params.stride * params.stride * params.count + line % params.stride;
    // partial results of 256 keep long sums accurate; one of a product may be infinite behind a 0
    var before = ${T}(${START});
    var acc = ${T}(${START});
    for (var k = 0u; k < params.count; k++) {
//# if PARTIAL
        if (k % 256u == 0u) {
            before = before ${JOIN} acc;
            acc = ${T}(${START});
        }
//# endif
//# if REVERSE
        let i = first + (params.count - 1u - k) * params.stride;
//# else
        let i = first + k * params.stride;
//# endif
        let v = load_x(i);
//# if EXCLUSIVE
        store_y(i, before ${JOIN} acc);
        acc = acc ${JOIN} v;
//# else
        acc = acc ${JOIN} v;
        store_y(i, before ${JOIN} acc);
//# endif
    }
}
