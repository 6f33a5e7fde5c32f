// A window of cosines: mean - first * cos(a) + second * cos(2 a), a a turn of the period.
// spec: ONNX HannWindow-17, HammingWindow-17, BlackmanWindow-17
// y: [size] f32
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    period: u32,
    mean: f32,
    first: f32,
    second: f32,
}
@group(0) @binding(0) var<storage, read_write> y: array<T>;
@group(0) @binding(1) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
//# include lib/float.wgsl
//# include lib/trigonometry.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
    let angle = f32(i) / f32(params.period) * 6.28318531;
    let cosine = cos_f32(angle);
    // cos(2 a) = 2 cos(a)^2 - 1
    let twice = 2.0 * cosine * cosine - 1.0;
    store_y(i, (params.mean - params.first * cosine) + params.second * twice);
}
