"""Elementwise operators on several operands: arithmetic, comparison, logic, Where, Clip."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, reduce
from typing import Any

import numpy as np

from cpu_fallback.numeric import wide
from cpu_fallback.products import RUN, run_of
from cpu_fallback.registry import NO_MEMO, Memo, Tensor, cpu_op
from cpu_fallback.sweeps import MIN_SWEPT, sweep

Function = Callable[..., Any]
MIN_RUNS = 1 << 13
"""Elements from which on it pays to repeat a short operand."""


@cache
def is_short_float(dtype: np.dtype[Any]) -> bool:
    """Whether it is a float that is computed in float32: float16, bfloat16, float8."""
    return dtype == np.float16 or dtype.name.startswith(("bfloat", "float8", "float4"))


def fitting(spare: Tensor | None, *operands: Tensor) -> Tensor | None:
    """`spare` if it can hold the result of a function of `operands` in their dtype, else None."""
    if spare is None:
        return None
    shape, dtype = spare.shape, spare.dtype
    for x in operands:
        if x.dtype != dtype or (x.shape != shape and not broadcasts(x.shape, shape)):
            return None
    return spare


@lru_cache(maxsize=4096)
def broadcasts(shape: tuple[int, ...], onto: tuple[int, ...]) -> bool:
    """Whether an array of `shape` broadcasts to the shape `onto`, which stays as it is."""
    if len(shape) > len(onto):
        return False
    behind = onto[len(onto) - len(shape) :]
    return all(a in (1, b) for a, b in zip(shape, behind, strict=True))


def swept(function: Function, spare: Tensor | None, *operands: Tensor) -> Tensor:
    """A function of operands of one dtype, broadcast, which is also its result's."""
    out = fitting(spare, *operands)
    for x in operands:
        if x.size >= MIN_SWEPT:
            break
    else:
        if len(operands) == 2 and _has_numbers_of_channels(*operands):
            return _by_runs(function, out, *operands)
        return np.asarray(function(*operands, out=out))
    if any(x.dtype != operands[0].dtype for x in operands):
        return np.asarray(function(*operands, out=out))
    if out is None:
        shape = np.broadcast_shapes(*(x.shape for x in operands))
        like = next((x for x in operands if x.shape == shape), None)
        out = np.empty(shape, operands[0].dtype) if like is None else np.empty_like(like)
    return sweep(function, out, *operands)


def _has_numbers_of_channels(a: Tensor, b: Tensor) -> bool:
    """Whether one has a number for each channel of the other, which lie side by side, and few."""
    x, row = (a, b) if a.size >= b.size else (b, a)
    if x.size < MIN_RUNS or row.size * 2 > RUN or row.ndim < x.ndim - 1 or x.ndim < 3:
        return False
    return (
        1 < x.shape[1] == row.size == row.shape[1 - x.ndim]
        and x.strides[1] == x.itemsize
        and x.dtype == row.dtype
        and bool(x.transpose(0, *range(2, x.ndim), 1).flags.c_contiguous)
    )


def _by_runs(function: Function, out: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """`function` where one operand is a row of the other's channels: repeated to a longer run."""
    x, row = (a, b) if a.size >= b.size else (b, a)
    last, columns = (0, *range(2, x.ndim), 1), x.shape[1]
    y = x if out is x else np.empty_like(x)
    rows, target = (v.transpose(last).reshape(-1, columns) for v in (x, y))
    run = run_of(row.reshape(-1))
    whole = len(rows) // (run.size // columns) * (run.size // columns)
    for part, width in ((slice(0, whole), run.size), (slice(whole, None), columns)):
        values, of_row = rows[part].reshape(-1, width), run[:width]
        operands = (values, of_row) if x is a else (of_row, values)
        function(*operands, out=target[part].reshape(-1, width))
    return y


def widened(function: Function, *operands: Tensor) -> Tensor:
    """`function` of the operands; short floats are computed in float32 and rounded once."""
    dtype = operands[0].dtype
    if not is_short_float(dtype):
        return np.asarray(function(*operands))
    result = function(*(x.astype(np.float32) for x in operands))
    return np.asarray(result).astype(dtype)


@cpu_op("Add", since=7)
def add(a: Tensor, b: Tensor, *, spare: Tensor | None = None) -> Tensor:
    """a + b, broadcast; integers wrap. Source: ONNX Add-14."""
    return swept(np.add, spare, a, b)


@cpu_op("Sub", since=7)
def sub(a: Tensor, b: Tensor, *, spare: Tensor | None = None) -> Tensor:
    """a - b, broadcast; integers wrap. Source: ONNX Sub-14."""
    return swept(np.subtract, spare, a, b)


@cpu_op("Mul", since=7)
def mul(a: Tensor, b: Tensor, *, spare: Tensor | None = None) -> Tensor:
    """a * b, broadcast; integers wrap. Source: ONNX Mul-14."""
    return swept(np.multiply, spare, a, b)


@cpu_op("Div", since=7)
def div(a: Tensor, b: Tensor, *, spare: Tensor | None = None) -> Tensor:
    """a / b, broadcast; integers round towards zero, and x / 0 is 0. Source: ONNX Div-14."""
    if a.dtype.kind not in "iu":
        return swept(np.true_divide, spare, a, b)
    quotient = np.floor_divide(a, b)
    if a.dtype.kind == "i":
        towards_zero = (np.remainder(a, b) != 0) & ((a < 0) != (b < 0))
        quotient = quotient + towards_zero.astype(a.dtype)
    return np.asarray(quotient)


@cpu_op("Mod", since=10)
def mod(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    """Remainder, broadcast, with the sign of b, or of a if `fmod`; x mod 0 is 0 for integers.

    Source: ONNX Mod-28.
    """
    return widened(np.fmod if fmod else np.mod, a, b)


@cpu_op("Pow", since=7)
def pow_(x: Tensor, y: Tensor) -> Tensor:
    """x ** y, broadcast, in the dtype of x.

    An integer to a negative integer power is truncated towards zero; 0 to one is 0.
    Source: ONNX Pow-15.
    """
    if x.dtype.kind in "iu":
        if y.dtype.kind in "iu":
            return _integer_power(x, y)
        return np.asarray(np.power(x.astype(np.float64), y.astype(np.float64)).astype(x.dtype))
    kind = wide(x.dtype)
    if y.dtype.kind in "iu" and np.any(np.abs(y.astype(np.float64)) > 1 << 24):
        kind = np.dtype(np.float64)
    return np.asarray(np.power(x.astype(kind), y.astype(kind)).astype(x.dtype))


def _integer_power(x: Tensor, y: Tensor) -> Tensor:
    # the exponent keeps its own width: a common type of uint64 and int64 would be a float
    exponent = np.where(y < 0, 0, y).astype(np.uint64 if x.dtype.kind == "u" else np.int64)
    base = x.astype(np.uint64 if x.dtype.kind == "u" else np.int64)
    result = np.power(base, exponent).astype(x.dtype)
    if not np.any(y < 0):
        return np.asarray(result)
    odd = np.where(y & y.dtype.type(1), -1, 1)
    inverse = np.where(x == 1, 1, np.where(x.astype(np.int64) == -1, odd, 0)).astype(x.dtype)
    return np.where(y < 0, inverse, result)


@cpu_op("PRelu", since=7)
def prelu(x: Tensor, slope: Tensor, *, memo: Memo = NO_MEMO) -> Tensor:
    """x where x >= 0, else slope * x; `slope` broadcasts onto x. Source: ONNX PRelu-16."""
    if not broadcasts(slope.shape, x.shape):
        raise ValueError(f"a slope of shape {slope.shape} is larger than x, {x.shape}")
    zero = x.dtype.type(0)
    if x.dtype.kind == "f":
        leaky, finite = memo.of(1, "range", lambda: _range_of(slope))
        if leaky:
            return swept(_leaky, None, x, slope)
        if not finite:
            return np.where(x < 0, x * slope, x)
    return np.asarray(np.maximum(x, zero) + slope * np.minimum(x, zero))


def _range_of(slope: Tensor) -> tuple[bool, bool]:
    """Whether all slopes are above 0 and up to 1, and whether all are finite."""
    leaky = slope.size > 0 and 0 < slope.min() and slope.max() <= 1
    return bool(leaky), bool(np.isfinite(slope).all())


def _leaky(x: Tensor, slope: Tensor, out: Tensor | None) -> Tensor:
    """x where x >= 0, else slope * x, for slopes above 0 and up to 1."""
    out = np.multiply(x, slope, out=out)
    return np.asarray(np.maximum(x, out, out=out))


@cpu_op("BitwiseAnd", since=18)
def bitwise_and(a: Tensor, b: Tensor) -> Tensor:
    """a & b, broadcast integers. Source: ONNX BitwiseAnd-18."""
    return np.asarray(np.bitwise_and(a, b))


@cpu_op("BitwiseOr", since=18)
def bitwise_or(a: Tensor, b: Tensor) -> Tensor:
    """a | b, broadcast integers. Source: ONNX BitwiseOr-18."""
    return np.asarray(np.bitwise_or(a, b))


@cpu_op("BitwiseXor", since=18)
def bitwise_xor(a: Tensor, b: Tensor) -> Tensor:
    """a ^ b, broadcast integers. Source: ONNX BitwiseXor-18."""
    return np.asarray(np.bitwise_xor(a, b))


@cpu_op("BitShift", since=11)
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    """x shifted by y bits, broadcast; too large or negative amounts leave only copies of the sign.

    Source: ONNX BitShift-28.
    """
    return np.asarray(np.left_shift(x, y) if direction == "LEFT" else np.right_shift(x, y))


@cpu_op("Equal", since=7)
def equal(a: Tensor, b: Tensor) -> Tensor:
    """a == b, broadcast: bool; any type, strings too. Source: ONNX Equal-19."""
    return np.asarray(np.equal(a, b)).astype(np.bool_)


@cpu_op("Less", since=7)
def less(a: Tensor, b: Tensor) -> Tensor:
    """a < b, broadcast: bool. Source: ONNX Less-13."""
    return np.asarray(np.less(a, b))


@cpu_op("LessOrEqual", since=12)
def less_or_equal(a: Tensor, b: Tensor) -> Tensor:
    """a <= b, broadcast: bool. Source: ONNX LessOrEqual-16."""
    return np.asarray(np.less_equal(a, b))


@cpu_op("Greater", since=7)
def greater(a: Tensor, b: Tensor) -> Tensor:
    """a > b, broadcast: bool. Source: ONNX Greater-13."""
    return np.asarray(np.greater(a, b))


@cpu_op("GreaterOrEqual", since=12)
def greater_or_equal(a: Tensor, b: Tensor) -> Tensor:
    """a >= b, broadcast: bool. Source: ONNX GreaterOrEqual-16."""
    return np.asarray(np.greater_equal(a, b))


@cpu_op("And", since=7)
def and_(a: Tensor, b: Tensor) -> Tensor:
    """Logical and, broadcast bools. Source: ONNX And-7."""
    return np.asarray(np.logical_and(a, b))


@cpu_op("Or", since=7)
def or_(a: Tensor, b: Tensor) -> Tensor:
    """Logical or, broadcast bools. Source: ONNX Or-7."""
    return np.asarray(np.logical_or(a, b))


@cpu_op("Xor", since=7)
def xor(a: Tensor, b: Tensor) -> Tensor:
    """Exclusive or, broadcast bools. Source: ONNX Xor-7."""
    return np.asarray(np.logical_xor(a, b))


@cpu_op("Where", since=9)
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """x where `condition` (bool), else y; all three broadcast. Source: ONNX Where-16."""
    return np.where(condition, x, y)


@cpu_op("Sum", since=8)
def sum_(*data: Tensor) -> Tensor:
    """Sum of broadcast operands, one or more. Source: ONNX Sum-13."""
    return widened(lambda *xs: reduce(np.add, xs), *data)


@cpu_op("Mean", since=8)
def mean(*data: Tensor) -> Tensor:
    """Mean of broadcast operands, one or more. Source: ONNX Mean-13."""
    count = len(data)
    return widened(lambda *xs: reduce(np.add, xs) / xs[0].dtype.type(count), *data)


@cpu_op("Max", since=8)
def max_(*data: Tensor, spare: Tensor | None = None) -> Tensor:
    """Largest of broadcast operands; NaN if any is NaN. Source: ONNX Max-13."""
    if len(data) == 2 and not is_short_float(data[0].dtype):
        return swept(np.maximum, spare, *data)
    return widened(lambda *xs: reduce(np.maximum, xs), *data)


@cpu_op("Min", since=8)
def min_(*data: Tensor, spare: Tensor | None = None) -> Tensor:
    """Smallest of broadcast operands; NaN if any is NaN. Source: ONNX Min-13."""
    if len(data) == 2 and not is_short_float(data[0].dtype):
        return swept(np.minimum, spare, *data)
    return widened(lambda *xs: reduce(np.minimum, xs), *data)


@cpu_op("Clip", since=11)
def clip(
    input: Tensor,
    min: Tensor | None = None,
    max: Tensor | None = None,
    *,
    spare: Tensor | None = None,
) -> Tensor:
    """min(max, max(input, min)) with scalar bounds; NaN stays. Source: ONNX Clip-13."""
    bounds = [bound for bound in (min, max) if bound is not None]
    if not bounds:
        return input
    if len(bounds) == 1:
        return swept(np.minimum if min is None else np.maximum, spare, input, *bounds)
    # of other types it makes float32
    function = np.clip if input.dtype.isbuiltin == 1 else _clipped
    return swept(function, spare, input, *bounds)


def _clipped(x: Tensor, low: Tensor, high: Tensor, out: Tensor | None) -> Tensor:
    return np.asarray(np.minimum(np.maximum(x, low, out=out), high, out=out))
