"""Reductions, ArgMax and ArgMin, and cumulative sums and products."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import SPECIAL, Array, Data, Form, is_float

SUMS = ("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare")
LOGS = ("ReduceLogSum", "ReduceLogSumExp")
EXTREMES = ("ReduceMax", "ReduceMin")
NEEDS_ELEMENTS = (*EXTREMES, "ReduceMean", *LOGS)
"""Operators whose value for no element is undefined or left to infinities."""


def axes_of(form: Form, rank: int) -> list[int]:
    """Some axes, or none, each counted from either end."""
    axes = form.some(range(rank), 0 if form.chance(0.2) else 1)
    return [a - rank if form.chance(0.4) else a for a in axes]


@draws(*SUMS, *LOGS, *EXTREMES, "ReduceProd")
def reduction(op: str, form: Form, data: Data) -> Case:
    """Axes as an attribute, since version 13 (ReduceSum) or 18 as an input."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(1 if op == "ReduceLogSumExp" else 0)
    attrs: dict[str, Any] = form.maybe({"keepdims": form.int(0, 1)}, 0.7)
    axes = axes_of(form, rank) if form.chance(0.8) else None
    as_input = opset >= (13 if op == "ReduceSum" else 18)
    if opset < 11 and axes is not None:
        axes = [a % rank for a in axes]
    if as_input:
        attrs |= form.maybe({"noop_with_empty_axes": form.int(0, 1)}, 0.4)
    elif axes:
        attrs["axes"] = axes
    small = op == "ReduceProd"
    shape = data.shape(rank, 1 if op in NEEDS_ELEMENTS else 0, long=not small)
    low, high = {"ReduceLogSum": (0.1, 4), "ReduceProd": (-1.5, 1.5)}.get(op, (-4, 4))
    edges = SPECIAL if op in ("ReduceSum", "ReduceMean", *EXTREMES) else ()
    x = data.array(dtype, shape, low, high, edges)
    inputs: list[Array | None] = [x]
    if as_input and axes is not None:
        inputs.append(np.asarray(axes, np.int64))
    return Case(inputs, attrs, opset, tol=1e-5)


@draws("ArgMax", "ArgMin")
def arg(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(1)
    axis = form.axis(rank) if opset >= 11 else form.int(0, rank - 1)
    attrs: dict[str, Any] = form.maybe({"axis": axis}, 0.8)
    attrs |= form.maybe({"keepdims": form.int(0, 1)})
    if opset >= 12:
        attrs |= form.maybe({"select_last_index": form.int(0, 1)})
    shape = list(data.shape(rank))
    at = attrs.get("axis", 0)
    shape[at] = max(shape[at], 1)
    return Case([data.array(dtype, shape)], attrs, opset)


@draws("CumSum", "CumProd")
def cumulative(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(1)
    names = ("exclusive", "reverse")
    attrs: dict[str, Any] = {n: form.int(0, 1) for n in names if form.chance(0.5)}
    axis = np.asarray(form.axis(rank), form.one_of([np.int64, np.int32]))
    limit = 4 if op == "CumSum" else 1.5
    edges = SPECIAL if op == "CumSum" and is_float(dtype) else ()
    x = data.array(dtype, data.shape(rank, long=op == "CumSum"), -limit, limit, edges)
    return Case([x, axis], attrs, opset, tol=1e-5)
