"""Quantisation: to levels and back, products and convolutions of integers, com.microsoft's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tests.properties.cases import Case, draws
from tests.properties.drawing import Array, Data, Form, as_dtype, is_float, rounding
from tests.properties.families.conv import sizes, window
from tests.properties.families.matmul import matrices
from tests.properties.oracles import reference

FLOAT = np.dtype(np.float32)
BYTES = (np.dtype(np.uint8), np.dtype(np.int8))
LEVELS = {"low": -(2**31), "high": 2**31 - 1}


def scale(source: Data, shape: tuple[int, ...], dtype: np.dtype[Any] = FLOAT) -> Array:
    """Powers of two and numbers between: positive, far from 0."""
    return source.floats(dtype, shape, 0.03125, 0.5)


def zero(source: Data, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Zero points, up to a quarter of the way from the middle."""
    middle = 128 if dtype == np.uint8 else 0
    return source.integers(dtype, shape, middle - 32, middle + 32)


def along(form: Form, data: Data, opset: int, many: bool) -> tuple[dict[str, Any], Any, Any]:
    """Attributes, shape of the data and of its scales: one, one an index of an axis, or blocks."""
    kind = form.one_of(["one", "axis", "blocks"]) if opset >= 21 else form.one_of(["one", "axis"])
    if opset < 13 or not many:
        kind = "one"
    rank = form.rank(1 if kind != "one" else 0, 4)
    shape = list(data.shape(rank, 1))
    if kind == "one":
        return {}, tuple(shape), ()
    axis = form.axis(rank)
    attrs = {"axis": axis}
    if kind == "axis":
        return attrs, tuple(shape), (shape[axis],)
    block = form.one_of([2, 3, 16])
    blocks = list(shape)
    blocks[axis] = data.int(1, 3)
    shape[axis] = blocks[axis] * block
    return {**attrs, "block_size": block}, tuple(shape), tuple(blocks)


@draws("QuantizeLinear")
def quantize(op: str, form: Form, data: Data) -> Case:
    """A float right between two levels may become either, so levels may differ by one."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset, 0, ("float32", "float16", "bfloat16", "int32"))
    attrs, shape, scales = along(form, data, opset, True)
    names = ["uint8", "int8", *(["uint16", "int16"] if opset >= 21 else [])]
    target = as_dtype(form.one_of(names))
    step = scale(data, scales, dtype if opset >= 19 and is_float(dtype) else FLOAT)
    inputs: list[Array | None] = [data.array(dtype, shape, -40, 40), step]
    if opset >= 21 and form.chance(0.3):
        attrs["output_dtype"] = int(helper.np_dtype_to_tensor_dtype(target))
    elif form.chance(0.7) or target != np.uint8:
        inputs.append(zero(data, scales, target))
    if opset >= 19 and target.itemsize == 1:
        attrs |= form.maybe({"saturate": 1}, 0.2)

    def oracle(x: Array, step: Array, point: Array | None = None) -> Array:
        step, point = (spread(v, attrs, x.ndim) for v in (step, point))
        info = np.iinfo(target)
        rounded = np.round((x.astype(step.dtype) / step).astype(np.float64))
        return np.clip(rounded + (0 if point is None else point), info.min, info.max)

    because = "it has no blocks and no float16"
    return Case(inputs, attrs, opset, steps=1, oracle=oracle, because=because)


def spread(value: Array | None, attrs: dict[str, Any], rank: int) -> Any:
    """Scales or zero points in the shape of the data, or one that broadcasts to it."""
    if value is None or "axis" not in attrs:
        return value
    if "block_size" in attrs:
        return np.repeat(value, attrs["block_size"], attrs["axis"])
    return value.reshape([-1 if i == attrs["axis"] % rank else 1 for i in range(rank)])


@draws("DequantizeLinear")
def dequantize(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    names = ["uint8", "int8", "int32", *(["uint16", "int16"] if opset >= 21 else [])]
    dtype = as_dtype(form.one_of(names))
    attrs, shape, scales = along(form, data, opset, True)
    kind = as_dtype(form.one_of(["float32", *(["float16", "bfloat16"] if opset >= 19 else [])]))
    low, high = (-999, 999) if dtype == np.int32 else (-(2**31), 2**31)
    inputs: list[Array | None] = [data.integers(dtype, shape, low, high), scale(data, scales, kind)]
    if form.chance(0.7) and dtype != np.int32:
        inputs.append(zero(data, scales, dtype))
    result = kind
    if opset >= 23 and form.chance(0.3):
        result = as_dtype(form.one_of(["float32", "float16", "bfloat16"]))
        attrs["output_dtype"] = int(helper.np_dtype_to_tensor_dtype(result))

    def oracle(x: Array, step: Array, point: Array | None = None) -> Array:
        step, point = (spread(v, attrs, x.ndim) for v in (step, point))
        wide = x.astype(np.float64) - (0 if point is None else point.astype(np.float64))
        return np.asarray(wide * np.asarray(step).astype(np.float64))

    because = "it has no form before version 19"
    tol = rounding(result, 1e-6, 1)
    return Case(inputs, attrs, opset, tol=tol, each=True, oracle=oracle, because=because)


@draws("com.microsoft:QuantizeLinear", "com.microsoft:DequantizeLinear")
def microsoft(op: str, form: Form, data: Data) -> Case:
    attrs, shape, scales = along(form, data, 13, True)
    dtype = as_dtype(form.one_of(["uint8", "int8", "uint16", "int16"]))
    step, point = scale(data, scales), zero(data, scales, dtype)
    x = data.floats(FLOAT, shape, -40, 40)
    if "Dequantize" in op:
        x = data.integers(dtype, shape, -(2**31), 2**31)
    case = Case([x, step, point], attrs, 21, each=True, steps=1, oracle="runtime", because=OWN)
    return case


OWN = "it has no operators of com.microsoft"


@draws("DynamicQuantizeLinear")
def dynamic(op: str, form: Form, data: Data) -> Case:
    x = data.floats(
        FLOAT, data.shape(form.rank(0, 5), 1), *form.one_of([(-4, 4), (1, 3), (-5, -1)])
    )
    return Case([x], {}, form.opset(op), (True, True, True), steps=1, tol=1e-6)


def quantised(source: Data, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    return source.integers(dtype, shape, -(2**31), 2**31)


@draws("MatMulInteger", "QLinearMatMul")
def product(op: str, form: Form, data: Data) -> Case:
    """Zero points for the whole, for a row of A, or for a column of B."""
    opset = form.opset(op)
    a_kind, b_kind, y_kind = (form.one_of(BYTES) for _ in range(3))
    left, right = matrices(form, data)
    rows = (left[-2],) if len(left) == 2 and form.chance(0.3) else ()
    columns = (right[-1],) if len(right) == 2 and form.chance(0.3) else ()
    a, b = quantised(data, a_kind, left), quantised(data, b_kind, right)
    constant = form.chance(0.7)
    source = Data(form) if constant else data
    a_zero, b_zero = zero(source, rows, a_kind), zero(source, columns, b_kind)

    def whole(a: Array, b: Array, a_zero: Any, b_zero: Any) -> Array:
        wide = a.astype(np.int64) - np.asarray(a_zero, np.int64)[..., None] * (a_zero.ndim > 0)
        wide = wide - (int(a_zero) if a_zero.ndim == 0 else 0)
        return np.asarray(np.matmul(wide, b.astype(np.int64) - b_zero.astype(np.int64)))

    if op == "MatMulInteger":
        given = form.one_of([2, 1, 0])
        points = [a_zero, b_zero][:given]

        def integers(a: Array, b: Array, *points: Array) -> Array:
            none = np.zeros((), np.int64)
            a_zero, b_zero = (*points, none, none)[:2]
            return whole(a, b, a_zero, b_zero)

        because = "it takes no zero points for rows"
        constants = tuple(range(2, 2 + given)) if constant else ()
        inputs = [a, b, *points]
        return Case(inputs, {}, opset, constants=constants, oracle=integers, because=because)
    a_scale, b_scale = scale(source, rows), scale(source, columns)
    y_scale, y_zero = source.floats(FLOAT, (), 2, 20), zero(source, (), y_kind)

    def levels(a: Array, sa: Array, za: Array, b: Array, sb: Array, zb: Array, *_: Array) -> Array:
        sums = whole(a, b, za, zb).astype(np.float64)
        row = sa.astype(np.float64)[:, None] if sa.ndim else sa.astype(np.float64)
        found = np.round(sums * row * sb.astype(np.float64) / y_scale) + y_zero
        info = np.iinfo(y_kind)
        return np.clip(found, info.min, info.max)

    inputs = [a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero]
    because = "it takes no scales for rows"
    constants = (1, 2, 4, 5, 6, 7) if constant else ()
    return Case(inputs, {}, opset, constants=constants, steps=1, oracle=levels, because=because)


@draws("com.microsoft:MatMulIntegerToFloat")
def product_to_float(op: str, form: Form, data: Data) -> Case:
    unsigned, signed = BYTES
    kinds = form.one_of([(unsigned, unsigned), (unsigned, signed), (signed, signed)])
    left, right = matrices(form, data)
    while len(left) < 2 or len(right) != 2 or not np.prod(left) or not np.prod(right):
        left, right = (data.int(1, 5), 8), (8, data.int(1, 9))
    columns = (right[-1],) if form.chance(0.4) else ()
    inputs: list[Array | None] = [
        quantised(data, kinds[0], left),
        quantised(data, kinds[1], right),
        scale(data, ()),
        scale(data, columns),
        zero(data, (), kinds[0]),
        zero(data, columns, kinds[1]),
    ]
    if form.chance(0.5):
        inputs.append(data.floats(FLOAT, right[-1:]))
    elif form.chance(0.3):
        inputs = inputs[:4]
    return Case(inputs, {}, 21, tol=1e-5, oracle="runtime", because=OWN)


@draws("ConvInteger", "QLinearConv")
def convolution(op: str, form: Form, data: Data) -> Case:
    """Exact sums; zero points of weights, and their scales, may be one for each channel."""
    opset = form.opset(op)
    x_kind, w_kind, y_kind = (form.one_of(BYTES) for _ in range(3))
    rank = form.one_of([2, 1, 2])
    kernel = [form.int(1, 3) for _ in range(rank)]
    attrs = window(form, rank)
    group, per_group, out = form.one_of([1, 1, 2, 3]), form.one_of([1, 2, 4]), form.int(1, 4)
    attrs |= {"group": group} if group > 1 else {}
    source = Data(form)
    shape = (data.int(1, 2), group * per_group, *sizes(data, kernel, attrs))
    x = quantised(data, x_kind, shape)
    w = quantised(source, w_kind, (group * out, per_group, *kernel))
    many = (group * out,) if form.chance(0.4) else ()
    x_zero, w_zero = zero(source, (), x_kind), zero(source, many, w_kind)
    conv = {**attrs}

    def sums(x: Array, w: Array, x_zero: Any, w_zero: Any) -> Array:
        wide = x.astype(np.float64) - float(x_zero)
        points = w_zero.astype(np.float64).reshape(-1, *(1,) * (rank + 1))
        weights = w.astype(np.float64) - points
        return reference("Conv", Case([wide, weights], conv, 11))[0]

    if op == "ConvInteger":
        given = form.one_of([2, 1, 0])
        none = np.zeros((), np.int64)

        def integers(x: Array, w: Array, *points: Array) -> Array:
            return sums(x, w, *(*points, none, none)[:2])

        because = "it takes one zero point for all weights"
        inputs = [x, w, x_zero, w_zero][: 2 + given]
        constants = tuple(range(1, len(inputs))) if form.chance(0.7) else ()
        sized = () if constants else (1,)
        return Case(
            inputs, attrs, opset, (True,), constants, sized, oracle=integers, because=because
        )
    x_scale, w_scale = scale(source, ()), scale(source, many)
    y_scale, y_zero = source.floats(FLOAT, (), 4, 40), zero(source, (), y_kind)
    inputs = [x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero]
    if form.chance(0.5):
        inputs.append(source.integers(np.dtype(np.int32), (group * out,), -3000, 3000))

    def levels(x: Array, sx: Array, zx: Array, w: Array, sw: Array, zw: Array, *more: Any) -> Array:
        found = sums(x, w, zx, zw)
        ends = (1,) * rank
        if len(more) > 2:
            found = found + more[2].reshape(-1, *ends)
        factor = sw.astype(np.float64).reshape(-1, *ends) * float(sx) / float(y_scale)
        info = np.iinfo(y_kind)
        return np.clip(np.round(found * factor) + float(y_zero), info.min, info.max)

    because = "it rounds in float32"
    constants = tuple(range(1, len(inputs))) if form.chance(0.7) else ()
    sized = () if constants else (3,)
    return Case(
        inputs,
        attrs,
        opset,
        (True,),
        constants,
        sized,
        steps=1,
        oracle=levels,
        because=because,
    )


@draws("com.microsoft:MatMulNBits")
def blockwise(op: str, form: Form, data: Data) -> Case:
    """Weights of 4 or 8 bits in blocks along the inner axis, the last partly filled."""
    bits, block = form.one_of([4, 4, 8]), form.one_of([16, 32, 64])
    inner, columns = form.one_of([16, 32, 40, 64, 100]), form.one_of([1, 4, 8, 5])
    blocks = -(-inner // block)
    source = Data(form)
    byte = np.dtype(np.uint8)
    levels = source.integers(byte, (columns, blocks, block * bits // 8), 0, 255)
    dtype = as_dtype(form.one_of(["float32", "float32", "float16"]))
    scales = source.floats(dtype, (columns * blocks,), 0.03125, 0.25)
    inputs: list[Array | None] = [
        data.floats(dtype, (*data.shape(form.int(1, 2), 1, long=False), inner)),
        levels,
        scales,
    ]
    given = (
        form.one_of(["none", "packed", "float"]) if bits == 4 else form.one_of(["none", "packed"])
    )
    if given == "packed":
        inputs.append(source.integers(byte, (columns * -(-blocks * bits // 8),), 0, 255))
    elif given == "float":
        inputs.append(source.floats(dtype, (columns * blocks,), 4, 11))
    if form.chance(0.3):
        inputs += [None] * (5 - len(inputs))
        inputs.append(source.floats(dtype, (columns,)))
    attrs = {"K": inner, "N": columns, "bits": bits, "block_size": block}
    constants = tuple(i for i, v in enumerate(inputs) if i and v is not None)
    return Case(
        inputs,
        attrs,
        21,
        (True,),
        constants,
        tol=rounding(dtype, 5e-5),
        oracle="runtime",
        because=OWN,
    )


@draws("com.microsoft:QLinearAdd", "com.microsoft:QLinearMul")
def pair(op: str, form: Form, data: Data) -> Case:
    dtype = form.one_of(BYTES)
    rank = form.rank(1, 4)
    shape = data.shape(rank, 1)
    other = data.broadcast(shape, rank if form.chance(0.6) else form.int(0, rank))
    a, b = quantised(data, dtype, shape), quantised(data, dtype, other)
    source = Data(form)
    numbers = [(scale(source, ()), zero(source, (), dtype)) for _ in range(3)]
    inputs = [a, *numbers[0], b, *numbers[1], *numbers[2]]
    constants = (1, 2, 4, 5, 6, 7) if form.chance(0.7) else ()
    return Case(inputs, {}, 21, (True,), constants, steps=1, oracle="runtime", because=OWN)


@draws("com.microsoft:QLinearSigmoid", "com.microsoft:QLinearLeakyRelu")
def single(op: str, form: Form, data: Data) -> Case:
    dtype = form.one_of(BYTES)
    x = quantised(data, dtype, data.shape(form.rank(1, 4), 1))
    source = Data(form)
    numbers = [scale(source, ()), zero(source, (), dtype)]
    ends = [source.floats(FLOAT, (), 0.00390625, 0.01) * 1, zero(source, (), dtype)]
    attrs = form.maybe({"alpha": form.one_of([0.5, 0.125])}) if "Leaky" in op else {}
    inputs = [x, *numbers, *(ends if "Sigmoid" in op else [scale(source, ()), ends[1]])]
    inputs[3] = np.asarray(inputs[3], np.float32)
    return Case(inputs, attrs, 21, (True,), (1, 2, 3, 4), steps=1, oracle="runtime", because=OWN)


@draws("com.microsoft:QLinearWhere")
def where(op: str, form: Form, data: Data) -> Case:
    dtype = form.one_of(BYTES)
    rank = form.rank(1, 4)
    shape = data.shape(rank, 1)
    condition = data.array(np.dtype(np.bool_), data.broadcast(shape, rank))
    source = Data(form)
    numbers = [(scale(source, ()), zero(source, (), dtype)) for _ in range(3)]
    x, y = quantised(data, dtype, shape), quantised(data, dtype, data.broadcast(shape, rank))
    inputs = [condition, x, *numbers[0], y, *numbers[1], *numbers[2]]
    constants = (2, 3, 5, 6, 7, 8)
    return Case(inputs, {}, 21, (True,), constants, steps=1, oracle="runtime", because=OWN)
