"""LSTM, GRU and RNN: directions, layouts, lengths, states, activations."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import Array, Data, Form, rounding
from tests.properties.oracles import runtime

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = ("Sigmoid", "Tanh", "Relu", "HardSigmoid", "Softsign", "Elu", "LeakyRelu")
BECAUSE = "it has neither two directions nor lengths"


def options(op: str, form: Form, directions: int) -> dict[str, Any]:
    """Attributes but for sizes, direction and layout."""
    attrs: dict[str, Any] = {}
    if op == "LSTM":
        attrs |= form.maybe({"input_forget": 1}, 0.2)
    if op == "GRU":
        attrs |= form.maybe({"linear_before_reset": form.int(0, 1)}, 0.6)
    attrs |= form.maybe({"clip": 1.5}, 0.2)
    if form.chance(0.3):
        count = {"LSTM": 3, "GRU": 2, "RNN": 1}[op]
        attrs["activations"] = [form.one_of(FUNCTIONS) for _ in range(count)] * directions
    return attrs


@draws("LSTM", "GRU", "RNN")
def recurrent(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op, 7)
    direction = form.one_of(["forward", "reverse", "bidirectional"])
    directions = 2 if direction == "bidirectional" else 1
    hidden, width = form.one_of([3, 1, 4, 8]), form.one_of([2, 1, 4, 5])
    attrs = options(op, form, directions) | ({"direction": direction} if directions > 1 else {})
    attrs |= {"direction": direction, "hidden_size": hidden}
    last = opset >= 14 and form.chance(0.3)
    constants, source = ((1, 2, 3, 7), Data(form)) if form.chance(0.7) else ((), data)
    given = {name: form.chance(0.6) for name in ("b", "lengths", "h", "c", "p")}
    dtype = form.dtype(op, opset)
    steps, batch = data.int(1, 6), data.int(1, 3)
    rows = GATES[op] * hidden

    def noise(origin: Data, *shape: int) -> Array:
        return origin.floats(dtype, shape, -1, 1)

    values: list[Array | None] = [
        noise(data, *((batch, steps) if last else (steps, batch)), width),
        noise(source, directions, rows, width),
        noise(source, directions, rows, hidden),
        noise(source, directions, 2 * rows) if given["b"] else None,
        data.integers(np.dtype(np.int32), (batch,), 1, steps) if given["lengths"] else None,
    ]
    state = (batch, directions) if last else (directions, batch)
    values.append(noise(data, *state, hidden) if given["h"] else None)
    if op == "LSTM":
        values.append(noise(data, *state, hidden) if given["c"] else None)
        values.append(noise(source, directions, 3 * hidden) if given["p"] else None)
    while values[-1] is None:
        values.pop()
    outputs = (True,) * (3 if op == "LSTM" else 2)
    kept = tuple(i for i in constants if i < len(values) and values[i] is not None)
    sized = () if constants else (1, 2, 3, 7)
    # what is not bounded may grow with each step, and errors with it
    free = {*attrs.get("activations", ())} & {"Relu", "Elu", "LeakyRelu"}
    tol = rounding(dtype, 1e-3, 32) if free else rounding(dtype, 2e-5, 8)
    case = Case(values, attrs, opset, outputs, kept, sized, tol=tol)
    if not last:
        return dataclasses.replace(case, oracle="runtime", because=BECAUSE)

    def oracle(*inputs: Array | None) -> list[Array]:
        moved = [
            v.swapaxes(0, 1) if v is not None and i in (0, 5, 6) else v
            for i, v in enumerate(inputs)
        ]
        y, *ends = runtime(op, dataclasses.replace(case, inputs=moved))
        return [y.transpose(2, 0, 1, 3), *(e.swapaxes(0, 1) for e in ends)]

    later = dataclasses.replace(case, attrs={**attrs, "layout": 1})
    return dataclasses.replace(later, oracle=oracle, because=BECAUSE)


@draws("com.microsoft:DynamicQuantizeLSTM")
def rounded(op: str, form: Form, data: Data) -> Case:
    """Weights so small that one level more or less, by rounding, changes little."""
    direction = form.one_of(["forward", "reverse", "bidirectional"])
    directions = 2 if direction == "bidirectional" else 1
    hidden, width = form.one_of([3, 1, 4, 8]), form.one_of([2, 1, 4, 5])
    kind = np.dtype(form.one_of([np.int8, np.uint8]))
    scales = (directions, 4 * hidden) if form.chance(0.3) else (directions,)
    given = {name: form.chance(0.6) for name in ("b", "h", "c")}
    fixed = Data(form)
    steps, batch = data.int(1, 6), data.int(1, 3)
    floats = np.dtype(np.float32)

    def weights(rows: int) -> tuple[Array, Array, Array]:
        levels = fixed.integers(kind, (directions, rows, 4 * hidden), -(2**31), 2**31)
        points = np.full(scales, 128 if kind.kind == "u" else 0, kind)
        return levels, fixed.floats(floats, scales, 0.0005, 0.002), points

    w, w_scale, w_zero = weights(width)
    r, r_scale, r_zero = weights(hidden)
    state = (directions, batch, hidden)
    values: list[Array | None] = [
        data.floats(floats, (steps, batch, width), -1, 1),
        w,
        r,
        fixed.floats(floats, (directions, 8 * hidden), -1, 1) if given["b"] else None,
        None,
        data.floats(floats, state, -1, 1) if given["h"] else None,
        data.floats(floats, state, -1, 1) if given["c"] else None,
        None,
        *(w_scale, w_zero, r_scale, r_zero),
    ]
    attrs = {"direction": direction, "hidden_size": hidden}
    because = "it has no operators of com.microsoft"
    constants = tuple(i for i in (1, 2, 3, 8, 9, 10, 11) if values[i] is not None)
    return Case(
        values, attrs, 21, (True,) * 3, constants, tol=5e-3, oracle="runtime", because=because
    )
