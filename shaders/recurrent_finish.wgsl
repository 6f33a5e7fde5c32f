// The states after the last step, as the operator returns them.
// spec: ONNX LSTM-22, GRU-22, RNN-22
// states: [3, directions, sequences, padded] f32, see recurrent_start.wgsl
// y_h: [directions, sequences, hidden] f32
// y_c: [directions, sequences, hidden] f32
// flags: WANT_H, WANT_C (outputs)
// dispatch: one workgroup copies WORKGROUP_SIZE elements of each
struct Params {
    size: u32,
    steps: u32,
    sequences: u32,
    hidden: u32,
    padded: u32,
    directions: u32,
    state_sequence: u32,
    state_direction: u32,
}
@group(0) @binding(0) var<storage, read> states: array<T>;
//# if WANT_H
@group(0) @binding(1) var<storage, read_write> y_h: array<T>;
//# endif
//# if WANT_C
@group(0) @binding(2) var<storage, read_write> y_c: array<T>;
//# endif
@group(0) @binding(3) var<uniform> params: Params;
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
    let unit = i % params.hidden;
    let sequence = i / params.hidden % params.sequences;
    let direction = i / params.hidden / params.sequences;
    let row = sequence * params.state_sequence + direction * params.state_direction;
    let place = row * params.hidden + unit;
    let part = params.directions * params.sequences * params.padded;
    let origin = (direction * params.sequences + sequence) * params.padded + unit;
//# if WANT_H
    store_y_h(place, load_states((params.steps & 1u) * part + origin));
//# endif
//# if WANT_C
    store_y_c(place, load_states(2u * part + origin));
//# endif
}
