"""Running sums, generators of tensors, triangles, one-hot, Einsum and reversal."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from cpu_fallback.numeric import element_type, is_integer, wide
from cpu_fallback.registry import Tensor, cpu_op


def positive_axis(axis: int, rank: int) -> int:
    """`axis` counted from the front. Raises: ValueError outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is outside [-{rank}, {rank})")
    return axis % rank


def _running(
    x: Tensor, axis: Tensor, exclusive: int, reverse: int, start: int, step: Callable[..., Tensor]
) -> Tensor:
    where = positive_axis(int(axis.reshape(())), x.ndim)
    values = np.flip(x, where) if reverse else x
    work = x.dtype if x.dtype.kind in "iufc" and x.dtype.itemsize >= 4 else wide(x.dtype)
    if is_integer(x.dtype):
        work = x.dtype
    result = step(values, axis=where, dtype=work)
    if exclusive:
        result = np.roll(result, 1, axis=where)
        result[tuple(slice(0, 1) if i == where else slice(None) for i in range(x.ndim))] = start
    return np.ascontiguousarray(np.flip(result, where) if reverse else result).astype(x.dtype)


@cpu_op("CumSum", since=11)
def cumsum(x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """Sums up to each element along `axis`; same shape and type, integers wrap.

    Raises: ValueError for an axis out of range. Source: ONNX CumSum-14.
    """
    return _running(x, axis, exclusive, reverse, 0, np.cumsum)


@cpu_op("CumProd", since=26)
def cumprod(x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """Products up to each element along `axis`; same shape and type, integers wrap.

    Raises: ValueError for an axis out of range. Source: ONNX CumProd-26.
    """
    return _running(x, axis, exclusive, reverse, 1, np.cumprod)


@cpu_op("Einsum", since=12)
def einsum(*operands: Tensor, equation: str) -> Tensor:
    """Einstein summation of tensors of one type; float16 is summed in float32.

    Source: ONNX Einsum-28.
    """
    dtype = operands[0].dtype
    narrow = dtype.kind not in "iuc" and not is_integer(dtype)
    values = [x.astype(wide(dtype)) for x in operands] if narrow else list(operands)
    result = np.einsum(equation.replace(" ", ""), *values, optimize="greedy")
    return np.array(result, dtype=dtype)


@cpu_op("Trilu", since=14)
def trilu(x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    """Upper or lower triangle of each matrix in `x` [..., rows, columns], 0 elsewhere.

    Source: ONNX Trilu-14.
    """
    rows, columns = x.shape[-2:]
    shift = 0 if k is None else max(-rows - 1, min(int(k.reshape(())), columns + 1))
    distance = np.arange(columns) - np.arange(rows)[:, None]
    keep = distance >= shift if upper else distance <= shift
    return np.where(keep, x, np.zeros((), x.dtype))


@cpu_op("EyeLike", since=9)
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    """Ones on diagonal `k`, of the shape of `x` ([rows, columns] or [n]); its type or `dtype`.

    Raises: ValueError for another rank. Source: ONNX EyeLike-22.
    """
    if x.ndim not in (1, 2):
        raise ValueError(f"EyeLike takes rank 1 or 2, not shape {x.shape}")
    rows, columns = x.shape if x.ndim == 2 else (x.shape[0], x.shape[0])
    kind = x.dtype if dtype is None else element_type(dtype)
    ones = np.arange(columns) - np.arange(rows)[:, None] == k
    return np.asarray(ones.astype(kind))


@cpu_op("Range", since=11)
def range_(start: Tensor, limit: Tensor, delta: Tensor, *, stash_type: int = 1) -> Tensor:
    """start, start + delta, ... up to limit (exclusive); 1-D of the type of `start`.

    16-bit floats are computed in `stash_type`.

    Raises: ValueError if delta is 0. Source: ONNX Range-27.
    """
    dtype = start.dtype
    first, last, step = (value.reshape(()).astype(dtype) for value in (start, limit, delta))
    if step == 0:
        raise ValueError("Range with delta 0 never reaches its limit")
    if is_integer(dtype):
        low, high, by = int(first), int(last), int(step)
        count = max(0, -((low - high) // by))
        return np.arange(low, low + count * by, by, dtype=np.int64)[:count].astype(dtype)
    work = dtype if dtype.kind == "f" and dtype.itemsize > 2 else element_type(stash_type)
    first, last, step = first.astype(work), last.astype(work), step.astype(work)
    count = max(0, math.ceil(float(last - first) / float(step)))
    return np.asarray((first + np.arange(count).astype(work) * step).astype(dtype))


@cpu_op("OneHot", since=9)
def one_hot(indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    """values[1] where the new axis equals the index, values[0] elsewhere.

    Indices in [-depth, 0) count from the end; those out of range give values[0] everywhere.

    Raises: ValueError for an axis out of range. Source: ONNX OneHot-28.
    """
    size = int(depth.reshape(-1)[0])
    where = positive_axis(axis, indices.ndim + 1)
    wanted = indices.astype(np.int64) if indices.dtype.kind == "f" else indices
    wanted = np.expand_dims(np.where(wanted < 0, wanted + size, wanted), where)
    places = np.arange(size).reshape([-1 if i == where else 1 for i in range(indices.ndim + 1)])
    return np.asarray(np.where(wanted == places, values[1], values[0]), dtype=values.dtype)


@cpu_op("Compress", since=9)
def compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    """Slices along `axis` (elements of the flat tensor without it) where condition is true.

    Source: ONNX Compress-28.
    """
    if axis is None:
        return np.asarray(np.compress(condition, x.ravel()))
    return np.asarray(np.compress(condition, x, axis=positive_axis(axis, x.ndim)))


@cpu_op("NonZero", since=9)
def non_zero(x: Tensor) -> Tensor:
    """Indices of the elements that are not 0, row-major: [rank, count] int64.

    Source: ONNX NonZero-13.
    """
    if x.ndim == 0:
        return np.zeros((0, int(bool(x))), np.int64)
    return np.array(np.nonzero(x), dtype=np.int64).reshape(x.ndim, -1)


@cpu_op("ReverseSequence", since=10)
def reverse_sequence(
    x: Tensor, sequence_lens: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    """`x` with the first sequence_lens[b] steps of each batch entry in reverse order.

    Raises: ValueError unless the two axes are 0 and 1, and for lengths out of range.
    Source: ONNX ReverseSequence-28.
    """
    if {batch_axis, time_axis} != {0, 1}:
        raise ValueError(f"batch_axis {batch_axis} and time_axis {time_axis} must be 0 and 1")
    steps = x.shape[time_axis]
    if np.any((sequence_lens < 0) | (sequence_lens > steps)):
        raise ValueError(f"sequence_lens {sequence_lens.tolist()} for {steps} steps")
    time, lengths = np.arange(steps)[:, None], sequence_lens[None, :]
    source = np.where(time < lengths, lengths - 1 - time, time)
    batch = np.arange(x.shape[batch_axis])[None, :]
    if time_axis == 0:
        return np.asarray(x[source, batch])
    return np.asarray(x[batch.T, source.T])
