"""Operators that cut and join: Slice, Split, Concat."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import SPECIAL, Array, Data, Form

STARTS = (0, 1, -1, -2, 2, 100, -100)
ENDS = (0, 1, 3, -1, 100, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
STEPS = (1, 1, 2, -1, -2, 3)


def some_range(form: Form, step: int) -> tuple[int, int]:
    """A start and an end, mostly such that something lies between them."""
    if form.chance(0.1):
        return form.one_of(STARTS), form.one_of(ENDS)
    if step > 0:
        return form.one_of([0, 1, -2, -100]), form.one_of([100, 2**31 - 1, 3, -1, 2**63 - 1])
    return form.one_of([-1, 100, 2]), form.one_of([-(2**31), -100, 0, -(2**63)])


@draws("Slice")
def slicing(op: str, form: Form, data: Data) -> Case:
    """As attributes before version 10, as inputs since; beyond either end, and backwards."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(1)
    x = data.array(dtype, data.shape(rank), edges=SPECIAL)
    axes = form.some(range(rank), 1)
    steps = [form.one_of(STEPS) if opset >= 10 else 1 for _ in axes]
    ranges = [some_range(form, step) for step in steps]
    starts, ends = [first for first, _ in ranges], [last for _, last in ranges]
    given = form.chance(0.8)
    if not given:
        axes = list(range(len(axes)))
    elif opset >= 10:
        axes = [a - rank if form.chance(0.4) else a for a in axes]
    if opset < 10:
        attrs: dict[str, Any] = {
            "starts": starts,
            "ends": ends,
            **({"axes": axes} if given else {}),
        }
        return Case([x], attrs, opset, tol=0)
    kind = form.one_of([np.int64, np.int32])
    if kind is np.int32:
        ends = [min(max(e, -(2**31)), 2**31 - 1) for e in ends]
    inputs: list[Array | None] = [x, np.asarray(starts, kind), np.asarray(ends, kind)]
    inputs.append(np.asarray(axes, kind) if given else None)
    if any(s != 1 for s in steps) or form.chance(0.3):
        inputs.append(np.asarray(steps, kind))
    elif not given:
        inputs.pop()
    return Case(inputs, {}, opset, tol=0)


@draws("Split")
def split(op: str, form: Form, data: Data) -> Case:
    """Into sizes (an attribute before version 13), equal parts, or a number of parts since 18."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(1, 5)
    axis = form.axis(rank) if opset >= 11 else form.int(0, rank - 1)
    attrs: dict[str, Any] = {"axis": axis} if axis or form.chance(0.5) else {}
    count = form.one_of([2, 1, 3, 4, 9])
    outputs = [True] * count
    shape = list(data.shape(rank, long=False))
    if form.chance(0.5):
        sizes = [data.one_of([1, 2, 4, 0, 8]) for _ in outputs]
        shape[axis] = sum(sizes)
        x = data.array(dtype, shape, edges=SPECIAL)
        if opset < 13:
            return Case([x], {**attrs, "split": sizes}, opset, outputs, tol=0)
        return Case([x, np.asarray(sizes, np.int64)], attrs, opset, outputs, tol=0)
    shape[axis] = count * data.one_of([1, 2, 4, 0])
    if opset >= 18:
        attrs["num_outputs"] = count
        part = max(shape[axis] // count, 1)
        shape[axis] = max(shape[axis] - data.int(0, part - 1), 0)
    return Case([data.array(dtype, shape, edges=SPECIAL)], attrs, opset, outputs, tol=0)


@draws("Concat")
def concat(op: str, form: Form, data: Data) -> Case:
    """Of up to nine inputs: more than a kernel may bind."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(1, 6)
    axis = form.axis(rank) if opset >= 11 else form.int(0, rank - 1)
    shape = list(data.shape(rank, long=False))
    arrays = []
    for _ in range(form.one_of([2, 3, 1, 4, 9])):
        shape[axis] = data.one_of([1, 2, 4, 0, 8])
        arrays.append(data.array(dtype, shape, edges=SPECIAL))
    return Case(arrays, {"axis": axis}, opset, tol=0)
