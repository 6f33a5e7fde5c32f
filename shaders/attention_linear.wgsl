// Linear attention: a state of one matrix a head, decayed, corrected and added to step by step.
// spec: ONNX LinearAttention-27; Yang et al., Gated Delta Networks (2024)
// query: [batch, length, heads, groups, size] f32
// key: [batch, length, heads, size] f32
// value: [batch, length, heads, value size] f32
// past_state: [batch, heads, size, value size] f32
// decay: [batch, length, heads] or [batch, length, heads, size] f32, logarithms
// beta: [batch, length, heads or 1] f32
// y: [batch, length, heads, groups, value size] f32
// present_state: [batch, heads, size, value size] f32
// flags: PAST, DECAY, BETA (inputs given)
// START, DECAYED, RECALLED, ADDED, ASKED, KEPT: what is done with a column of the state, held in
// registers; SIZE: of a key
// dispatch: one workgroup computes WORKGROUP_SIZE columns of values
struct Params {
    columns: u32,
    value_size: u32,
    heads: u32,
    groups: u32,
    length: u32,
    scale: f32,
//# if DECAY
    decay_head: u32,
//# endif
//# if BETA
    rates: u32,
//# endif
}
@group(0) @binding(0) var<storage, read> query: array<T>;
@group(0) @binding(1) var<storage, read> key: array<T>;
@group(0) @binding(2) var<storage, read> value: array<T>;
//# if PAST
@group(0) @binding(3) var<storage, read> past_state: array<T>;
//# endif
//# if DECAY
@group(0) @binding(4) var<storage, read> decay: array<T>;
//# endif
//# if BETA
@group(0) @binding(5) var<storage, read> beta: array<T>;
//# endif
@group(0) @binding(6) var<storage, read_write> y: array<T>;
@group(0) @binding(7) var<storage, read_write> present_state: array<T>;
@group(0) @binding(8) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
//# if DECAY
//# include lib/float.wgsl
//# include lib/exp.wgsl
//# endif

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.columns) {
        return;
    }
    let column = i % params.value_size;
    let head = i / params.value_size % params.heads;
    let batch = i / params.value_size / params.heads;
    let state = (batch * params.heads + head) * ${SIZE}u * params.value_size + column;
${START}
    for (var t = 0u; t < params.length; t++) {
        let step = batch * params.length + t;
        let row = step * params.heads + head;
        let key_at = row * ${SIZE}u;
//# if DECAY
        let gate = row * params.decay_head;
${DECAYED}
//# endif
        var added = load_value(row * params.value_size + column);
//# if BETA
        var recalled = vec4<f32>();
${RECALLED}
        let known = (recalled.x + recalled.y) + (recalled.z + recalled.w);
        added = load_beta(step * params.rates + select(0u, head, params.rates > 1u)) * (added - known);
//# endif
${ADDED}
        for (var group = 0u; group < params.groups; group++) {
            let asking = row * params.groups + group;
            let query_at = asking * ${SIZE}u;
            var found = vec4<f32>();
${ASKED}
            let sum = (found.x + found.y) + (found.z + found.w);
            store_y(asking * params.value_size + column, params.scale * sum);
        }
    }
${KEPT}
}
