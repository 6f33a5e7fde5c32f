"""Quantised operators of com.microsoft as standard ones, for `lower_contrib`.

Sums of integers stay integers; what has no integer kernel computes between DequantizeLinear and
QuantizeLinear, as the operators are defined.
"""

from __future__ import annotations

import numpy as np

from engine.dtypes import FLOAT32
from engine.passes.build import Builder

_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def _floats(b: Builder, index: int) -> str:
    """The numbers that input `index` holds levels of; scale and zero point follow it."""
    return b.op("DequantizeLinear", *b.node.inputs[index : index + 3])


def _levels(b: Builder, x: str, scale: int, like: int, output: str) -> None:
    """Adds what quantises `x` by inputs `scale` and the one behind it, in the type of `like`."""
    zero = b.node.input(scale + 1)
    dtype = None if zero else b.dtype(like).code
    b.op("QuantizeLinear", x, b.node.inputs[scale], zero, output=output, output_dtype=dtype)


def _turned(b: Builder, x: str, rank: int, output: str = "") -> str:
    """Channels from the last axis to the second, or with an `output` back."""
    order = [0, rank - 1, *range(1, rank - 1)]
    if output:
        order = [0, *range(2, rank), 1]
    return b.op("Transpose", x, output=output, perm=order)


def gemm(b: Builder) -> str:
    """QGemm; adds the nodes, or says why not."""
    if b.dtype(1) != FLOAT32:
        return f"its scales are {b.dtype(1)}"
    operands = []
    for index, name in ((0, "transA"), (3, "transB")):
        matrix = b.node.inputs[index]
        operands.append(b.op("Transpose", matrix, perm=[1, 0]) if b.attr(name, 0) else matrix)
    sums = b.op("MatMulInteger", *operands, b.node.input(2), b.node.input(5))
    if b.has(6):
        sums = b.op("Add", sums, b.node.inputs[6])
    scale, alpha = b.node.inputs[1], float(b.attr("alpha", 1.0))
    if alpha != 1:
        scale = b.op("Mul", b.constant(np.array(alpha, np.float32)), scale)
    scales = b.op("Mul", scale, b.node.inputs[4])
    product = b.op("Cast", sums, to=FLOAT32.code)
    if not b.has(7):
        b.op("Mul", product, scales, output=b.output(0))
        return ""
    _levels(b, b.op("Mul", product, scales), 7, 0, b.output(0))
    return ""


def concat(b: Builder) -> str:
    """QLinearConcat; adds the nodes, or says why not."""
    if b.dtype(0) != FLOAT32:
        return f"its scales are {b.dtype(0)}"
    starts = range(2, len(b.node.inputs), 3)
    axis = int(b.attr("axis", 0))
    if all(_same_levels(b, start) for start in starts):
        parts = [b.node.inputs[start] for start in starts]
        b.op("Concat", *parts, output=b.output(0), axis=axis)
        return ""
    joined = b.op("Concat", *(_floats(b, start) for start in starts), axis=axis)
    _levels(b, joined, 0, 2, b.output(0))
    return ""


def _same_levels(b: Builder, start: int) -> bool:
    """Whether input `start` has the scale and zero point of the output, as constants."""
    for own, other in ((start + 1, 0), (start + 2, 1)):
        if b.node.input(own) == b.node.input(other):
            continue
        one, two = b.const(own), b.const(other)
        if one is None or two is None or one.dtype != two.dtype:
            return False
        if one.size != 1 or two.size != 1 or one.reshape(-1)[0] != two.reshape(-1)[0]:
            return False
    return True


def softmax(b: Builder) -> str:
    """QLinearSoftmax; adds the nodes, or says why not."""
    rank = len(b.shape(0))
    axis = b.axis(rank, -1)
    values = _floats(b, 0)
    if int(b.attr("opset", 13)) >= 13 or axis == rank - 1:
        shares = b.op("Softmax", values, axis=axis)
    else:
        rows = b.op("Reshape", values, b.int_constant(*(0,) * axis, -1))
        shares = b.op("Reshape", b.op("Softmax", rows, axis=-1), b.op("Shape", values))
    _levels(b, shares, 3, 0, b.output(0))
    return ""


def average_pool(b: Builder) -> str:
    """QLinearAveragePool and QLinearGlobalAveragePool; adds the nodes, or says why not."""
    rank, last = len(b.shape(0)), bool(b.attr("channels_last", 0))
    values = _floats(b, 0)
    if last:
        values = _turned(b, values, rank)
    if b.node.op_type == "QLinearAveragePool":
        given = {name: b.attr(name) for name in _POOL}
        pooled = b.op("AveragePool", values, **given)
    else:
        pooled = b.op("GlobalAveragePool", values)
    if not last:
        _levels(b, pooled, 3, 0, b.output(0))
        return ""
    turned = b.names(1, "QuantizeLinear")[0]
    _levels(b, pooled, 3, 0, turned)
    _turned(b, turned, rank, b.output(0))
    return ""


def conv(b: Builder) -> str:
    """QLinearConv; adds the nodes, or says why not."""
    rank, last = len(b.shape(0)), bool(b.attr("channels_last", 0))
    x = _turned(b, b.node.inputs[0], rank) if last else b.node.inputs[0]
    given = {name: b.attr(name) for name in _CONV}
    output = "" if last else b.output(0)
    result = b.op("QLinearConv", x, *b.node.inputs[1:], output=output, **given)
    if last:
        _turned(b, result, rank, b.output(0))
    return ""
