"""Views, and tensors made of sizes: ConstantOfShape, Range, EyeLike."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tests.choices import factors
from tests.properties.cases import Case, draws
from tests.properties.drawing import Array, Data, Form, as_dtype, is_float

INT64 = np.dtype(np.int64)


def kept(op: str, form: Form, opset: int) -> np.dtype[Any]:
    """A type that a node ahead can flip."""
    dtype = form.dtype(op, opset)
    return np.dtype(np.float32) if opset < 18 and dtype.kind in "iu" else dtype


@draws("Reshape")
def reshape(op: str, form: Form, data: Data) -> Case:
    """With a size that is copied, and one that is worked out."""
    opset = form.opset(op)
    dtype = kept(op, form, opset)
    count, allow, fills = form.int(0, 4), opset >= 14 and form.chance(0.3), form.chance(0.6)
    shape = data.shape(form.rank())
    target = factors(data, math.prod(shape), count)
    if not math.prod(shape):
        target = list(shape)[::-1] if allow else [0] * len(shape)
    else:
        if fills:
            target[data.int(0, len(target) - 1)] = -1
        if shape and target[0] == shape[0] and not allow:
            target[0] = 0
    attrs = {"allowzero": 1} if allow else {}
    inputs = [data.array(dtype, shape), np.asarray(target, np.int64)]
    return Case(inputs, attrs, opset, tol=0, ahead="flip")


@draws("Squeeze", "Unsqueeze")
def squeeze(op: str, form: Form, data: Data) -> Case:
    """Axes as an attribute before version 13."""
    opset = form.opset(op)
    dtype = kept(op, form, opset)
    rank = form.rank(0, 6)
    shape = list(data.shape(rank))
    adds = op == "Unsqueeze"
    total = rank + form.int(1, 2) if adds else rank
    axes = form.some(range(total), total - rank)[: total - rank if adds else None]
    if not adds:
        for a in axes:
            shape[a] = 1
    if opset < 11:
        axes.sort()
    else:
        axes = [a - total if form.chance(0.4) else a for a in axes]
    omitted = not adds and form.chance(0.3)
    x = data.array(dtype, shape)
    if opset < 13:
        attrs = {} if omitted or not axes else {"axes": axes}
        case = Case([x], attrs, opset, tol=0, ahead="flip")
        if adds and len(axes) > 1:
            because = "it adds one axis after the other, each to what it has so far"
            return dataclasses.replace(case, oracle="runtime", because=because)
        return case
    inputs = [x] if omitted else [x, np.asarray(axes, np.int64)]
    return Case(inputs, {}, opset, tol=0, ahead="flip")


@draws("Flatten")
def flatten(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    rank = form.rank(0 if opset >= 9 else 1)
    axis = form.int(-rank if opset >= 11 else 0, rank)
    attrs = {"axis": axis} if rank == 0 or form.chance(0.8) else {}
    x = data.array(kept(op, form, opset), data.shape(rank))
    at = attrs.get("axis", 1)
    at += rank if at < 0 else 0

    def oracle(x: Array) -> Array:
        return x.reshape(math.prod(x.shape[:at]), math.prod(x.shape[at:]))

    because = "it cannot flatten a tensor without elements"
    return Case([x], attrs, opset, tol=0, ahead="flip", oracle=oracle, because=because)


@draws("Identity")
def identity(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    x = data.array(kept(op, form, opset), data.shape(form.rank()))
    return Case([x], {}, opset, tol=0, ahead="flip")


@draws("ConstantOfShape")
def constant_of_shape(op: str, form: Form, data: Data) -> Case:
    """Of the shape of an input, which is a symbol: else the node would be folded."""
    opset = form.opset(op)
    names = "float32 int32 bool int64 float16 uint8 int8 uint32 int16 uint16".split()
    dtype = as_dtype(form.one_of(names))
    value = np.asarray([form.one_of([0, 1, 7, 100])]).astype(dtype)
    if dtype.kind == "f":
        value = np.asarray([form.one_of([1.5, np.nan, -np.inf, -0.0])], dtype)
    attrs: dict[str, Any] = {}
    if form.chance(0.8):
        attrs["value"] = numpy_helper.from_array(value)
    x = np.zeros(data.shape(form.rank(1)), np.float32)
    return Case([x], attrs, opset, constants=(), tol=0, ahead="Shape")


@draws("Range")
def range_(op: str, form: Form, data: Data) -> Case:
    """Up to the size of an input, or of constants and fed numbers."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    step = form.one_of([1, 2, 3])
    if form.chance(0.5):
        ends = [np.asarray(form.int(-9, 3)), np.asarray(step)]
        x = np.zeros(data.one_of([65, 130, 257, 3]), np.float32)
        inputs = [ends[0], x, ends[1]]
        return Case(inputs, {}, opset, constants=(0, 2), tol=0, ahead="Size", behind=1)
    start, count = data.int(0, 5), data.int(0, 70)
    step *= 1 if dtype.kind == "u" else form.one_of([1, -1])
    numbers = np.asarray([start, start + step * count, step]) / (4 if is_float(dtype) else 1)
    arrays = list(numbers.astype(dtype).reshape(3, 1)[:, 0])
    fed = form.chance(0.5)
    constants = () if fed else None
    return Case([np.asarray(a) for a in arrays], {}, opset, constants=constants, tol=1e-6)


@draws("EyeLike")
def eye(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    names = ["float32", "int32", "bool", "int64", "float16", "uint8", "int8", "uint32"]
    attrs: dict[str, Any] = form.maybe({"k": form.int(-3, 3)})
    if form.chance(0.5):
        code = helper.np_dtype_to_tensor_dtype(as_dtype(form.one_of(names)))
        attrs["dtype"] = int(code)
    return Case([data.array(dtype, data.shape(2))], attrs, opset, tol=0)
