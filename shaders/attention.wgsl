// Attention that never stores its scores: tiles of 32 queries by 32 keys, an online softmax.
// spec: ONNX Attention-25; Dao et al., FlashAttention (2022)
// q: [batch, heads, queries, size] f32, or [batch, queries, heads, size]
// k: [batch, key heads, keys, size] f32, or [batch, keys, key heads, size]
// v: [batch, key heads, keys, value size] f32, or [batch, keys, key heads, value size]
// attn_mask: [batch, heads, queries, mask keys] f32 or bool, broadcast
// nonpad_kv_seqlen: [batch] i32
// y: [batch, heads, queries, value size] f32, or [batch, queries, heads, value size]
// flags: MASK, VALID (inputs given), BOOLEAN (the mask is bool), WINDOW (keys to the left and right), SOFTCAP, VEC4 (4 divides size), WIDE (4 divides value size)
// COLUMNS: groups of 32 value columns: declarations; ADD, RESCALE, FINISH: what is done with them
// dispatch: one workgroup computes 32 queries that share a key head
struct Params {
    rows: u32,
    queries: u32,
    keys: u32,
    size: u32,
    value_size: u32,
    groups: u32,
    scale: f32,
    q_batch: u32,
    q_head: u32,
    q_row: u32,
    k_batch: u32,
    k_head: u32,
    k_row: u32,
    v_batch: u32,
    v_head: u32,
    v_row: u32,
    y_batch: u32,
    y_head: u32,
    y_row: u32,
}
@group(0) @binding(0) var<storage, read> q: array<T>;
@group(0) @binding(1) var<storage, read> k: array<T>;
@group(0) @binding(2) var<storage, read> v: array<T>;
//# if MASK
@group(0) @binding(3) var<storage, read> attn_mask: array<T>;
//# endif
//# if VALID
@group(0) @binding(4) var<storage, read> nonpad_kv_seqlen: array<i32>;
//# endif
@group(0) @binding(5) var<storage, read_write> y: array<T>;
@group(0) @binding(6) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
var<workgroup> largest: array<vec4<f32>, WORKGROUP_SIZE>;
// of each key, the weights for four queries
var<workgroup> weights: array<vec4<f32>, 256>;
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
    // four queries and, of each tile, four keys; then four value columns out of 32
    let stack = lane / 8u;
    let part = lane % 8u;
    let first = group.x * 32u;
    let row = first + stack * 4u;
    let last_row = params.rows - 1u;
    let query0 = query_of(min(row, last_row), batch, group.y);
    let query1 = query_of(min(row + 1u, last_row), batch, group.y);
    let query2 = query_of(min(row + 2u, last_row), batch, group.y);
    let query3 = query_of(min(row + 3u, last_row), batch, group.y);
    let keys = keys_of(batch);
    var end = keys;
//# if WINDOW
    let final_row = min(first + 31u, last_row);
    let one_head = first / params.queries == final_row / params.queries;
    let furthest = select(params.queries - 1u, final_row % params.queries, one_head);
    let beyond = min(params.right, 1073741824 - i32(furthest)) + i32(furthest) + offset_of(batch);
    end = min(end, u32(max(beyond + 1, 0)));
//# endif
    let column = part * 4u;
    var tops = vec4<f32>(-infinity_f32());
    var sums = vec4<f32>();
${COLUMNS}
    for (var tile = 0u; tile < end; tile += 32u) {
        let key = tile + part * 4u;
        let last_key = params.keys - 1u;
        let key0 = k_start + min(key, last_key) * params.k_row;
        let key1 = k_start + min(key + 1u, last_key) * params.k_row;
        let key2 = k_start + min(key + 2u, last_key) * params.k_row;
        let key3 = k_start + min(key + 3u, last_key) * params.k_row;
        var s0 = vec4<f32>();
        var s1 = vec4<f32>();
        var s2 = vec4<f32>();
        var s3 = vec4<f32>();
        for (var i = 0u; i < params.size; i += 4u) {
            let a0 = q4(query0.q, i);
            let a1 = q4(query1.q, i);
            let a2 = q4(query2.q, i);
            let a3 = q4(query3.q, i);
            let b0 = k4(key0, i);
            let b1 = k4(key1, i);
            let b2 = k4(key2, i);
            let b3 = k4(key3, i);
            s0 += vec4<f32>(dot(a0, b0), dot(a0, b1), dot(a0, b2), dot(a0, b3));
            s1 += vec4<f32>(dot(a1, b0), dot(a1, b1), dot(a1, b2), dot(a1, b3));
            s2 += vec4<f32>(dot(a2, b0), dot(a2, b1), dot(a2, b2), dot(a2, b3));
            s3 += vec4<f32>(dot(a3, b0), dot(a3, b1), dot(a3, b2), dot(a3, b3));
        }
        s0 = scores_of(s0, query0, key, keys);
        s1 = scores_of(s1, query1, key, keys);
        s2 = scores_of(s2, query2, key, keys);
        s3 = scores_of(s3, query3, key, keys);
        largest[lane] = vec4<f32>(top(s0), top(s1), top(s2), top(s3));
        workgroupBarrier();
        var new_tops = tops;
        for (var i = 0u; i < 8u; i += 1u) {
            new_tops = max(new_tops, largest[stack * 8u + i]);
        }
        let bases = vec4<f32>(
            base_of(new_tops.x), base_of(new_tops.y), base_of(new_tops.z), base_of(new_tops.w)
        );
        let rescale = exp_each(tops - bases);
        tops = new_tops;
        s0 = exp_each(s0 - bases.x);
        s1 = exp_each(s1 - bases.y);
        s2 = exp_each(s2 - bases.z);
        s3 = exp_each(s3 - bases.w);
        sums = sums * rescale + vec4<f32>(total(s0), total(s1), total(s2), total(s3));
        weights[(part * 4u) * 8u + stack] = vec4<f32>(s0.x, s1.x, s2.x, s3.x);
        weights[(part * 4u + 1u) * 8u + stack] = vec4<f32>(s0.y, s1.y, s2.y, s3.y);
        weights[(part * 4u + 2u) * 8u + stack] = vec4<f32>(s0.z, s1.z, s2.z, s3.z);
        weights[(part * 4u + 3u) * 8u + stack] = vec4<f32>(s0.w, s1.w, s2.w, s3.w);
        workgroupBarrier();
${RESCALE}
        let count = min(32u, end - tile);
        for (var i = 0u; i < count; i += 1u) {
            let w = weights[i * 8u + stack];
            let value = v_start + (tile + i) * params.v_row;
${ADD}
        }
    }
    largest[lane] = sums;
    workgroupBarrier();
    var all_sums = vec4<f32>();
    for (var i = 0u; i < 8u; i += 1u) {
        all_sums += largest[stack * 8u + i];
    }
    // rows that reach no key become 0
    let factors = select(1.0 / all_sums, vec4<f32>(), all_sums == vec4<f32>());
${FINISH}
}
