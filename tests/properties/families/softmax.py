"""Softmax, LogSoftmax and Hardmax along one axis, or before version 13 along all from one on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import Array, Data, Form
from tests.properties.oracles import reference


@draws("Softmax", "LogSoftmax", "Hardmax")
def softmax(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    given = form.chance(0.8)
    rank = form.rank(1 if given or opset >= 13 else 2, 8)
    axis = form.axis(rank) if opset >= 11 else form.int(0, rank - 1)
    if not given:
        axis = -1 if opset >= 13 else 1
    shape = list(data.shape(rank))
    axes = [axis % rank] if opset >= 13 else range(axis % rank, rank)
    for i in axes:
        shape[i] = max(shape[i], 1)
    edges = (np.nan, -np.inf, 80.0, -80.0) if op != "Hardmax" else ()
    x = data.floats(dtype, shape, edges=edges)
    attrs: dict[str, Any] = {"axis": axis} if given else {}
    if opset >= 13:
        return Case([x], attrs, each=True)

    def oracle(x: Array) -> list[Array]:
        flat = x.reshape(math.prod(x.shape[: axis % rank]), -1) if x.size else x
        found = reference(op, Case([flat], {"axis": -1}))[0] if x.size else x
        return [found.reshape(x.shape)]

    because = "it knows the axis of version 13 only"
    return Case([x], attrs, opset, each=True, oracle=oracle, because=because)
