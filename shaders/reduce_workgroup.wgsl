// Reduction over any axes, one output element (or one chunk of it) a workgroup.
// spec: ONNX ReduceSum-13 and its kin, ArgMax-13, ArgMin-13
// data: [...] any
// reduced: [size, chunks] any
// flags: VEC4 (an output's elements are neighbours, and 4 divides the length of a chunk)
// text: ACC type of a partial result; OPERATION with initial, accumulate, merge, finish, and the
//     maps `kept` (output to its first element) and `along` (reduced index to an offset)
// dispatch: one workgroup computes one element of `reduced` from at most `length` of `count`
struct Params {
    size: u32,
    count: u32,
    total: u32,
    chunks: u32,
    length: u32,
}
@group(0) @binding(0) var<storage, read> data: array<T>;
@group(0) @binding(1) var<storage, read_write> reduced: array<T>;
@group(0) @binding(2) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/float.wgsl
//# include lib/exp.wgsl
//# include lib/log.wgsl
alias Acc = ${ACC};
var<workgroup> partial: array<${ACC}, WORKGROUP_SIZE>;
${OPERATION}
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let output = group.x + group.y * groups.x;
    if (output >= params.size * params.chunks) {
        return;
    }
    let first = kept(output / params.chunks);
    let start = output % params.chunks * params.length;
    let end = min(start + params.length, params.count);
    var acc = initial();
//# if VEC4
    var r = start + lane * 4u;
//# else
    var r = start + lane;
//# endif
    // partial results of 256 keep long sums accurate
    while (r < end) {
        let stop = min(r + 256u * WORKGROUP_SIZE, end);
        var part = initial();
        while (r < stop) {
//# if VEC4
            let v = load4_data(first + r);
            part = accumulate(part, v.x, r);
            part = accumulate(part, v.y, r + 1u);
            part = accumulate(part, v.z, r + 2u);
            part = accumulate(part, v.w, r + 3u);
            r += WORKGROUP_SIZE * 4u;
//# else
            part = accumulate(part, load_data(first + along(r)), r);
            r += WORKGROUP_SIZE;
//# endif
        }
        acc = merge(acc, part);
    }
    partial[lane] = acc;
    workgroupBarrier();
    for (var half = WORKGROUP_SIZE / 2u; half > 0u; half /= 2u) {
        if (lane < half) {
            partial[lane] = merge(partial[lane], partial[lane + half]);
        }
        workgroupBarrier();
    }
    if (lane == 0u) {
        store_reduced(output, finish(partial[0]));
    }
}
