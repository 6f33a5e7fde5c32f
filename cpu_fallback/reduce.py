"""Reductions over axes, ArgMax and ArgMin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cpu_fallback.elementwise import is_short_float
from cpu_fallback.numeric import mean_over, sum_over
from cpu_fallback.registry import Tensor, cpu_op

Axes = tuple[int, ...] | None


def _axes(axes: Tensor | None, noop_with_empty_axes: int) -> Axes:
    if axes is None or axes.size == 0:
        return () if noop_with_empty_axes else None
    return tuple(int(a) for a in axes.reshape(-1))


def _register(
    op_type: str, since: int, function: Callable[[Tensor, Axes, bool], Any], doc: str
) -> None:
    """Registers a reduction; short floats are reduced in float32 and rounded once."""

    def reduction(
        data: Tensor,
        axes: Tensor | None = None,
        *,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:
        x = data.astype(np.float32) if is_short_float(data.dtype) else data
        result = function(x, _axes(axes, noop_with_empty_axes), bool(keepdims))
        return np.asarray(result).astype(data.dtype, copy=False)

    reduction.__doc__ = f"{doc} Source: ONNX {op_type}-{since}."
    cpu_op(op_type, since)(reduction)


def _reduced(function: Any, x: Tensor, axes: Axes, keep: bool, **options: Any) -> Any:
    """A reduction by a ufunc: `np.sum` and its like take three times as long for few elements."""
    return function.reduce(x, axis=axes, keepdims=keep, **options)


def _sum(x: Tensor, axes: Axes, keep: bool) -> Any:
    return sum_over(x, axes, keep)


def _mean(x: Tensor, axes: Axes, keep: bool) -> Any:
    if x.dtype.kind == "f":
        return mean_over(x, axes, keep)
    return np.trunc(np.mean(x, axis=axes, keepdims=keep, dtype=np.float64))


def _max(x: Tensor, axes: Axes, keep: bool) -> Any:
    return _reduced(np.maximum, x, axes, keep, initial=_end(x.dtype, False))


def _min(x: Tensor, axes: Axes, keep: bool) -> Any:
    return _reduced(np.minimum, x, axes, keep, initial=_end(x.dtype, True))


def _end(dtype: np.dtype[Any], high: bool) -> Any:
    """The value that a minimum (high) or maximum of nothing has."""
    if dtype.kind == "b":
        return high
    if dtype.kind == "f":
        return dtype.type(np.inf if high else -np.inf)
    return np.iinfo(dtype).max if high else np.iinfo(dtype).min


def _prod(x: Tensor, axes: Axes, keep: bool) -> Any:
    return _reduced(np.multiply, x, axes, keep, dtype=x.dtype)


def _l1(x: Tensor, axes: Axes, keep: bool) -> Any:
    return _sum(np.abs(x), axes, keep)


def _l2(x: Tensor, axes: Axes, keep: bool) -> Any:
    y = x if x.dtype.kind == "f" else x.astype(np.float64)
    return np.sqrt(_sum(y * y, axes, keep))


def _log_sum(x: Tensor, axes: Axes, keep: bool) -> Any:
    return np.log(_sum(x, axes, keep))


def _log_sum_exp(x: Tensor, axes: Axes, keep: bool) -> Any:
    top = _max(x, axes, True)
    top = np.where(np.isfinite(top), top, x.dtype.type(0))
    total = np.log(_sum(np.exp(x - top), axes, True)) + top
    return total if keep else np.squeeze(total, axis=axes)


def _sum_square(x: Tensor, axes: Axes, keep: bool) -> Any:
    return _sum(x * x, axes, keep)


_register("ReduceSum", 13, _sum, "Sum over `axes`.")
_register("ReduceMean", 18, _mean, "Mean over `axes`; NaN of nothing.")
_register("ReduceMax", 18, _max, "Largest over `axes`; NaN if any is NaN.")
_register("ReduceMin", 18, _min, "Smallest over `axes`; NaN if any is NaN.")
_register("ReduceProd", 18, _prod, "Product over `axes`.")
_register("ReduceL1", 18, _l1, "Sum of absolute values over `axes`.")
_register("ReduceL2", 18, _l2, "Root of the sum of squares over `axes`.")
_register("ReduceLogSum", 18, _log_sum, "Logarithm of the sum over `axes`.")
_register("ReduceLogSumExp", 18, _log_sum_exp, "log(sum(exp(data))) over `axes`, stable.")
_register("ReduceSumSquare", 18, _sum_square, "Sum of squares over `axes`.")


def _arg(
    function: Callable[..., Any], data: Tensor, axis: int, keepdims: int, select_last_index: int
) -> Tensor:
    x = data.astype(np.float32) if is_short_float(data.dtype) else data
    if select_last_index:
        found = x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis, keepdims=bool(keepdims))
    else:
        found = function(x, axis=axis, keepdims=bool(keepdims))
    return np.asarray(found, dtype=np.int64)


@cpu_op("ArgMax", since=11)
def arg_max(
    data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    """Index of the largest element along `axis`: int64; NaN counts as largest.

    Source: ONNX ArgMax-13.
    """
    return _arg(np.argmax, data, axis, keepdims, select_last_index)


@cpu_op("ArgMin", since=11)
def arg_min(
    data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    """Index of the smallest element along `axis`: int64; NaN counts as smallest.

    Source: ONNX ArgMin-13.
    """
    return _arg(np.argmin, data, axis, keepdims, select_last_index)
