// Recurrence weights in the order in which kernels read them.
// spec: ONNX LSTM-22, GRU-22, RNN-22
// weights: [directions, gates, hidden, hidden] f32
// y: [directions, hidden / 4, gates, hidden, 4] f32, padded with zeros
// dispatch: one workgroup writes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    hidden: u32,
    gates: u32,
}
@group(0) @binding(0) var<storage, read> weights: array<T>;
@group(0) @binding(1) var<storage, read_write> y: array<T>;
@group(0) @binding(2) var<uniform> params: Params;
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
    let fours = (params.hidden + 3u) / 4u;
    let row = i / 4u % (params.gates * params.hidden);
    let block = i / 4u / (params.gates * params.hidden);
    let column = block % fours * 4u + i % 4u;
    let origin = (block / fours * params.gates * params.hidden + row) * params.hidden;
    let value = load_weights(origin + min(column, params.hidden - 1u));
    store_y(i, select(0.0, value, column < params.hidden));
}
