"""Running sums, generators of tensors, triangles, one-hot, Einsum, determinants, reversal, and
strings without stop words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cpu_fallback.numeric import is_integer, positive_axis, wide
from cpu_fallback.registry import Tensor, cpu_op


def _running(
    x: Tensor, axis: Tensor, exclusive: int, reverse: int, start: int, step: Callable[..., Tensor]
) -> Tensor:
    where = positive_axis(int(axis.reshape(())), x.ndim)
    values = np.flip(x, where) if reverse else x
    # NumPy adds one element after the other, with errors that grow with their number
    work = x.dtype if is_integer(x.dtype) else np.dtype(np.float64)
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


@cpu_op("Det", since=11)
def det(x: Tensor) -> Tensor:
    """Determinants of the matrices in the last two axes of `x`. Source: ONNX Det-22."""
    return np.asarray(np.linalg.det(x.astype(wide(x.dtype)))).astype(x.dtype)


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

    Raises: ValueError unless the two axes are 0 and 1, for lengths out of range, or more or fewer
        of them than batch entries. Source: ONNX ReverseSequence-28.
    """
    if {batch_axis, time_axis} != {0, 1}:
        raise ValueError(f"batch_axis {batch_axis} and time_axis {time_axis} must be 0 and 1")
    if sequence_lens.shape != (x.shape[batch_axis],):
        raise ValueError(f"lengths of shape {sequence_lens.shape} do not fit {x.shape}")
    steps = x.shape[time_axis]
    if np.any((sequence_lens < 0) | (sequence_lens > steps)):
        raise ValueError(f"sequence_lens {sequence_lens.tolist()} for {steps} steps")
    time, lengths = np.arange(steps)[:, None], sequence_lens[None, :]
    source = np.where(time < lengths, lengths - 1 - time, time)
    batch = np.arange(x.shape[batch_axis])[None, :]
    if time_axis == 0:
        return np.asarray(x[source, batch])
    return np.asarray(x[batch.T, source.T])


@cpu_op("StringNormalizer", since=10)
def string_normalizer(
    x: Tensor,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: Sequence[str] = (),
) -> Tensor:
    """The elements of `x` ([C] or [1, C]) that are no stop words, in the case asked for.

    If none is left, one empty string. Cases are Unicode's, whatever the locale.

    Raises: KeyError for an unknown action. Source: ONNX StringNormalizer-10.
    """
    cases: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}
    same, change = cases["NONE" if is_case_sensitive else "LOWER"], cases[case_change_action]
    left_out = {same(word) for word in stopwords}
    kept = [change(text) for text in x.reshape(-1) if same(text) not in left_out]
    return np.array(kept or [""], object).reshape((*x.shape[:-1], -1))
