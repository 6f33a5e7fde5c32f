"""TopK, with ties, which the smaller index wins."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import Array, Data, Form

BECAUSE = "of equal elements it takes the last first"


@draws("TopK")
def top_k(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(1, 5)
    axis = form.axis(rank) if opset >= 11 else form.int(0, rank - 1)
    attrs: dict[str, Any] = {"axis": axis} if axis != -1 or form.chance(0.5) else {}
    largest = 1
    if opset >= 11:
        attrs |= form.maybe({"largest": form.int(0, 1)}) | form.maybe({"sorted": 1}, 0.3)
        largest = attrs.get("largest", 1)
    shape = list(data.shape(rank))
    shape[axis] = max(shape[axis], 1)
    k = data.int(0, min(shape[axis], 5))
    x = data.array(dtype, shape)

    def oracle(x: Array, *_: Array) -> list[Array]:
        wide = x.astype(np.float64)
        order = np.argsort(-wide if largest else wide, axis=axis, kind="stable")
        first = np.take(order, np.arange(k), axis=axis)
        return [np.take_along_axis(x, first, axis), first]

    if opset < 10:
        k = max(k, 1)
        inputs, attrs["k"] = [x], k
    else:
        inputs = [x, np.asarray([k], np.int64)]
    both = (True, True)
    return Case(inputs, attrs, opset, both, tol=0, oracle=oracle, because=BECAUSE)
