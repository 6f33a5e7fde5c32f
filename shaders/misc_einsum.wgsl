// Sums of products over labelled axes, one element of the output an invocation.
// spec: ONNX Einsum-28
// y: [size] f32, i32 or u32
// INPUTS: the operands; MAPS: from an element of y, and from a step of the sum, to offsets into each
// of them; BASES: the former; FACTORS: their product; T: element type
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    steps: u32,
}
${INPUTS}
@group(0) @binding(${COUNT}) var<storage, read_write> y: array<T>;
@group(0) @binding(${LAST}) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl

${MAPS}
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
${BASES}
    var total = ${T}();
    for (var step = 0u; step < params.steps; step++) {
        total += ${FACTORS};
    }
    store_y(i, total);
}
