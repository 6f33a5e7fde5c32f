// The states before the first step: two hidden ones that take turns, and the cell state.
// spec: ONNX LSTM-22, GRU-22, RNN-22
// initial_h: [directions, sequences, hidden] f32
// initial_c: [directions, sequences, hidden] f32
// states: [3, directions, sequences, padded] f32, padded with zeros
// flags: INITIAL_H, INITIAL_C (inputs given)
// dispatch: one workgroup writes WORKGROUP_SIZE elements
struct Params {
    size: u32,
    sequences: u32,
    hidden: u32,
    padded: u32,
    directions: u32,
    state_sequence: u32,
    state_direction: u32,
}
//# if INITIAL_H
@group(0) @binding(0) var<storage, read> initial_h: array<T>;
//# endif
//# if INITIAL_C
@group(0) @binding(1) var<storage, read> initial_c: array<T>;
//# endif
@group(0) @binding(2) var<storage, read_write> states: array<T>;
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
    let unit = i % params.padded;
    let sequence = i / params.padded % params.sequences;
    let direction = i / params.padded / params.sequences % params.directions;
    let part = i / params.padded / params.sequences / params.directions;
    let row = sequence * params.state_sequence + direction * params.state_direction;
    let place = row * params.hidden + min(unit, params.hidden - 1u);
    var value = 0.0;
    if (unit < params.hidden) {
//# if INITIAL_H
        if (part == 0u) {
            value = load_initial_h(place);
        }
//# endif
//# if INITIAL_C
        if (part == 2u) {
            value = load_initial_c(place);
        }
//# endif
    }
    store_states(i, value);
}
