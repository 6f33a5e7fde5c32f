// uint8 levels of floats by one scale and zero point, four neighbours an invocation.
// spec: ONNX DynamicQuantizeLinear-11
// x: [size] float32
// scale: [] float32
// zero_point: [] uint8
// y: [size] uint8
// dispatch: one workgroup computes 4 * WORKGROUP_SIZE elements
struct Params {
    size: u32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> scale: array<T>;
@group(0) @binding(2) var<storage, read> zero_point: array<T>;
@group(0) @binding(3) var<storage, read_write> y: array<T>;
@group(0) @binding(4) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
//# include lib/level.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups) * 4u;
    if (i >= params.size) {
        return;
    }
    let scaled = load4_x(i) / vec4<f32>(load_scale(0u));
    let zero = f32(load_zero_point(0u));
    let levels = vec4<f32>(
        level(scaled.x, zero, 0.0, 255.0),
        level(scaled.y, zero, 0.0, 255.0),
        level(scaled.z, zero, 0.0, 255.0),
        level(scaled.w, zero, 0.0, 255.0),
    );
    store4_y(i, vec4<u32>(levels));
}
