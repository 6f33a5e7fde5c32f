// Local response normalisation over neighbouring channels, one element an invocation.
// spec: ONNX LRN-13
// x: [batch, channels, spatial] f32
// y: [batch, channels, spatial] f32
// dispatch: one workgroup computes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    channels: u32,
    spatial: u32,
    before: u32,
    after: u32,
    alpha: f32,
    beta: f32,
    bias: f32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read_write> y: array<T>;
@group(0) @binding(2) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl
//# include lib/float.wgsl
//# include lib/pow.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= params.size) {
        return;
    }
    let channel = i / params.spatial % params.channels;
    let first = i - min(channel, params.before) * params.spatial;
    let last = i + min(params.channels - 1u - channel, params.after) * params.spatial;
    var square = 0.0;
    for (var j = first; j <= last; j += params.spatial) {
        let v = load_x(j);
        square += v * v;
    }
    store_y(i, load_x(i) / pow_f32(params.bias + params.alpha * square, params.beta));
}
