"""Attention, LinearAttention, RotaryEmbedding and TensorScatter."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import Array, Data, Form, rounding


@draws("Attention")
def attention(op: str, form: Form, data: Data) -> Case:
    """Shared key heads, packed heads, masks, caches, windows."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    groups, kv = form.one_of([1, 2, 3]), form.one_of([1, 2])
    heads = groups * kv
    size, value_size = form.one_of([4, 8, 3, 16]), form.one_of([4, 8, 5])
    packed = form.chance(0.4)
    batch, queries, keys = data.int(1, 2), data.one_of([1, 3, 7, 9]), data.one_of([2, 5, 9, 33, 70])
    attrs: dict[str, Any] = form.maybe({"scale": 0.25}) | form.maybe({"is_causal": 1}, 0.3)
    attrs |= form.maybe({"softcap": 1.5}, 0.2)
    shapes = [(batch, heads, queries, size), (batch, kv, keys, size), (batch, kv, keys, value_size)]
    arrays = [data.floats(dtype, s, -2, 2) for s in shapes]
    if packed:
        attrs |= {"q_num_heads": heads, "kv_num_heads": kv}
        flat = (x.transpose(0, 2, 1, 3) for x in arrays)
        arrays = [np.ascontiguousarray(x.reshape(*x.shape[:2], -1)) for x in flat]
    inputs: list[Array | None] = [*arrays]
    past = form.chance(0.25)
    before = data.int(1, 4) if past else 0
    outputs = (True, True, True) if past else (True,)
    kind = form.one_of(["none", "bool", "float"])
    lead = form.one_of([(), (1,), (1, 1), (0, 0)])
    shape = (*(n or (batch, heads)[i] for i, n in enumerate(lead)), queries, before + keys)
    if kind == "bool":
        mask = data.array(np.dtype(np.bool_), shape)
        mask[..., 0] = True
        inputs.append(mask)
    elif kind == "float":
        inputs.append(data.floats(dtype, shape, -2, 2))
    elif past:
        inputs.append(None)
    if past:
        inputs.append(data.floats(dtype, (batch, kv, before, size), -2, 2))
        inputs.append(data.floats(dtype, (batch, kv, before, value_size), -2, 2))
    if opset >= 25:
        for side in ("left", "right"):
            attrs |= form.maybe({f"{side}_window_size": form.int(0, 3)}, 0.3)
    if opset >= 24 and not past and form.chance(0.3):
        inputs += [None] * (6 - len(inputs))
        inputs.append(data.integers(np.dtype(np.int64), (batch,), 1, keys))
    last = 2 if packed else 3
    sized = [(i, last) for i in range(3)] + [(i, 1) for i in range(3) if not packed]
    sized += [(i, a) for i in (4, 5) for a in (1, 3)]
    return Case(inputs, attrs, opset, outputs, sized=sized, tol=rounding(dtype, 1e-5))


@draws("RotaryEmbedding")
def rotary(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    size, heads = form.one_of([8, 4, 16]), form.one_of([1, 2, 3])
    packed = form.chance(0.4)
    attrs: dict[str, Any] = form.maybe({"interleaved": form.int(0, 1)})
    dim = form.one_of([0, 0, 4])
    attrs |= {"rotary_embedding_dim": dim} if dim else {}
    half = (dim or size) // 2
    batch, length = data.int(1, 2), data.int(1, 7)
    shape: tuple[int, ...] = (batch, heads, length, size)
    if packed or dim:
        attrs["num_heads"] = heads
    if packed:
        shape = (batch, length, heads * size)
    x = data.floats(dtype, shape)
    if form.chance(0.6):
        caches = [data.floats(dtype, (9, half), -1, 1) for _ in range(2)]
        positions = data.integers(np.dtype(np.int64), (batch, length), 0, 8)
        return Case([x, *caches, positions], attrs, opset, tol=rounding(dtype, 1e-5))
    caches = [data.floats(dtype, (batch, length, half), -1, 1) for _ in range(2)]
    return Case([x, *caches], attrs, opset, tol=rounding(dtype, 1e-5))


@draws("TensorScatter")
def tensor_scatter(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.int(2, 5)
    axis = form.int(1, rank - 1)
    shape = list(data.shape(rank, 1, long=False))
    update = [*shape]
    update[axis] = data.int(1, shape[axis])
    circular = form.chance(0.5)
    last = shape[axis] - (1 if circular else update[axis])
    attrs: dict[str, Any] = {"axis": axis - (rank if form.chance(0.5) else 0)}
    attrs |= {"mode": "circular"} if circular else form.maybe({"mode": "linear"}, 0.3)
    inputs = [data.array(dtype, shape), data.array(dtype, update)]
    if form.chance(0.8):
        inputs.append(data.integers(np.dtype(np.int64), (shape[0],), 0, last))
    return Case(inputs, attrs, opset, tol=0)


@draws("LinearAttention")
def linear(op: str, form: Form, data: Data) -> Case:
    """Every rule; decay for each head or for each lane of the keys."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rule = form.one_of(["gated_delta", "linear", "gated", "delta"])
    kv, groups = form.int(1, 2), form.int(1, 2)
    size, value_size = form.one_of([4, 8, 3]), form.one_of([4, 6, 1])
    batch, length = data.int(1, 2), data.int(1, 7)
    rows = (batch, length)
    inputs: list[Array | None] = [
        data.floats(dtype, (*rows, kv * groups * size), -1, 1),
        data.floats(dtype, (*rows, kv * size), -0.5, 0.5),
        data.floats(dtype, (*rows, kv * value_size), -1, 1),
    ]
    if form.chance(0.5):
        inputs.append(data.floats(dtype, (batch, kv, size, value_size), -1, 1))
    if rule.startswith("gated"):
        inputs += [None] * (4 - len(inputs))
        lanes = form.one_of([1, size])
        inputs.append(data.floats(dtype, (*rows, kv * lanes), -1, 0))
    if rule.endswith("delta"):
        inputs += [None] * (5 - len(inputs))
        inputs.append(data.floats(dtype, (*rows, form.one_of([kv, 1])), 0, 1))
    attrs = {"q_num_heads": kv * groups, "kv_num_heads": kv, "update_rule": rule}
    attrs |= form.maybe({"scale": 0.5})
    sized = [(i, 2) for i in (0, 1, 2, 4, 5)] + [(3, a) for a in (1, 2, 3)]
    tol = rounding(dtype, 2e-5, 2 * length)
    return Case(inputs, attrs, opset, (True, True), sized=sized, tol=tol)
