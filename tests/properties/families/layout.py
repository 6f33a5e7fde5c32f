"""Operators that move elements: Transpose, Expand, Tile, Trilu, DepthToSpace, SpaceToDepth."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import SPECIAL, Data, Form


@draws("Transpose")
def transpose(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank()
    attrs = {"perm": form.permutation(rank)} if rank and form.chance(0.8) else {}
    return Case([data.array(dtype, data.shape(rank), edges=SPECIAL)], attrs, opset, tol=0)


@draws("Expand")
def expand(op: str, form: Form, data: Data) -> Case:
    """To a shape that stretches the input, and is itself stretched where it is 1 or too short."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank, length = form.rank(0, 6), form.rank(0, 6)
    whole = data.shape(max(rank, length))
    shape, target = data.broadcast(whole, rank), data.broadcast(whole, length)
    x = data.array(dtype, shape, edges=SPECIAL)
    return Case([x, np.asarray(target, np.int64)], {}, opset, tol=0)


@draws("Tile")
def tile(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(1, 5)
    repeats = [data.one_of([1, 2, 3, 0]) for _ in range(rank)]
    x = data.array(dtype, data.shape(rank, long=False), edges=SPECIAL)
    return Case([x, np.asarray(repeats, np.int64)], {}, opset, tol=0)


@draws("Trilu")
def trilu(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    inputs = [data.array(dtype, data.shape(form.rank(2)), edges=SPECIAL)]
    if form.chance(0.7):
        inputs.append(np.asarray(form.int(-4, 4), np.int64))
    attrs = form.maybe({"upper": form.int(0, 1)}, 0.8)
    return Case(inputs, attrs, opset, tol=0)


@draws("DepthToSpace", "SpaceToDepth")
def blocks(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    size = form.int(1, 3)
    n, c, h, w = (min(s, 4) for s in data.shape(4, long=False))
    attrs: dict[str, Any] = {"blocksize": size}
    if op == "DepthToSpace":
        shape = (n, c * size * size, h, w)
        least = 11
    else:
        shape = (n, c, h * size, w * size)
        least = 28
    if opset >= least:
        attrs |= form.maybe({"mode": form.one_of(["CRD", "DCR"])}, 0.7)
    return Case([data.array(dtype, shape, edges=SPECIAL)], attrs, opset, tol=0)
