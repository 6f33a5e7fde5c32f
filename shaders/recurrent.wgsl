// LSTM, GRU or RNN over whole sequences, the states in workgroup memory.
// spec: ONNX LSTM-22, GRU-22, RNN-22
// gates: [steps and sequences, directions, gates, hidden] f32, the products of the input
// r: [directions, hidden / 4, gates, hidden, 4] f32, the recurrence weights, padded with zeros
// b: [directions, 2, gates, hidden] f32
// p: [directions, 3, hidden] f32, peepholes
// sequence_lens: [sequences] i32
// initial_h: [directions, sequences, hidden] f32
// initial_c: [directions, sequences, hidden] f32
// y: [steps, directions, sequences, hidden] f32
// y_h: [directions, sequences, hidden] f32
// y_c: [directions, sequences, hidden] f32
// flags: LSTM | GRU | RNN (the cell), BIAS, PEEPHOLES, LENGTHS, INITIAL_H, INITIAL_C (inputs given), WANT_Y, WANT_H, WANT_C (outputs), COUPLED (input_forget), LINEAR (linear_before_reset)
// ACTIVATIONS: limited, activate_f, activate_g, activate_h
// dispatch: one workgroup runs one direction of one sequence, an invocation one hidden unit
struct Params {
    steps: u32,
    hidden: u32,
    directions: u32,
    backwards: u32,
    x_step: u32,
    x_sequence: u32,
    y_step: u32,
    y_sequence: u32,
    y_direction: u32,
    state_sequence: u32,
    state_direction: u32,
}
@group(0) @binding(0) var<storage, read> gates: array<T>;
@group(0) @binding(1) var<storage, read> r: array<T>;
//# if BIAS
@group(0) @binding(2) var<storage, read> b: array<T>;
//# endif
//# if PEEPHOLES
@group(0) @binding(3) var<storage, read> p: array<T>;
//# endif
//# if LENGTHS
@group(0) @binding(4) var<storage, read> sequence_lens: array<i32>;
//# endif
//# if INITIAL_H
@group(0) @binding(5) var<storage, read> initial_h: array<T>;
//# endif
//# if INITIAL_C
@group(0) @binding(6) var<storage, read> initial_c: array<T>;
//# endif
//# if WANT_Y
@group(0) @binding(7) var<storage, read_write> y: array<T>;
//# endif
//# if WANT_H
@group(0) @binding(8) var<storage, read_write> y_h: array<T>;
//# endif
//# if WANT_C
@group(0) @binding(9) var<storage, read_write> y_c: array<T>;
//# endif
@group(0) @binding(10) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
// two states in turn, and the one that a GRU has reset
var<workgroup> states: array<f32, 3 * WORKGROUP_SIZE>;
//# include lib/float.wgsl
//# include lib/exp.wgsl
//# include lib/log.wgsl
//# include lib/hyperbolic.wgsl

fn previous(at: u32, k: u32) -> f32 {
    return states[at + k];
}

${ACTIVATIONS}
//# include lib/recurrent.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let sequence = group.x;
    let direction = group.y;
    let is_unit = lane < params.hidden;
    let unit = min(lane, params.hidden - 1u);
    let row = sequence * params.state_sequence + direction * params.state_direction;
    let place = row * params.hidden + unit;
    let length = length_of(sequence);
    var h = 0.0;
    var c = 0.0;
//# if INITIAL_H
    h = select(0.0, load_initial_h(place), is_unit);
//# endif
//# if INITIAL_C
    c = load_initial_c(place);
//# endif
    states[lane] = h;
    workgroupBarrier();
    for (var step = 0u; step < params.steps; step += 1u) {
        let old = (step & 1u) * WORKGROUP_SIZE;
        let t = time_of(step, length, direction);
        let at = gates_of(t, sequence, direction);
//# if LSTM
        let new_state = lstm_cell(products(old, direction, unit), at, direction, unit, c);
        let new_h = new_state.x;
        c = select(c, new_state.y, step < length);
//# endif
//# if GRU
        let sums = products(old, direction, unit);
        let reset = gru_gate(sums.y, at, direction, 1u, unit);
        let z = gru_gate(sums.x, at, direction, 0u, unit);
        let recurrence_bias = bias(direction, 5u, unit);
//# if LINEAR
        let recurrence = reset * (sums.z + recurrence_bias);
//# else
        states[2u * WORKGROUP_SIZE + lane] = select(0.0, reset * h, is_unit);
        workgroupBarrier();
        let product_h = product(2u * WORKGROUP_SIZE, direction, 2u, unit);
        let recurrence = product_h + recurrence_bias;
//# endif
        let new_h = gru_cell(z, h, recurrence, at, direction, unit);
//# endif
//# if RNN
        let x = input_of(at, direction, 0u, unit, true) + product(old, direction, 0u, unit);
        let new_h = activate_f(limited(x), direction);
//# endif
        h = select(h, new_h, step < length && is_unit);
//# if WANT_Y
        if (is_unit) {
            store_y(y_of(t, sequence, direction) + unit, select(0.0, h, step < length));
        }
//# endif
        states[WORKGROUP_SIZE - old + lane] = h;
        workgroupBarrier();
    }
    if (is_unit) {
//# if WANT_H
        store_y_h(place, h);
//# endif
//# if WANT_C
        store_y_c(place, c);
//# endif
    }
}
