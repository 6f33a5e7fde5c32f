// A window of cosines: mean - first * cos(a) + second * cos(2 a), a a turn of the period.
// Where they begin it is `edge`; with s = sin(a / 2), cos(a) is 1 - 2 s^2, which is exact there.
// spec: ONNX HannWindow-17, HammingWindow-17, BlackmanWindow-17
// y: [size] f32
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    period: u32,
    edge: f32,
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
    let nearer = min(i, params.period - min(i, params.period));
    let sine = sin_f32(f32(nearer) / f32(params.period) * 3.14159265);
    let rise = 2.0 * sine * sine;
    let slope = params.first - 2.0 * params.second * (2.0 - rise);
    store_y(i, params.edge + rise * slope);
}
