"""Gather, scatter and OneHot: elements by index, negative ones from the end."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import SPECIAL, Array, Data, Form

INDICES = (np.dtype(np.int64), np.dtype(np.int32))


def indexed(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """The shape with an element to point at along an axis."""
    sizes = list(shape)
    sizes[axis] = max(sizes[axis], 1)
    return tuple(sizes)


@draws("Gather")
def gather(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(1, 6)
    axis = form.axis(rank) if opset >= 11 else form.int(0, rank - 1)
    attrs = {"axis": axis} if axis or form.chance(0.5) else {}
    shape = indexed(data.shape(rank), axis)
    size = shape[axis]
    low = -size if opset >= 11 else 0
    picks = data.shape(form.rank(0, 3), long=False)
    indices = data.integers(form.one_of(INDICES), picks, low, size - 1)
    x = data.array(dtype, shape, edges=SPECIAL)
    return Case([x, indices], attrs, opset, tol=0)


@draws("GatherElements")
def gather_elements(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(1, 5)
    axis = form.axis(rank)
    shape = indexed(data.shape(rank), axis)
    least = 0 if data.chance(0.1) else 1
    picks = [data.int(min(least, s), s) for s in shape]
    picks[axis] = data.size(least)
    indices = data.integers(form.one_of(INDICES), picks, -shape[axis], shape[axis] - 1)
    x = data.array(dtype, shape, edges=SPECIAL)
    attrs = {"axis": axis} if axis or form.chance(0.5) else {}

    def oracle(x: Array, indices: Array) -> Array:
        near = tuple(slice(s) if i != axis % rank else slice(None) for i, s in enumerate(picks))
        return np.take_along_axis(x[near], indices % x.shape[axis], axis)

    because = "it fails on the last axis counted from the end"
    return Case([x, indices], attrs, opset, tol=0, oracle=oracle, because=because)


@draws("GatherND")
def gather_nd(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(1, 5)
    batch = form.int(0, min(rank - 1, 2)) if opset >= 12 else 0
    depth = form.int(1, rank - batch)
    shape = data.shape(rank, 1)
    rows = (*shape[:batch], *data.shape(form.int(0, 2), 1, long=False))
    columns = [data.integers(INDICES[0], rows, -s, s - 1) for s in shape[batch : batch + depth]]
    x = data.array(dtype, shape, edges=SPECIAL)
    attrs = {"batch_dims": batch} if batch or (opset >= 12 and form.chance(0.3)) else {}
    return Case([x, np.stack(columns, axis=-1)], attrs, opset, sized=(1,), tol=0)


def reduction(form: Form, opset: int, dtype: np.dtype[Any]) -> dict[str, Any]:
    if opset < 16 or dtype == np.bool_ or not form.chance(0.5):
        return {}
    return {"reduction": form.one_of(["add", "mul", *(["max", "min"] if opset >= 18 else [])])}


@draws("ScatterElements")
def scatter_elements(op: str, form: Form, data: Data) -> Case:
    """Some places more than once, of whose updates the last one wins."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(1, 5)
    axis = form.axis(rank)
    shape = data.shape(rank, 1)
    picks = [data.int(0 if data.chance(0.05) else 1, s) for s in shape]
    rng = data.generator()
    lines = np.broadcast_to(np.arange(shape[axis]), (*np.delete(picks, axis % rank), shape[axis]))
    order = np.moveaxis(rng.permuted(lines, axis=-1)[..., : picks[axis]], -1, axis)
    if data.chance(0.4):
        order = rng.integers(0, shape[axis], order.shape)
    indices = np.where(rng.random(order.shape) < 0.3, order - shape[axis], order)
    x = data.array(dtype, shape, edges=SPECIAL)
    updates = data.array(dtype, indices.shape)
    attrs: dict[str, Any] = {"axis": axis} if axis or form.chance(0.5) else {}
    attrs |= reduction(form, opset, dtype)
    inputs = [x, indices.astype(form.one_of(INDICES)), updates]
    tol = 0 if "reduction" not in attrs else 1e-6
    return Case(inputs, attrs, opset, tol=tol)


@draws("ScatterND")
def scatter_nd(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(1, 5)
    depth = form.int(1, rank)
    shape = data.shape(rank, 1)
    places = np.stack(np.indices(shape[:depth]), axis=-1).reshape(-1, depth)
    chosen = data.generator().permutation(len(places))[: data.int(0, min(len(places), 9))]
    if data.chance(0.4):
        chosen = data.generator().integers(0, len(places), len(chosen) * 2)
    indices = places[chosen] - (np.asarray(shape[:depth]) if data.chance(0.3) else 0)
    x = data.array(dtype, shape, edges=SPECIAL)
    updates = data.array(dtype, (len(chosen), *shape[depth:]))
    attrs = reduction(form, opset, dtype)
    tol = 1e-6 if attrs else 0
    return Case([x, indices, updates], attrs, opset, sized=(1,), tol=tol)


@draws("OneHot")
def one_hot(op: str, form: Form, data: Data) -> Case:
    """Indices beyond the depth give a row without a one."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset, 2)
    names = ("int64", "int32", "int8", "uint8", "float32")
    kind = np.dtype(form.one_of(names))
    rank = form.rank(0, 4)
    axis = form.int(-rank - 1, rank)
    depth = form.int(1, 6)
    indices = data.integers(np.dtype(np.int32), data.shape(rank), -depth - 2, depth + 2)
    if kind.kind == "u":
        indices = np.abs(indices)
    count = np.asarray(depth if form.chance(0.5) else [depth], np.int64)
    values = data.array(dtype, (2,))
    attrs = {"axis": axis} if axis != -1 or form.chance(0.5) else {}

    def oracle(indices: Array, _: Array, values: Array) -> Array:
        places = indices.astype(np.int64)
        places = np.where(places < 0, places + depth, places)
        hit = np.moveaxis(places[..., None] == np.arange(depth), -1, axis)
        return np.where(hit, values[1], values[0])

    because = "it cannot add to bools, nor take a depth of rank 1"
    inputs = [indices.astype(kind), count, values]
    return Case(inputs, attrs, opset, tol=0, oracle=oracle, because=because)
