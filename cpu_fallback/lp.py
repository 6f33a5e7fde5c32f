"""Norms and pools of powers: LRN, LpNormalization, MeanVarianceNormalization, LpPool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpu_fallback.misc import positive_axis
from cpu_fallback.numeric import wide
from cpu_fallback.registry import Tensor, cpu_op


@cpu_op("LRN", since=1)
def lrn(
    x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    """`x` [N, C, ...] over a power of the squares of `size` channels around each.

    Source: ONNX LRN-13.
    """
    values = x.astype(wide(x.dtype))
    before, after = (size - 1) // 2, size // 2
    widths = [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)]
    padded = np.pad(values * values, widths)
    total = sum((padded[:, i : i + x.shape[1]] for i in range(size)), np.zeros_like(values))
    return np.asarray((values / (bias + alpha / size * total) ** beta).astype(x.dtype))


@cpu_op("LpNormalization", since=1)
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """`x` over its p-norm along `axis`; 0 where the norm is 0.

    Raises: ValueError unless p is 1 or 2. Source: ONNX LpNormalization-22.
    """
    where, values = positive_axis(axis, x.ndim), x.astype(wide(x.dtype))
    if p == 1:
        norm = np.abs(values).sum(axis=where, keepdims=True)
    elif p == 2:
        norm = np.sqrt((values * values).sum(axis=where, keepdims=True))
    else:
        raise ValueError(f"LpNormalization is defined for p of 1 and 2, not {p}")
    return np.asarray(np.where(norm == 0, 0, values / norm).astype(x.dtype))


@cpu_op("MeanVarianceNormalization", since=9)
def mean_variance_normalization(x: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    """(`x` - mean) / (standard deviation + 1e-9) over `axes`.

    Source: ONNX MeanVarianceNormalization-13.
    """
    over = tuple(positive_axis(axis, x.ndim) for axis in axes)
    values = x.astype(wide(x.dtype))
    centred = values - values.mean(axis=over, keepdims=True)
    deviation = np.sqrt((centred * centred).mean(axis=over, keepdims=True))
    return np.asarray((centred / (deviation + 1e-9)).astype(x.dtype))


def _padding(
    sizes: Sequence[int],
    reach: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str,
    ceil_mode: int,
) -> tuple[list[tuple[int, int]], list[int]]:
    """Zeros before and after each dimension, and the output sizes."""
    rank = len(sizes)
    flat = list(pads or [0] * (2 * rank))
    widths, outputs = [], []
    for d, (size, window, stride) in enumerate(zip(sizes, reach, strides, strict=True)):
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            count = -(-size // stride)
            total = max(0, (count - 1) * stride + window - size)
            first = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            low, high = first, total - first
        else:
            low, high = (0, 0) if auto_pad == "VALID" else (flat[d], flat[rank + d])
            room = size + low + high - window
            count = (-(-room // stride) if ceil_mode else room // stride) + 1
            if ceil_mode and (count - 1) * stride >= size + low:
                count -= 1
        missing = (count - 1) * stride + window - size - low
        widths.append((low, max(missing, 0)))
        outputs.append(max(count, 0))
    return widths, outputs


@cpu_op("LpPool", since=2)
def lp_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    p: int = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """p-norm of each window of `x` [N, C, ...]; padding counts as 0. Source: ONNX LpPool-22."""
    rank = len(kernel_shape)
    stride, dilation = list(strides or [1] * rank), list(dilations or [1] * rank)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilation, strict=True)]
    widths, outputs = _padding(x.shape[2:], reach, stride, pads, auto_pad, ceil_mode)
    powers = np.abs(x.astype(wide(x.dtype))) ** p
    padded = np.pad(powers, [(0, 0), (0, 0), *widths])
    spatial = tuple(range(2, 2 + rank))
    views = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=spatial)
    starts = tuple(slice(0, n * s, s) for n, s in zip(outputs, stride, strict=True))
    taps = tuple(slice(None, None, d) for d in dilation)
    windows = views[(slice(None), slice(None), *starts, *taps)]
    total = windows.sum(axis=tuple(range(2 + rank, 2 + 2 * rank)))
    return np.asarray((total ** (1 / p)).astype(x.dtype))


@cpu_op("GlobalLpPool", since=2)
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    """p-norm of each channel of `x` [N, C, ...]: [N, C, 1, ...]. Source: ONNX GlobalLpPool-22."""
    powers = np.abs(x.astype(wide(x.dtype))) ** p
    total = powers.sum(axis=tuple(range(2, x.ndim)), keepdims=True)
    return np.asarray((total ** (1 / p)).astype(x.dtype))
