// Attention that never stores its scores: tiles of queries and keys, an online softmax.
// spec: ONNX Attention-25; Dao et al., FlashAttention (2022)
// q: [batch, heads, queries, size] f32, or [batch, queries, heads, size]
// k: [batch, key heads, keys, size] f32, or [batch, keys, key heads, size]
// v: [batch, key heads, keys, value size] f32, or [batch, keys, key heads, value size]
// attn_mask: [batch, heads, queries, mask keys] f32 or bool, broadcast
// nonpad_kv_seqlen: [batch] i32
// y: [batch, heads, queries, value size] f32, or [batch, queries, heads, value size]
// flags: MASK, VALID (inputs given), BOOLEAN (with MASK): it is bool, WINDOW (keys to the left and right), SOFTCAP, VEC4 (4 divides size), WIDE (4 divides value size)
// ROWS, STACKS: queries of an invocation, and how many invocations have others in a workgroup
// TOPS, WEIGHTS: elements of workgroup memory
// BODY: the unrolled tile, from engine/ops/_attention_text.py
// dispatch: one workgroup computes ROWS * STACKS queries that share a key head
//# include lib/attention_tensors.wgsl
const ROWS: u32 = ${ROWS}u;
const STACKS: u32 = ${STACKS}u;
// of each invocation, a number for each of its queries
var<workgroup> largest: array<vec4<f32>, ${TOPS}>;
// of each key, the weights for all queries
var<workgroup> weights: array<vec4<f32>, ${WEIGHTS}>;
//# include lib/float.wgsl
//# include lib/exp.wgsl
//# include lib/log.wgsl
//# include lib/hyperbolic.wgsl
//# include lib/attention.wgsl

fn exp_each(v: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(exp_f32(v.x), exp_f32(v.y), exp_f32(v.z), exp_f32(v.w));
}

fn scores_of(products: vec4<f32>, query: Query, key: u32, keys: u32) -> vec4<f32> {
    return vec4<f32>(
        score_of(products.x, query, key, keys),
        score_of(products.y, query, key + 1u, keys),
        score_of(products.z, query, key + 2u, keys),
        score_of(products.w, query, key + 3u, keys),
    );
}

fn top(v: vec4<f32>) -> f32 {
    return max(max(v.x, v.y), max(v.z, v.w));
}

fn total(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

fn bases_of(tops: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(base_of(tops.x), base_of(tops.y), base_of(tops.z), base_of(tops.w));
}

// One over each sum; rows that reach no key become 0.
fn factors_of(sums: vec4<f32>) -> vec4<f32> {
    return select(1.0 / sums, vec4<f32>(), sums == vec4<f32>());
}

fn v4(at: u32, column: u32) -> vec4<f32> {
//# if WIDE
    return load4_v(at + min(column, params.value_size - 4u));
//# else
    let last = params.value_size - 1u;
    return vec4<f32>(
        load_v(at + min(column, last)), load_v(at + min(column + 1u, last)),
        load_v(at + min(column + 2u, last)), load_v(at + min(column + 3u, last)),
    );
//# endif
}

fn put(at: u32, column: u32, value: vec4<f32>) {
//# if WIDE
    if (column < params.value_size) {
        store4_y(at + column, value);
    }
//# else
    if (column < params.value_size) { store_y(at + column, value.x); }
    if (column + 1u < params.value_size) { store_y(at + column + 1u, value.y); }
    if (column + 2u < params.value_size) { store_y(at + column + 2u, value.z); }
    if (column + 3u < params.value_size) { store_y(at + column + 3u, value.w); }
//# endif
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let batch = group.z;
    let k_start = batch * params.k_batch + group.y * params.k_head;
    let v_start = batch * params.v_batch + group.y * params.v_head;
    let stack = lane / 8u;
    let part = lane % 8u;
    let column = part * 4u;
    let first = group.x * ROWS * STACKS;
    let row = first + stack * ROWS;
    let last_row = params.rows - 1u;
    let last_key = params.keys - 1u;
    let keys = keys_of(batch);
    var end = keys;
//# if WINDOW
    let final_row = min(first + ROWS * STACKS - 1u, last_row);
    let one_head = first / params.queries == final_row / params.queries;
    let furthest = select(params.queries - 1u, final_row % params.queries, one_head);
    let beyond = min(params.right, 1073741824 - i32(furthest)) + i32(furthest) + offset_of(batch);
    end = min(end, u32(max(beyond + 1, 0)));
//# endif
${BODY}
}
