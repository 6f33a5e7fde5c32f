// Floats rounded to the levels of a scale and a zero point, as floats; four an invocation.
// spec: ONNX DynamicQuantizeLinear-11, DequantizeLinear-25
// x: [size] float32
// scale: [] float32
// zero_point: [] uint8
// y: [size] float32
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

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups) * 4u;
    if (i >= params.size) {
        return;
    }
    let step = load_scale(0u);
    let zero = vec4<f32>(f32(load_zero_point(0u)));
    let levels = round(load4_x(i) / vec4<f32>(step)) + zero;
    store4_y(i, (clamp(levels, vec4<f32>(), vec4<f32>(255.0)) - zero) * step);
}
