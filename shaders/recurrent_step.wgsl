// One time step of LSTM, GRU or RNN.
// spec: ONNX LSTM-22, GRU-22, RNN-22
// gates: [steps and sequences, directions, gates, hidden] f32, the products of the input
// r: [directions, hidden / 4, gates, hidden, 4] f32, the recurrence weights, padded with zeros
// b: [directions, 2, gates, hidden] f32
// p: [directions, 3, hidden] f32, peepholes
// sequence_lens: [sequences] i32
// states: [3, directions, sequences, padded] f32, see recurrent_start.wgsl
// y: [steps, directions, sequences, hidden] f32
// flags: LSTM | GRU | RNN (the cell), BIAS, PEEPHOLES, LENGTHS (inputs given), WANT_Y (output), COUPLED (input_forget), LINEAR (linear_before_reset), RESET (with GRU): only resets its state, ROUNDED (with LSTM): to the 256 levels of the range of all states of a direction
// ACTIVATIONS: limited, activate_f, activate_g, activate_h
// dispatch: one workgroup computes WORKGROUP_SIZE hidden units of a direction of a sequence, repeated for each step
struct Params {
    steps: u32,
    sequences: u32,
    hidden: u32,
    padded: u32,
    directions: u32,
    backwards: u32,
    x_step: u32,
    x_sequence: u32,
    y_step: u32,
    y_sequence: u32,
    y_direction: u32,
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
@group(0) @binding(5) var<storage, read_write> states: array<T>;
//# if WANT_Y
@group(0) @binding(6) var<storage, read_write> y: array<T>;
//# endif
@group(0) @binding(7) var<uniform> params: Params;
override WORKGROUP_SIZE: u32 = 64u;
//# include lib/float.wgsl
//# include lib/exp.wgsl
//# include lib/log.wgsl
//# include lib/hyperbolic.wgsl

//# if ROUNDED
var<private> level_step: f32;
var<private> level_zero: f32;
var<workgroup> shared_values: array<f32, WORKGROUP_SIZE>;
//# include lib/tree.wgsl

fn previous(at: u32, k: u32) -> f32 {
    let level = clamp(round(load_states(at + k) / level_step) + level_zero, 0.0, 255.0);
    return (level - level_zero) * level_step;
}
//# else
fn previous(at: u32, k: u32) -> f32 {
    return load_states(at + k);
}
//# endif

${ACTIVATIONS}
//# include lib/recurrent.wgsl

fn state_of(part: u32, sequence: u32, direction: u32) -> u32 {
    let row = (part * params.directions + direction) * params.sequences + sequence;
    return row * params.padded;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let sequence = group.y;
    let direction = group.z;
    let unit = group.x * WORKGROUP_SIZE + lane;
    let step = repeat_index();
//# if ROUNDED
    // the range contains 0, as which the padding counts
    var low = 0.0;
    var high = 0.0;
    let all = state_of(step & 1u, 0u, direction);
    for (var i = lane; i < params.sequences * params.padded; i += WORKGROUP_SIZE) {
        low = min(low, load_states(all + i));
        high = max(high, load_states(all + i));
    }
    low = -tree_max(lane, -low);
    high = tree_max(lane, high);
    level_step = select((high - low) / 255.0, 1.0, low == high);
    level_zero = clamp(round(-low / level_step), 0.0, 255.0);
//# endif
    if (unit >= params.hidden) {
        return;
    }
    let length = length_of(sequence);
    let old = state_of(step & 1u, sequence, direction);
    let other = state_of(2u, sequence, direction);
    let t = time_of(step, length, direction);
    let at = gates_of(t, sequence, direction);
    let h = load_states(old + unit);
//# if RESET
    let sum = product(old, direction, 1u, unit);
    store_states(other + unit, gru_gate(sum, at, direction, 1u, unit) * h);
//# else
//# if LSTM
    let c = load_states(other + unit);
    let new_state = lstm_cell(products(old, direction, unit), at, direction, unit, c);
    let new_h = new_state.x;
    store_states(other + unit, select(c, new_state.y, step < length));
//# endif
//# if GRU
    let recurrence_bias = bias(direction, 5u, unit);
//# if LINEAR
    let sums = products(old, direction, unit);
    let z = gru_gate(sums.x, at, direction, 0u, unit);
    let reset = gru_gate(sums.y, at, direction, 1u, unit);
    let recurrence = reset * (sums.z + recurrence_bias);
//# else
    let z = gru_gate(product(old, direction, 0u, unit), at, direction, 0u, unit);
    let recurrence = product(other, direction, 2u, unit) + recurrence_bias;
//# endif
    let new_h = gru_cell(z, h, recurrence, at, direction, unit);
//# endif
//# if RNN
    let x = input_of(at, direction, 0u, unit, true) + product(old, direction, 0u, unit);
    let new_h = activate_f(limited(x), direction);
//# endif
    let kept = select(h, new_h, step < length);
    store_states(state_of(1u - (step & 1u), sequence, direction) + unit, kept);
//# if WANT_Y
    store_y(y_of(t, sequence, direction) + unit, select(0.0, kept, step < length));
//# endif
//# endif
}
