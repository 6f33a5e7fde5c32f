// Rotary position embedding: pairs of elements turned by angles that a cache holds.
// spec: ONNX RotaryEmbedding-23
// x: [batch, heads, length, size] f32, or [batch, length, heads, size]
// cos_cache: [positions, half] f32, or [batch, length, half]
// sin_cache: [positions, half] f32, or [batch, length, half]
// position_ids: [batch, length] i32
// y: [batch, heads, length, size] f32, or [batch, length, heads, size]
// flags: POSITIONS (position_ids are given), INTERLEAVED (pairs are neighbours, not halves apart)
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    elements: u32,
    heads: u32,
    length: u32,
    size: u32,
    half_size: u32,
    positions: u32,
    heads_first: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> cos_cache: array<T>;
@group(0) @binding(2) var<storage, read> sin_cache: array<T>;
//# if POSITIONS
@group(0) @binding(3) var<storage, read> position_ids: array<i32>;
//# endif
@group(0) @binding(4) var<storage, read_write> y: array<T>;
@group(0) @binding(5) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.elements) {
        return;
    }
    let d = i % params.size;
    if (d >= 2u * params.half_size) {
        store_y(i, load_x(i));
        return;
    }
    let row = i / params.size;
    let batch = row / params.heads / params.length;
    let by_head = row % params.length;
    let by_length = row / params.heads % params.length;
    var place = batch * params.length + select(by_length, by_head, params.heads_first == 1u);
//# if POSITIONS
    let position = load_position_ids(place);
    place = min(u32(select(position, position + i32(params.positions), position < 0)), params.positions - 1u);
//# endif
//# if INTERLEAVED
    let second = d % 2u == 1u;
    let pair = d / 2u;
    let other = select(i + 1u, i - 1u, second);
//# else
    let second = d >= params.half_size;
    let pair = d % params.half_size;
    let other = select(i + params.half_size, i - params.half_size, second);
//# endif
    let cosine = load_cos_cache(place * params.half_size + pair);
    let sine = load_sin_cache(place * params.half_size + pair);
    store_y(i, cosine * load_x(i) + select(-sine, sine, second) * load_x(other));
}
