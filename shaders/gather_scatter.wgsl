// Writes updates into y, which holds a copy of the data, at places given by indices.
// spec: ONNX ScatterElements-18, ScatterND-18, reduction none
// indices: [...] i32, negative from the end
// winners: [rows] u32, one more than the last update to each row of y, 0 for none
// updates: [size] any
// y: [rows, inner] any
// flags: CLAIM (without WINNERS): finds the winners, WINNERS: they are known, and write; none: all do
// BODY: adds to `place`, the row of y for an update; clears `inside` if an index is outside
// dispatch: one workgroup writes WORKGROUP_SIZE elements, or claims for as many updates
struct Params {
    size: u32,
    inner: u32,
}
@group(0) @binding(0) var<storage, read> indices: array<i32>;
//# if CLAIM
@group(0) @binding(1) var<storage, read_write> winners: array<u32>;
//# else
//# if WINNERS
@group(0) @binding(2) var<storage, read> winners: array<u32>;
//# endif
@group(0) @binding(3) var<storage, read> updates: array<T>;
@group(0) @binding(4) var<storage, read_write> y: array<T>;
//# endif
@group(0) @binding(5) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
//# include lib/wrap_index.wgsl

${MAP}
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
    let item = i / params.inner;
    var place = 0u;
    var inside = true;
${BODY}
//# if CLAIM
    if (inside) {
        max_winners(place, item + 1u);
    }
//# else
//# if WINNERS
    if (inside) {
        inside = load_winners(place) == item + 1u;
    }
//# endif
    if (inside) {
        store_y(place * params.inner + i % params.inner, load_updates(i));
    }
//# endif
}
