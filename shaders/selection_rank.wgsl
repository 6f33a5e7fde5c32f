// The first k elements of each row in order: each element counts those that come before it.
// spec: ONNX TopK-24
// x: [rows / inner, count, inner] any
// values: [rows / inner, k, inner] any
// indices: [rows / inner, k, inner] i32
// flags: VALUES, INDICES (outputs)
// text: KEY with `order_key(value)`, smaller the earlier an element comes
// dispatch: one workgroup places WORKGROUP_SIZE elements of x
struct Params {
    rows: u32,
    count: u32,
    k: u32,
    inner: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
//# if VALUES
@group(0) @binding(1) var<storage, read_write> values: array<T>;
//# endif
//# if INDICES
@group(0) @binding(2) var<storage, read_write> indices: array<i32>;
//# endif
@group(0) @binding(3) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
${KEY}
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.rows * params.count) {
        return;
    }
    let within = i % params.inner;
    let place = i / params.inner % params.count;
    let outer = i / params.inner / params.count;
    let first = outer * params.count * params.inner + within;
    let value = load_x(i);
    let key = order_key(value);
    var before = 0u;
    for (var j = 0u; j < params.count; j++) {
        let other = order_key(load_x(first + j * params.inner));
        before += select(0u, 1u, other < key || (other == key && j < place));
    }
    if (before >= params.k) {
        return;
    }
    let target_at = (outer * params.k + before) * params.inner + within;
//# if VALUES
    store_values(target_at, value);
//# endif
//# if INDICES
    store_indices(target_at, i32(place));
//# endif
}
