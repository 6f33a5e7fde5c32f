// Data reduced with the updates to each of its elements, one after the other.
// spec: ONNX ScatterElements-18, ScatterND-18, reduction add, mul, max, min
// data: [rows, inner] any
// indices: [...] i32, negative from the end
// updates: [...] any
// y: [rows, inner] any
// STARTS: `fits`, whether updates may reach the element at all, and where they begin; BODY: whether
// update `k` `hits` it, and its flat place `at`; NEXT: `total` with the update `v`
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    inner: u32,
    count: u32,
}
@group(0) @binding(0) var<storage, read> data: array<T>;
@group(0) @binding(1) var<storage, read> indices: array<i32>;
@group(0) @binding(2) var<storage, read> updates: array<T>;
@group(0) @binding(3) var<storage, read_write> y: array<T>;
@group(0) @binding(4) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
//# include lib/wrap_index.wgsl
//# include lib/float.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
    var total = load_data(i);
${STARTS}
    for (var k = 0u; fits && k < params.count; k++) {
${BODY}
        if (hits) {
            let v = load_updates(at);
            total = ${NEXT};
        }
    }
    store_y(i, total);
}
