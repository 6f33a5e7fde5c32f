// start, start + delta, start + 2 delta, ...; start and delta are words of the element type.
// spec: ONNX Range-27
// y: [size] f32, i32 or u32
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
}
@group(0) @binding(0) var<storage, read_write> y: array<T>;
@group(0) @binding(1) var<uniform> params: Params;
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
    store_y(i, params.start + ${T}(i) * params.delta);
}
