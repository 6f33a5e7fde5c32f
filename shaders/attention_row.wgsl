// Attention of few queries, such as one token with a cache: tiles of 256 keys, an online softmax.
// spec: ONNX Attention-25; Dao et al., FlashAttention (2022)
// q: [batch, heads, queries, size] f32, or [batch, queries, heads, size]
// k: [batch, key heads, keys, size] f32, or [batch, keys, key heads, size]
// v: [batch, key heads, keys, value size] f32, or [batch, keys, key heads, value size]
// attn_mask: [batch, heads, queries, mask keys] f32 or bool, broadcast
// nonpad_kv_seqlen: [batch] i32
// y: [batch, heads, queries, value size] f32, or [batch, queries, heads, value size]
// flags: MASK, VALID (inputs given), BOOLEAN (with MASK): it is bool, WINDOW (keys to the left and right), SOFTCAP, VEC4 (4 divides size)
// COLUMNS: groups of 64 value columns: declarations; ADD, RESCALE, FINISH: what is done with them
// dispatch: one workgroup computes one query
//# include lib/attention_tensors.wgsl
var<workgroup> shared_values: array<f32, WORKGROUP_SIZE>;
var<workgroup> weights: array<f32, 256>;
//# include lib/float.wgsl
//# include lib/exp.wgsl
//# include lib/log.wgsl
//# include lib/hyperbolic.wgsl
//# include lib/tree.wgsl
//# include lib/attention.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let batch = group.z;
    let k_start = batch * params.k_batch + group.y * params.k_head;
    let v_start = batch * params.v_batch + group.y * params.v_head;
    let query = query_of(group.x, batch, group.y);
    let keys = keys_of(batch);
    var largest = -infinity_f32();
    var sum = 0.0;
${COLUMNS}
    for (var tile = 0u; tile < keys; tile += 256u) {
        var top = -infinity_f32();
        for (var i = lane; i < 256u; i += WORKGROUP_SIZE) {
            let at = k_start + min(tile + i, params.keys - 1u) * params.k_stride;
            var products = vec4<f32>();
            for (var j = 0u; j < params.size; j += 4u) {
                products += q4(query.q, j) * k4(at, j);
            }
            let product = (products.x + products.y) + (products.z + products.w);
            let score = score_of(product, query, tile + i, keys);
            weights[i] = score;
            top = max(top, score);
        }
        top = max(largest, tree_max(lane, top));
        let base = base_of(top);
        let rescale = exp_f32(largest - base);
        largest = top;
        sum *= rescale;
        for (var i = lane; i < 256u; i += WORKGROUP_SIZE) {
            let weight = exp_f32(weights[i] - base);
            weights[i] = weight;
            sum += weight;
        }
        workgroupBarrier();
${RESCALE}
        let count = min(256u, keys - tile);
        for (var i = 0u; i < count; i += 1u) {
            let w = weights[i];
            let value = v_start + (tile + i) * params.v_stride;
${ADD}
        }
        workgroupBarrier();
    }
    let all_sums = tree_sum(lane, sum);
    // a row that reaches no key becomes 0
    let factor = select(1.0 / all_sums, 0.0, all_sums == 0.0);
${FINISH}
}
