"""Normalisations: layer, RMS, instance, group, batch, local response, Lp, mean and variance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import Array, Data, Form, rounding


def epsilon(form: Form) -> dict[str, Any]:
    return form.maybe({"epsilon": form.one_of([1e-3, 0.1, 1e-5])})


@draws("LayerNormalization", "RMSNormalization")
def by_row(op: str, form: Form, data: Data) -> Case:
    """Scale and bias broadcast to the normalized axes; the statistics are outputs if wanted."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(1, 6)
    attrs = form.maybe({"axis": form.axis(rank)}, 0.7) | epsilon(form)
    shape = list(data.shape(rank))
    axis = attrs.get("axis", -1) % rank
    shape[axis:] = [max(s, 1) for s in shape[axis:]]
    tail = shape[axis:]
    scale = data.broadcast(tail, form.int(0, len(tail)) if form.chance(0.3) else len(tail))
    inputs: list[Array | None] = [data.floats(dtype, shape), data.floats(dtype, scale)]
    outputs = (True,)
    if op == "LayerNormalization":
        if form.chance(0.6):
            inputs.append(data.floats(dtype, tail))
        outputs = form.one_of([(True,), (True, True), (True, True, True), (True, False, True)])
    tol = 1e-3 if math.prod(tail) < 4 else 5e-5
    return Case(inputs, attrs, opset, outputs, tol=rounding(dtype, tol))


@draws("InstanceNormalization")
def instance(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(3, 5)
    shape = data.shape(rank, 1)
    pair = [data.floats(dtype, shape[1:2]) for _ in range(2)]
    return Case([data.floats(dtype, shape), *pair], epsilon(form), opset, tol=1e-3)


@draws("GroupNormalization")
def group(op: str, form: Form, data: Data) -> Case:
    """Scale and bias for each group in version 18, for each channel since."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    groups = form.int(1, 4)
    rank = form.rank(3, 5)
    shape = data.shape(rank, 1, long=False)
    channels = groups * data.int(1, 3)
    shape = (shape[0], channels, *shape[2:])
    count = groups if opset < 21 else channels
    pair = [data.floats(dtype, (count,)) for _ in range(2)]
    attrs = {"num_groups": groups, **epsilon(form)}
    tol = rounding(dtype, 1e-3 if channels == groups else 5e-5)
    return Case([data.floats(dtype, shape), *pair], attrs, opset, tol=tol)


@draws("BatchNormalization")
def batch(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(2, 5)
    shape = data.shape(rank)
    channels = shape[1:2]
    x = data.floats(dtype, shape)
    scale, bias, mean = (data.floats(dtype, channels) for _ in range(3))
    variance = data.floats(dtype, channels, 0.25, 3)
    attrs = epsilon(form) | form.maybe({"momentum": 0.5}, 0.2)
    if opset == 6:
        attrs |= {"is_test": 1}
    if opset < 9:
        attrs |= form.maybe({"spatial": 1}, 0.3)
    small = attrs.get("epsilon", 1e-5)

    def oracle(*arrays: Array) -> Array:
        x, scale, bias, mean, variance = (a.astype(np.float64) for a in arrays)
        scale, bias, mean, variance = (
            a.reshape(-1, *(1,) * (x.ndim - 2)) for a in (scale, bias, mean, variance)
        )
        return np.asarray(scale * (x - mean) / np.sqrt(variance + small) + bias)

    because = "its version 9 trains"
    inputs = [x, scale, bias, mean, variance]
    constants = form.one_of([(), (1, 2, 3, 4)])
    return Case(inputs, attrs, opset, constants=constants, oracle=oracle, because=because)


@draws("LRN")
def local_response(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    size = form.int(1, 5)
    choices = {"alpha": [0.5, 1e-3], "beta": [0.5, 0.75, 1.0], "bias": [2.0, 1.0]}
    attrs: dict[str, Any] = {k: form.one_of(v) for k, v in choices.items() if form.chance(0.5)}
    x = data.floats(dtype, data.shape(form.rank(2, 5)))
    alpha, beta = attrs.get("alpha", 1e-4), attrs.get("beta", 0.75)
    bias = attrs.get("bias", 1.0)

    def oracle(x: Array) -> Array:
        wide = x.astype(np.float64)
        before, after = (size - 1) // 2, size // 2
        sums = np.zeros_like(wide)
        for c in range(wide.shape[1]):
            near = wide[:, max(c - before, 0) : c + after + 1]
            sums[:, c] = (near**2).sum(axis=1)
        return np.asarray(wide / (bias + alpha / size * sums) ** beta)

    because = "it goes through as many channels as there are images"
    return Case([x], {"size": size, **attrs}, opset, oracle=oracle, because=because)


@draws("LpNormalization")
def lp(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.rank(1)
    attrs: dict[str, Any] = form.maybe({"axis": form.axis(rank)}, 0.7)
    attrs |= form.maybe({"p": form.int(1, 2)}, 0.7)
    x = data.floats(dtype, data.shape(rank), 0.125, 4)
    x *= np.where(data.array(np.dtype(np.bool_), x.shape), 1, -1).astype(dtype)
    axis, p = attrs.get("axis", -1), attrs.get("p", 2)

    def oracle(x: Array) -> Array:
        wide = x.astype(np.float64)
        sums = (np.abs(wide) ** p).sum(axis=axis, keepdims=True)
        return np.asarray(wide / sums ** (1 / p))

    because = "with p = 1 it adds up the elements with their signs"
    return Case([x], attrs, opset, oracle=oracle, because=because)


@draws("MeanVarianceNormalization")
def mean_variance(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    given = form.chance(0.6)
    rank = form.rank(1, 5) if given else 4
    axes = form.some(range(rank), 1)
    shape = data.shape(rank, 1)
    x = data.floats(dtype, shape)
    over = tuple(axes) if given else (0, 2, 3)

    def oracle(x: Array) -> Array:
        wide = x.astype(np.float64)
        centred = wide - wide.mean(axis=over, keepdims=True)
        return np.asarray(centred / (np.sqrt((centred**2).mean(axis=over, keepdims=True)) + 1e-9))

    attrs = {"axes": axes} if given else {}
    because = "rounding of equal elements is all that it divides"
    x.reshape(-1)[:1] += np.asarray(2, dtype)
    return Case([x], attrs, opset, tol=2e-4, oracle=oracle, because=because)
