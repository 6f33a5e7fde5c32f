// What attention kernels do with one score, and where rows of queries lie.
// Calls lib/float.wgsl and lib/hyperbolic.wgsl.
struct Query {
    q: u32,
    y: u32,
    mask: u32,
    position: i32,
}

// The position of the first query of a batch entry among the keys.
fn offset_of(batch: u32) -> i32 {
//# if VALID
    return load_nonpad_kv_seqlen(batch) - i32(params.queries);
//# else
    return 0;
//# endif
}

// The number of keys in use.
fn keys_of(batch: u32) -> u32 {
//# if VALID
    return min(u32(max(load_nonpad_kv_seqlen(batch), 0)), params.keys);
//# else
    return params.keys;
//# endif
}

// Query `row` of those that share a key head: heads follow each other.
fn query_of(row: u32, batch: u32, kv_head: u32) -> Query {
    let head = kv_head * params.groups + row / params.queries;
    let place = row % params.queries;
    var query: Query;
    query.q = batch * params.q_batch + head * params.q_head + place * params.q_stride;
    query.y = batch * params.y_batch + head * params.y_head + place * params.y_stride;
//# if MASK
    query.mask = batch * params.mask_batch + head * params.mask_head + place * params.mask_row;
//# endif
//# if WINDOW
    query.position = i32(place) + offset_of(batch);
//# endif
    return query;
}

// A product of query and key as it goes into the softmax; -inf where the key is out of reach.
fn score_of(product: f32, query: Query, key: u32, keys: u32) -> f32 {
    var score = product * params.scale;
//# if SOFTCAP
    score = params.softcap * tanh_f32(score / params.softcap);
//# endif
    var reached = key < keys;
//# if WINDOW
    let ahead = i32(key) - query.position;
    reached = reached && ahead <= params.right && ahead >= -params.left;
//# endif
//# if MASK
    let place = min(key, max(params.mask_keys, 1u) - 1u);
    reached = reached && key < params.mask_keys;
//# if BOOLEAN
    reached = reached && load_attn_mask(query.mask + place);
//# else
    score += load_attn_mask(query.mask + place);
//# endif
//# endif
    return select(-infinity_f32(), score, reached);
}

// What exponents are taken against: the largest score, or 0 where no key was reached yet.
fn base_of(largest: f32) -> f32 {
    return select(largest, 0.0, largest < -3.4028234e38);
}

//# if VEC4
fn q4(at: u32, i: u32) -> vec4<f32> {
    return load4_q(at + i);
}

fn k4(at: u32, i: u32) -> vec4<f32> {
    return load4_k(at + i);
}
//# else
fn q1(at: u32, i: u32) -> f32 {
    return select(0.0, load_q(at + min(i, params.size - 1u)), i < params.size);
}

fn q4(at: u32, i: u32) -> vec4<f32> {
    return vec4<f32>(q1(at, i), q1(at, i + 1u), q1(at, i + 2u), q1(at, i + 3u));
}

fn k1(at: u32, i: u32) -> f32 {
    return select(0.0, load_k(at + min(i, params.size - 1u)), i < params.size);
}

fn k4(at: u32, i: u32) -> vec4<f32> {
    return vec4<f32>(k1(at, i), k1(at, i + 1u), k1(at, i + 2u), k1(at, i + 3u));
}
//# endif
