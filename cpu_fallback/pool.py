"""Pooling in NumPy: loops over axes and taps of the kernel, each step on whole tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from cpu_fallback.numeric import integer_range, is_integer, mean_over, sum_over, wide
from cpu_fallback.products import spans
from cpu_fallback.registry import NO_MEMO, Memo, Tensor, cpu_op
from cpu_fallback.sweeps import CACHED
from cpu_fallback.windows import WindowAttributes, Windows, windows


@cpu_op("MaxPool", since=1)
def max_pool(
    x: Tensor,
    *,
    ceil_mode: int = 0,
    kernel_shape: Sequence[int],
    storage_order: int = 0,
    n_outputs: int = 1,
    memo: Memo = NO_MEMO,
    **window: Unpack[WindowAttributes],
) -> tuple[Tensor, ...]:
    """Maximum of each window of `x` [N, C, spatial], any real type; NaN wins over every number.

    Returns: [N, C, out], and if asked for the flat index in `x` of each maximum, int64; the first
    one of equal elements; column-major over the spatial axes if `storage_order` is 1.
    Source: ONNX MaxPool-22.
    """
    steps = _steps(memo, x, kernel_shape, ceil_mode, window)
    if n_outputs > 1:
        win = steps.win
        return _max_and_index(x, win.padded(x, _lowest(x.dtype)), win, storage_order)
    return (_by_axis(x, steps, np.maximum, _lowest(x.dtype)),)


@dataclass(frozen=True)
class _Steps:
    """Windows, and those of each axis alone that has any, with the taps that they read."""

    win: Windows
    each: tuple[tuple[Windows, tuple[Any, ...]], ...]


def _steps(
    memo: Memo,
    x: Tensor,
    kernel_shape: Sequence[int],
    ceil_mode: int,
    window: WindowAttributes,
) -> _Steps:
    def make() -> _Steps:
        win = windows(x.shape[2:], kernel_shape, ceil_mode=ceil_mode, **window)
        axes = [i for i, k in enumerate(win.kernel) if k > 1 or win.size[i] != win.out[i]]
        alone = [win.along(axis) for axis in axes]
        return _Steps(win, tuple((one, tuple(map(one.tap, one.taps()))) for one in alone))

    return memo.sized(x.shape, make)


def _by_axis(x: Tensor, steps: _Steps, join: np.ufunc, outside: float | int) -> Tensor:
    """`join` over the taps of every window of `x` [N, C, spatial], one axis after the other."""
    out = np.empty_like(x, shape=(*x.shape[:2], *steps.win.out))
    if not out.size:
        return out

    axis = 0 if x.shape[0] > 1 else 1
    count = min(x.shape[axis], max(1, x.size // CACHED))
    if axis and x.strides[1] == x.itemsize:
        count = 1  # channels that lie side by side are joined together
    for at in spans(x.shape[axis], count):
        cut = (*(slice(None),) * axis, at)
        part, target = x[cut], out[cut]
        for number, (one, taps) in enumerate(steps.each, 1):
            padded = one.padded(part, outside)
            first, *others = (padded[tap] for tap in taps)
            part = target if number == len(steps.each) else np.empty_like(first)
            if not others:
                part[...] = first
            for index, tap in enumerate(others):
                join(part if index else first, tap, out=part)
        if not steps.each:
            target[...] = part
    return out


def _lowest(dtype: np.dtype[Any]) -> float | int:
    return integer_range(dtype)[0] if is_integer(dtype) else -math.inf


def _max_and_index(
    x: Tensor, padded: Tensor, win: Windows, storage_order: int
) -> tuple[Tensor, Tensor]:
    size = math.prod(win.size)
    places = np.arange(size).reshape(win.size[::-1] if storage_order else win.size)
    places = win.padded(places.T if storage_order else places, -1)
    y = np.full((*x.shape[:2], *win.out), _lowest(x.dtype), x.dtype)
    index = np.full(y.shape, -1, np.int64)
    for tap in win.taps():
        value, place = padded[win.tap(tap)], places[win.tap(tap)]
        better = (value > y) | (index < 0) | (np.isnan(value) & ~np.isnan(y))
        better &= place >= 0
        y = np.where(better, value, y)
        index = np.where(better, place, index)
    planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * len(win.out))
    return y, np.where(index < 0, index, index + planes * size)


@cpu_op("AveragePool", since=1)
def average_pool(
    x: Tensor,
    *,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    kernel_shape: Sequence[int],
    memo: Memo = NO_MEMO,
    **window: Unpack[WindowAttributes],
) -> Tensor:
    """Mean of each window of `x` [N, C, spatial] float; float16 is summed in float32.

    Elements divided by: those inside `x`, with `count_include_pad` those inside the padded `x`.
    A window without any gives NaN. Returns: [N, C, out]. Source: ONNX AveragePool-22.
    """
    steps = _steps(memo, x, kernel_shape, ceil_mode, window)
    win, total = steps.win, _by_axis(x.astype(wide(x.dtype), copy=False), steps, np.add, 0)
    count = memo.sized(
        (x.shape, x.dtype), lambda: _counts(win, bool(count_include_pad), total.dtype)
    )
    total /= count
    return total.astype(x.dtype, copy=False)


def _counts(win: Windows, include_pad: bool, dtype: np.dtype[Any]) -> Tensor:
    """How many elements each window has."""
    count = np.ones((), dtype)
    for axis in range(len(win.out)):
        starts = np.arange(win.out[axis]) * win.strides[axis] - win.begin[axis]
        at = starts[:, None] + np.arange(win.kernel[axis]) * win.dilations[axis]
        low, high = 0, win.size[axis]
        if include_pad:
            low, high = -win.begin[axis], high + win.end[axis]
        inside = ((at >= low) & (at < high)).sum(axis=1)
        count = count[..., None] * inside.astype(dtype)
    return count


@cpu_op("LpPool", since=1)
def lp_pool(
    x: Tensor,
    *,
    ceil_mode: int = 0,
    kernel_shape: Sequence[int],
    p: int = 2,
    memo: Memo = NO_MEMO,
    **window: Unpack[WindowAttributes],
) -> Tensor:
    """p-norm of each window of `x` [N, C, spatial] float. Returns: [N, C, out].

    Source: ONNX LpPool-22."""
    steps = _steps(memo, x, kernel_shape, ceil_mode, window)
    powers = np.abs(x.astype(wide(x.dtype), copy=False)) ** p
    total = _by_axis(powers, steps, np.add, 0)
    return (total ** (1.0 / p)).astype(x.dtype, copy=False)


def _spatial_axes(x: Tensor) -> tuple[int, ...]:
    if x.ndim < 2:
        raise ValueError(f"x {x.shape} needs at least the axes N and C")
    return tuple(range(2, x.ndim))


@cpu_op("GlobalAveragePool", since=1)
def global_average_pool(x: Tensor) -> Tensor:
    """Mean over the spatial axes of `x` [N, C, spatial] float. Returns: [N, C, 1, ...].

    Source: ONNX GlobalAveragePool-22."""
    mean = mean_over(x.astype(wide(x.dtype), copy=False), _spatial_axes(x))
    return np.asarray(mean).astype(x.dtype, copy=False)


@cpu_op("GlobalMaxPool", since=1)
def global_max_pool(x: Tensor) -> Tensor:
    """Maximum over the spatial axes of `x` [N, C, spatial] float; NaN wins.

    Returns: [N, C, 1, ...]; -inf for no element. Source: ONNX GlobalMaxPool-22."""
    return np.asarray(np.max(x, axis=_spatial_axes(x), keepdims=True, initial=-math.inf))


@cpu_op("GlobalLpPool", since=1)
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    """p-norm over the spatial axes of `x` [N, C, spatial] float. Returns: [N, C, 1, ...].

    Source: ONNX GlobalLpPool-22."""
    powers = np.abs(x.astype(wide(x.dtype), copy=False)) ** p
    total = sum_over(powers, _spatial_axes(x))
    return np.asarray(total ** (1.0 / p), x.dtype)


@cpu_op("MaxUnpool", since=9)
def max_unpool(
    x: Tensor,
    indices: Tensor,
    output_shape: Tensor | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """`x` [N, C, spatial] written to the flat `indices` (int64, same shape) of a tensor of zeros.

    Indices count in the shape that the attributes give; a larger `output_shape` [N, C, out] gets
    that tensor in its front corner. Returns: [N, C, out].

    Raises: ValueError if `indices` has another shape, or one is outside.
    Source: ONNX MaxUnpool-22.
    """
    if x.shape != indices.shape:
        raise ValueError(f"{indices.shape} indices do not fit {x.shape} elements")
    rank = x.ndim - 2
    steps, around = strides or (1,) * rank, pads or (0,) * (2 * rank)
    natural = tuple(
        (n - 1) * s + k - around[axis] - around[rank + axis]
        for axis, (n, s, k) in enumerate(zip(x.shape[2:], steps, kernel_shape, strict=True))
    )
    flat = np.zeros(math.prod((*x.shape[:2], *natural)), x.dtype)
    if np.any((indices < 0) | (indices >= flat.size)):
        raise ValueError(f"an index is outside [0, {flat.size})")
    flat[indices.reshape(-1)] = x.reshape(-1)
    y = flat.reshape(*x.shape[:2], *natural)
    if output_shape is None or tuple(output_shape) == y.shape:
        return y
    out = np.zeros(tuple(output_shape), x.dtype)
    out[tuple(slice(0, n) for n in y.shape)] = y
    return out
