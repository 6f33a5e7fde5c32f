// Each element of x at its place in y, of several the last one; nothing where the place is outside.
// spec: ONNX MaxUnpool-22
// x: [size] f32
// indices: [size] i32, flat places in the tensor that was pooled
// winners: [places] u32, one more than the last element for each place, 0 for none
// y: [...] f32, filled with zeros before
// flags: CLAIM (finds the winners, else they are known)
// text: MAP with `target_of`, from a place to the element of y
// dispatch: one workgroup places WORKGROUP_SIZE elements
struct Params {
    size: u32,
    places: u32,
}
@group(0) @binding(0) var<storage, read> indices: array<i32>;
//# if CLAIM
@group(0) @binding(1) var<storage, read_write> winners: array<u32>;
//# else
@group(0) @binding(2) var<storage, read> winners: array<u32>;
@group(0) @binding(3) var<storage, read> x: array<T>;
@group(0) @binding(4) var<storage, read_write> y: array<T>;
//# endif
@group(0) @binding(5) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
//# include lib/wrap_index.wgsl

//# if not CLAIM
${MAP}
//# endif
@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
    let place = wrap_index(i32(load_indices(i)), params.places);
    if (place >= params.places) {
        return;
    }
//# if CLAIM
    max_winners(place, i + 1u);
//# else
    if (load_winners(place) == i + 1u) {
        store_y(target_of(place), load_x(i));
    }
//# endif
}
