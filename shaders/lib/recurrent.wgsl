// The cells of LSTM, GRU and RNN for one hidden unit of one sequence.
// Calls `previous(at, k)`, element k of a state, and the generated `limited` and `activate_*`.
//# if LSTM
const GATES: u32 = 4u;
//# endif
//# if GRU
const GATES: u32 = 3u;
//# endif
//# if RNN
const GATES: u32 = 1u;
//# endif

// Where the gates of a time step lie.
fn gates_of(t: u32, sequence: u32, direction: u32) -> u32 {
    let row = t * params.x_step + sequence * params.x_sequence;
    return (row * params.directions + direction) * GATES * params.hidden;
}

fn y_of(t: u32, sequence: u32, direction: u32) -> u32 {
    let row = t * params.y_step + sequence * params.y_sequence + direction * params.y_direction;
    return row * params.hidden;
}

fn length_of(sequence: u32) -> u32 {
//# if LENGTHS
    return min(u32(max(load_sequence_lens(sequence), 0)), params.steps);
//# else
    return params.steps;
//# endif
}

// The time of a step; steps past the end of a sequence are those past its last element.
fn time_of(step: u32, length: u32, direction: u32) -> u32 {
    let backwards = ((direction + params.backwards) & 1u) == 1u;
    return select(step, length - 1u - step, backwards && step < length);
}

fn bias(direction: u32, row: u32, unit: u32) -> f32 {
//# if BIAS
    return load_b((direction * 2u * GATES + row) * params.hidden + unit);
//# else
    return 0.0;
//# endif
}

// What the input and the biases add to a gate; the bias of the recurrence only where `both`.
fn input_of(at: u32, direction: u32, gate: u32, unit: u32, both: bool) -> f32 {
    let x = load_gates(at + gate * params.hidden + unit) + bias(direction, gate, unit);
    return select(x, x + bias(direction, GATES + gate, unit), both);
}

fn four(at: u32, k: u32) -> vec4<f32> {
    return vec4<f32>(
        previous(at, k), previous(at, k + 1u), previous(at, k + 2u), previous(at, k + 3u)
    );
}

fn total(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

fn weights_of(direction: u32) -> u32 {
    return direction * ((params.hidden + 3u) / 4u) * GATES * params.hidden * 4u;
}

//# if LSTM
// The recurrence of the four gates.
fn products(at: u32, direction: u32, unit: u32) -> vec4<f32> {
    let gate = params.hidden * 4u;
    var place = weights_of(direction) + unit * 4u;
    var i = vec4<f32>();
    var o = vec4<f32>();
    var f = vec4<f32>();
    var c = vec4<f32>();
    for (var k = 0u; k < params.hidden; k += 4u) {
        let h = four(at, k);
        i += h * load4_r(place);
        o += h * load4_r(place + gate);
        f += h * load4_r(place + 2u * gate);
        c += h * load4_r(place + 3u * gate);
        place += 4u * gate;
    }
    return vec4<f32>(total(i), total(o), total(f), total(c));
}

fn peephole(direction: u32, row: u32, unit: u32, c: f32) -> f32 {
//# if PEEPHOLES
    return load_p((direction * 3u + row) * params.hidden + unit) * c;
//# else
    return 0.0;
//# endif
}

// The new hidden and cell state.
fn lstm_cell(sums: vec4<f32>, at: u32, direction: u32, unit: u32, c: f32) -> vec2<f32> {
    let i_in = sums.x + input_of(at, direction, 0u, unit, true) + peephole(direction, 0u, unit, c);
    let i = activate_f(limited(i_in), direction);
//# if COUPLED
    let f = 1.0 - i;
//# else
    let f_in = sums.z + input_of(at, direction, 2u, unit, true) + peephole(direction, 2u, unit, c);
    let f = activate_f(limited(f_in), direction);
//# endif
    let g_in = sums.w + input_of(at, direction, 3u, unit, true);
    let new_c = f * c + i * activate_g(limited(g_in), direction);
    let o_in = sums.y + input_of(at, direction, 1u, unit, true)
        + peephole(direction, 1u, unit, new_c);
    let o = activate_f(limited(o_in), direction);
    return vec2<f32>(o * activate_h(new_c, direction), new_c);
}
//# else
// The recurrence of one gate.
fn product(at: u32, direction: u32, gate: u32, unit: u32) -> f32 {
    var place = weights_of(direction) + (gate * params.hidden + unit) * 4u;
    var sum = vec4<f32>();
    for (var k = 0u; k < params.hidden; k += 4u) {
        sum += four(at, k) * load4_r(place);
        place += GATES * params.hidden * 4u;
    }
    return total(sum);
}
//# endif
//# if GRU
// The recurrence of the gates that see the state as it is: update, reset, and with LINEAR the rest.
fn products(at: u32, direction: u32, unit: u32) -> vec3<f32> {
    let gate = params.hidden * 4u;
    var place = weights_of(direction) + unit * 4u;
    var update = vec4<f32>();
    var reset = vec4<f32>();
    var candidate = vec4<f32>();
    for (var k = 0u; k < params.hidden; k += 4u) {
        let h = four(at, k);
        update += h * load4_r(place);
        reset += h * load4_r(place + gate);
//# if LINEAR
        candidate += h * load4_r(place + 2u * gate);
//# endif
        place += 3u * gate;
    }
    return vec3<f32>(total(update), total(reset), total(candidate));
}

// Gate 0 (update) or 1 (reset).
fn gru_gate(sum: f32, at: u32, direction: u32, gate: u32, unit: u32) -> f32 {
    return activate_f(limited(sum + input_of(at, direction, gate, unit, true)), direction);
}

// The new state; `recurrence` is what the state adds to the candidate, without its bias.
fn gru_cell(z: f32, h: f32, recurrence: f32, at: u32, direction: u32, unit: u32) -> f32 {
    let x = input_of(at, direction, 2u, unit, false) + recurrence;
    return (1.0 - z) * activate_g(limited(x), direction) + z * h;
}
//# endif
