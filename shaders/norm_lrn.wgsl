// Local response normalisation over neighbouring channels.
// spec: ONNX LRN-13
// x: [batch, channels, spatial] f32
// y: [batch, channels, spatial] f32
// flags: VEC4 (4 divides spatial), ROOTS (beta is 3/4)
// dispatch: one workgroup computes WORKGROUP_SIZE elements, or four times as many
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
//# if VEC4
alias Value = vec4<f32>;
fn load(i: u32) -> Value { return load4_x(i); }
fn store(i: u32, v: Value) { store4_y(i, v); }
//# else
alias Value = f32;
fn load(i: u32) -> Value { return load_x(i); }
fn store(i: u32, v: Value) { store_y(i, v); }
//# endif

//# if ROOTS
fn power(base: Value) -> Value {
    let root = sqrt(base);
    return root * sqrt(root);
}
//# else
//# include lib/pow.wgsl
fn power_of(base: f32) -> f32 {
    return pow_f32(base, params.beta);
}
//# if VEC4
fn power(v: Value) -> Value {
    return Value(power_of(v.x), power_of(v.y), power_of(v.z), power_of(v.w));
}
//# else
fn power(base: Value) -> Value {
    return power_of(base);
}
//# endif
//# endif

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
//# if VEC4
    let i = flat_index(id, groups) * 4u;
//# else
    let i = flat_index(id, groups);
//# endif
    if (i >= params.size) {
        return;
    }
    let channel = i / params.spatial % params.channels;
    let first = i - min(channel, params.before) * params.spatial;
    let last = i + min(params.channels - 1u - channel, params.after) * params.spatial;
    var square = Value();
    for (var j = first; j <= last; j += params.spatial) {
        let v = load(j);
        square += v * v;
    }
    store(i, load(i) / power(params.bias + params.alpha * square));
}
