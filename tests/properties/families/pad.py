"""Pad, by numbers or by the tensor's own elements, and with negative amounts, which cut."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.test_pad import reference_pad
from tests.properties.cases import Case, draws
from tests.properties.drawing import Array, Data, Form, is_float

BECAUSE = "it refuses negative amounts"


@draws("Pad")
def pad(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    modes = ["constant", "edge", "reflect", *(["wrap"] if opset >= 19 else [])]
    mode = form.one_of(modes)
    rank = form.rank(1, 5)
    axes = form.some(range(rank), 1) if opset >= 18 and form.chance(0.4) else None
    some = list(range(rank)) if axes is None else axes
    shape = list(data.shape(rank, 0 if mode == "constant" else 1, long=False))
    before, after = [], []
    for axis in some:
        most = {"reflect": shape[axis] - 1, "constant": 3}.get(mode, shape[axis])
        pair = [min(data.one_of([0, 1, 2, 3, -1, 5]), most) for _ in range(2)]
        least = 0 if mode == "constant" else 1
        if shape[axis] + min(pair[0], 0) + min(pair[1], 0) < least or mode != "constant":
            pair = [max(p, 0) for p in pair]
        before.append(pair[0])
        after.append(pair[1])
    pads = before + after
    attrs: dict[str, Any] = form.maybe({"mode": mode}, 0.5 if mode == "constant" else 1)
    x = data.array(dtype, shape)
    number = 2.5 if is_float(dtype) else 1
    value = np.asarray(number).astype(dtype) if form.chance(0.6) and mode == "constant" else None
    counted = None if axes is None else [a - rank if form.chance(0.4) else a for a in axes]

    def oracle(x: Array, *_: Array | None) -> Array:
        fill = 0 if value is None else value
        return np.asarray(reference_pad(x, pads, fill, some, mode))

    if opset < 11:
        attrs["pads"] = pads
        attrs |= {} if value is None else {"value": float(value)}
        return Case([x], attrs, opset, tol=0, oracle=oracle, because=BECAUSE)
    inputs: list[Array | None] = [x, np.asarray(pads, np.int64), value]
    if counted is not None:
        inputs.append(np.asarray(counted, form.one_of([np.int64, np.int32])))
    elif value is None:
        inputs.pop()
    return Case(inputs, attrs, opset, tol=0, oracle=oracle, because=BECAUSE)
