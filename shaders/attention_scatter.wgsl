// A cache with an update written along one axis, from a start of each batch entry on.
// spec: ONNX TensorScatter-24
// past_cache: [outer, capacity, inner] any
// update: [outer, length, inner] any
// write_indices: [batch] i32, the starts
// present_cache: [outer, capacity, inner] any
// flags: INDICES (write_indices are given, else 0), CIRCULAR (goes on at the front)
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    capacity: u32,
    length: u32,
    inner: u32,
    per_batch: u32,
}
@group(0) @binding(0) var<storage, read> past_cache: array<T>;
@group(0) @binding(1) var<storage, read> update: array<T>;
//# if INDICES
@group(0) @binding(2) var<storage, read> write_indices: array<i32>;
//# endif
@group(0) @binding(3) var<storage, read_write> present_cache: array<T>;
@group(0) @binding(4) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
//# if INDICES
    let start = i32(load_write_indices(i / params.per_batch));
//# else
    let start = 0;
//# endif
    let capacity = i32(params.capacity);
    var behind = i32(i / params.inner % params.capacity) - start;
//# if CIRCULAR
    behind = (behind % capacity + capacity) % capacity;
//# endif
    let outer = i / params.inner / params.capacity;
    let source = (outer * params.length + u32(max(behind, 0))) * params.inner + i % params.inner;
    var value = ${T}();
    if (behind >= 0 && behind < i32(params.length)) {
        value = load_update(source);
    } else {
        value = load_past_cache(i);
    }
    store_present_cache(i, value);
}
