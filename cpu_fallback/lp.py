"""Norms over channels and axes: LRN, LpNormalization, MeanVarianceNormalization."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpu_fallback.numeric import mean_over, positive_axis, sum_over, wide
from cpu_fallback.products import spans
from cpu_fallback.registry import Tensor, cpu_op
from cpu_fallback.sweeps import CACHED


@cpu_op("LRN", since=1)
def lrn(
    x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    """`x` [N, C, ...] over a power of the squares of `size` channels around each.

    Source: ONNX LRN-13.
    """
    values = x.astype(wide(x.dtype), copy=False)
    kind, channels = values.dtype.type, x.shape[1]
    before = (size - 1) // 2
    out = np.empty_like(values)
    if x.ndim > 2 and values.strides[1] == values.itemsize:
        last = (0, *range(2, x.ndim), 1)
        _beside(values.transpose(last), out.transpose(last), size, alpha, beta, bias)
        return out.astype(x.dtype, copy=False)

    for at in spans(channels, max(1, min(channels, x.size // CACHED))):
        first, last = max(0, at.start - before), min(channels, at.stop + size // 2)
        squares = np.square(values[:, first:last])
        total = np.empty_like(values[:, at])
        for channel in range(at.start, at.stop):
            low, high = max(first, channel - before), min(last, channel + size // 2 + 1)
            np.add.reduce(
                squares[:, low - first : high - first], 1, out=total[:, channel - at.start]
            )
        total *= kind(alpha / size)
        total += kind(bias)
        np.divide(values[:, at], _power(total, beta), out=out[:, at])

    return out.astype(x.dtype, copy=False)


def _beside(x: Tensor, out: Tensor, size: int, alpha: float, beta: float, bias: float) -> None:
    """`lrn` of `x` [N, spatial, C] into `out`, whose channels lie side by side."""
    channels, before, kind = x.shape[-1], (size - 1) // 2, x.dtype.type
    for at in spans(x.shape[1], max(1, min(x.shape[1], x.size // CACHED))):
        part = x[:, at]
        squares = np.zeros((*part.shape[:-1], channels + size - 1), x.dtype)
        np.square(part, out=squares[..., before : before + channels])
        total = squares[..., :channels].copy()
        for tap in range(1, size):
            total += squares[..., tap : tap + channels]
        total *= kind(alpha / size)
        total += kind(bias)
        np.divide(part, _power(total, beta), out=out[:, at])


def _power(x: Tensor, exponent: float) -> Tensor:
    """`x`, which is not negative, to a power; a usual one by roots, which are much faster."""
    if exponent == 0.75:
        return np.asarray(np.sqrt(x) * np.sqrt(np.sqrt(x)))
    return np.asarray(x ** x.dtype.type(exponent))


@cpu_op("LpNormalization", since=1)
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """`x` over its p-norm along `axis`; 0 where the norm is 0.

    Raises: ValueError unless p is 1 or 2. Source: ONNX LpNormalization-22.
    """
    where, values = positive_axis(axis, x.ndim), x.astype(wide(x.dtype))
    if p == 1:
        norm = sum_over(np.abs(values), (where,))
    elif p == 2:
        norm = np.sqrt(sum_over(values * values, (where,)))
    else:
        raise ValueError(f"LpNormalization is defined for p of 1 and 2, not {p}")
    return np.asarray(np.where(norm == 0, 0, values / norm).astype(x.dtype))


@cpu_op("MeanVarianceNormalization", since=9)
def mean_variance_normalization(x: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    """(`x` - mean) / (standard deviation + 1e-9) over `axes`.

    Source: ONNX MeanVarianceNormalization-13.
    """
    values = x.astype(wide(x.dtype))
    over = tuple(axes)
    centred = values - mean_over(values, over)
    deviation = np.sqrt(mean_over(centred * centred, over))
    return np.asarray((centred / (deviation + 1e-9)).astype(x.dtype))
