"""Reshape, Squeeze, Unsqueeze, Flatten, Identity, Shape, Size, ConstantOfShape, Range, EyeLike."""

from __future__ import annotations

import math

import numpy as np

from cpu_fallback.numeric import element_type, is_integer
from cpu_fallback.registry import Tensor, Value, cpu_op


@cpu_op("Reshape", since=5)
def reshape(data: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    """View of `data` (any type) in `shape` ([rank] int64): 0 copies a size, -1 is solved for.

    Raises: ValueError if the element counts differ, or for sizes below -1.
    Source: ONNX Reshape-25.
    """
    sizes = [int(d) for d in shape.reshape(-1)]
    if min(sizes, default=0) < -1:
        raise ValueError(f"{sizes} has a size below -1")
    if not allowzero:
        sizes = [data.shape[axis] if d == 0 else d for axis, d in enumerate(sizes)]
    return data.reshape(sizes)


@cpu_op("Squeeze", since=13)
def squeeze(data: Tensor, axes: Tensor | None = None) -> Tensor:
    """View of `data` without the `axes` (default: all) of size 1. Source: ONNX Squeeze-25."""
    return np.squeeze(data, None if axes is None else tuple(int(a) for a in axes.reshape(-1)))


@cpu_op("Unsqueeze", since=13)
def unsqueeze(data: Tensor, axes: Tensor) -> Tensor:
    """View of `data` with axes of size 1 put in at `axes` of the output.

    Source: ONNX Unsqueeze-25.
    """
    return np.expand_dims(data, tuple(int(a) for a in axes.reshape(-1)))


@cpu_op("Flatten", since=1)
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    """View of `x` as a matrix: axes before `axis` times the rest. Source: ONNX Flatten-25."""
    if not -x.ndim <= axis <= x.ndim:
        raise ValueError(f"axis {axis} is outside [-{x.ndim}, {x.ndim}]")
    at = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:at]), math.prod(x.shape[at:]))


@cpu_op("Identity", since=1)
def identity(x: Value) -> Value:
    """`x` itself: a tensor, a sequence or an optional. Source: ONNX Identity-25."""
    return x


@cpu_op("Shape", since=1)
def shape_of(data: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    """Sizes of axes `start` up to `end`, [n] int64. Source: ONNX Shape-25."""
    return np.array(data.shape[start:end], dtype=np.int64)


@cpu_op("Size", since=1)
def size_of(data: Tensor) -> Tensor:
    """Number of elements, a scalar int64. Source: ONNX Size-25."""
    return np.array(data.size, dtype=np.int64)


@cpu_op("ConstantOfShape", since=9)
def constant_of_shape(shape: Tensor, *, value: Tensor | None = None) -> Tensor:
    """A tensor of `shape` ([rank] int64) filled with the one element of `value` (default 0.0).

    Source: ONNX ConstantOfShape-25.
    """
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value)
    return np.full([int(d) for d in shape.reshape(-1)], fill.reshape(-1)[0], dtype=fill.dtype)


@cpu_op("Range", since=11)
def range_of(start: Tensor, limit: Tensor, delta: Tensor, *, stash_type: int = 1) -> Tensor:
    """`start + i * delta` up to but without `limit`, all scalars of one type; [n] of that type.

    Raises: ValueError if `delta` is 0. Source: ONNX Range-27.
    """
    dtype = start.dtype
    terms = [v.reshape(-1)[0] for v in (start, limit, delta)]
    if not terms[2]:
        raise ValueError("delta is 0")
    if is_integer(dtype):
        first, last, step = (int(v) for v in terms)
        count = max(-((first - last) // step), 0)
        return (first + np.arange(count, dtype=np.int64) * step).astype(dtype)
    stash = element_type(stash_type) if dtype.itemsize < 4 else np.dtype(np.float64)
    a, b, c = (float(v.astype(stash)) for v in terms)
    count = max(math.ceil((b - a) / c), 0)
    return (a + np.arange(count) * c).astype(stash).astype(dtype)


@cpu_op("EyeLike", since=9)
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    """Ones on diagonal `k`, zeros elsewhere, in the shape of the matrix `x`.

    Source: ONNX EyeLike-22.
    """
    kind = x.dtype if dtype is None else element_type(dtype)
    rows, columns = x.shape
    return np.eye(rows, columns, k=k, dtype=np.bool_).astype(kind)
