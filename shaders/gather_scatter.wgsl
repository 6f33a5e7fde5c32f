// Writes updates into y, which holds a copy of the data, at places given by indices.
// spec: ONNX ScatterElements-18, ScatterND-18, reduction none; places must not repeat
// indices: [...] i32, negative from the end
// updates: [size] any
// y: [...] any
// BODY: adds to `place`, the element of y for update i; clears `inside` if an index is outside
// dispatch: one workgroup writes WORKGROUP_SIZE elements
struct Params {
    size: u32,
}
@group(0) @binding(0) var<storage, read> indices: array<i32>;
@group(0) @binding(1) var<storage, read> updates: array<T>;
@group(0) @binding(2) var<storage, read_write> y: array<T>;
@group(0) @binding(3) var<uniform> params: Params;
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
    var place = 0u;
    var inside = true;
${BODY}
    if (inside) {
        store_y(place, load_updates(i));
    }
}
