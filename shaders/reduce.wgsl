// Reduction over any axes, one output element an invocation.
// spec: ONNX ReduceSum-13 and its kin, ArgMax-13, ArgMin-13
// data: [...] any
// reduced: [size] any
// flags: VEC4 (an output's elements are neighbours, and 4 divides their number)
// text: ACC type of a partial result; OPERATION with initial, accumulate, merge, finish, and the
//     maps `kept` (output to its first element) and `along` (reduced index to an offset)
// dispatch: one workgroup computes WORKGROUP_SIZE outputs
struct Params {
    size: u32,
    count: u32,
    total: u32,
}
@group(0) @binding(0) var<storage, read> data: array<T>;
@group(0) @binding(1) var<storage, read_write> reduced: array<T>;
@group(0) @binding(2) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
//# include lib/float.wgsl
//# include lib/exp.wgsl
//# include lib/log.wgsl
alias Acc = ${ACC};
${OPERATION}
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let output = flat_index(id, groups);
    if (output >= params.size) {
        return;
    }
    let first = kept(output);
    var acc = initial();
    var r = 0u;
    // partial results of 256 keep long sums accurate
    while (r < params.count) {
        let end = min(r + 256u, params.count);
        var part = initial();
        while (r < end) {
//# if VEC4
            let v = load4_data(first + r);
            part = accumulate(part, v.x, r);
            part = accumulate(part, v.y, r + 1u);
            part = accumulate(part, v.z, r + 2u);
            part = accumulate(part, v.w, r + 3u);
            r += 4u;
//# else
            part = accumulate(part, load_data(first + along(r)), r);
            r += 1u;
//# endif
        }
        acc = merge(acc, part);
    }
    store_reduced(output, finish(acc));
}
