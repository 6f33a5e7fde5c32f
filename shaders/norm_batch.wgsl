// Batch normalisation with given statistics.
// spec: ONNX BatchNormalization-15 (training_mode 0)
// x: [batch, channels, spatial] f32
// scale: [channels] f32
// b: [channels] f32
// input_mean: [channels] f32
// input_var: [channels] f32
// y: [batch, channels, spatial] f32
// flags: VEC4 (4 divides spatial)
// dispatch: one workgroup computes WORKGROUP_SIZE elements, or four times as many
struct Params {
    size: u32,
    channels: u32,
    spatial: u32,
    epsilon: f32,
}
@group(0) @binding(0) var<storage, read> x: array<T>;
@group(0) @binding(1) var<storage, read> scale: array<T>;
@group(0) @binding(2) var<storage, read> b: array<T>;
@group(0) @binding(3) var<storage, read> input_mean: array<T>;
@group(0) @binding(4) var<storage, read> input_var: array<T>;
@group(0) @binding(5) var<storage, read_write> y: array<T>;
@group(0) @binding(6) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/index.wgsl

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
    let factor = load_scale(channel) / sqrt(load_input_var(channel) + params.epsilon);
    let middle = load_input_mean(channel);
    let shift = load_b(channel);
//# if VEC4
    store4_y(i, (load4_x(i) - middle) * factor + shift);
//# else
    store_y(i, (load_x(i) - middle) * factor + shift);
//# endif
}
