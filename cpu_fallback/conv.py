"""Conv and ConvTranspose in NumPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from cpu_fallback.convolve import Convolution, convolution
from cpu_fallback.numeric import wide
from cpu_fallback.registry import NO_MEMO, Memo, Tensor, cpu_op
from cpu_fallback.windows import SAME, WindowAttributes, same_pads, windows


@cpu_op("Conv", since=1)
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    memo: Memo = NO_MEMO,
    **window: Unpack[WindowAttributes],
) -> Tensor:
    """Convolution of `x` [N, C, spatial] with `w` [M, C/group, kernel] plus `b` [M].

    float16 and bfloat16 are computed in float32 and rounded at the end.
    Returns: [N, M, out], dtype of `x`. Raises: ValueError if shapes do not fit.
    Source: ONNX Conv-22.
    """

    def prepared() -> Convolution:
        _check(x, w, group, kernel_shape, w.shape[1] * group)
        if w.shape[0] % group:
            raise ValueError(f"{w.shape[0]} output channels do not split into {group} groups")
        win = windows(x.shape[2:], w.shape[2:], **window)
        return convolution(x.shape[0], w.shape, win, group, dtype, 1 in memo.constants)

    check_bias(b, w.shape[0])
    dtype = wide(x.dtype)
    convolve = memo.sized((x.shape, w.shape, dtype), prepared)
    if x.dtype == dtype:
        return convolve(x, w, b, memo)
    bias = None if b is None else b.astype(dtype)
    return convolve(x.astype(dtype), w.astype(dtype), bias, memo).astype(x.dtype)


def _check(
    x: Tensor, w: Tensor, group: int, kernel_shape: Sequence[int] | None, channels: int
) -> None:
    if x.ndim < 3 or x.ndim != w.ndim:
        raise ValueError(f"x {x.shape} and w {w.shape} need the same rank, at least 3")
    if kernel_shape and tuple(kernel_shape) != w.shape[2:]:
        raise ValueError(f"kernel_shape {tuple(kernel_shape)} differs from w {w.shape}")
    if group < 1 or channels != x.shape[1] or channels % group:
        raise ValueError(f"x {x.shape} and w {w.shape} do not fit {group} groups")


def check_bias(b: Tensor | None, channels: int) -> None:
    """Raises: ValueError unless a bias has one number for each output channel."""
    if b is not None and b.shape != (channels,):
        raise ValueError(f"a bias of shape {b.shape} does not fit {channels} output channels")


@cpu_op("ConvTranspose", since=1)
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Transposed convolution of `x` [N, C, spatial] with `w` [C, M/group, kernel] plus `b` [M].

    float16 and bfloat16 are computed in float32 and rounded at the end.
    Returns: [N, M, out], dtype of `x`. Raises: ValueError if shapes do not fit.
    Source: ONNX ConvTranspose-22.
    """
    _check(x, w, group, kernel_shape, w.shape[0])
    check_bias(b, w.shape[1] * group)
    rank = x.ndim - 2
    kernel = w.shape[2:]
    steps = tuple(strides or (1,) * rank)
    spread = tuple(dilations or (1,) * rank)
    extra = tuple(output_padding or (0,) * rank)
    size = x.shape[2:]
    full = tuple(
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(size, steps, kernel, spread, strict=True)
    )
    begin, out = _transposed_sizes(full, size, steps, extra, auto_pad, pads, output_shape)
    full = tuple(max(n, 0) for n in full)
    dtype = wide(x.dtype)
    whole = _scatter(
        x.astype(dtype, copy=False), w.astype(dtype, copy=False), group, steps, spread, full
    )
    y = np.zeros((x.shape[0], w.shape[1] * group, *out), dtype)
    source: list[Any] = [...]
    target: list[Any] = [...]
    for offset, length, available in zip(begin, out, full, strict=True):
        lo, hi = max(0, offset), max(0, offset, min(available, offset + length))
        source.append(slice(lo, hi))
        target.append(slice(lo - offset, hi - offset))
    y[tuple(target)] = whole.reshape(*y.shape[:2], *full)[tuple(source)]
    if b is not None:
        y += b.astype(dtype).reshape(-1, *(1,) * rank)
    return y.astype(x.dtype, copy=False)


def _transposed_sizes(
    full: Sequence[int],
    size: Sequence[int],
    strides: Sequence[int],
    output_padding: Sequence[int],
    auto_pad: str,
    pads: Sequence[int] | None,
    output_shape: Sequence[int] | None,
) -> tuple[list[int], list[int]]:
    """Elements cut off in front, and output sizes, of each axis."""
    rank = len(size)
    pads = list(pads or (0,) * (2 * rank))
    if auto_pad not in SAME and auto_pad not in ("VALID", "NOTSET", ""):
        raise ValueError(f"auto_pad {auto_pad!r} is unknown")
    wanted = None
    if output_shape:
        wanted = list(output_shape)[-rank:]
    elif auto_pad in SAME:
        wanted = [n * s for n, s in zip(size, strides, strict=True)]
    begin, out = [], []
    for axis in range(rank):
        natural = full[axis] + output_padding[axis]
        if wanted is not None:
            out.append(wanted[axis])
            begin.append(same_pads(max(natural - wanted[axis], 0), auto_pad)[0])
        else:
            before, after = (0, 0) if auto_pad == "VALID" else (pads[axis], pads[rank + axis])
            out.append(natural - before - after)
            begin.append(before)
        if out[axis] < 0:
            raise ValueError(f"pads {pads} exceed the {natural} elements of axis {axis}")
    return begin, out


def _scatter(
    x: Tensor,
    w: Tensor,
    group: int,
    strides: Sequence[int],
    dilations: Sequence[int],
    full: Sequence[int],
) -> Tensor:
    """[N, group, M/group, full]: every product added where its tap falls, without pads."""
    n, c, *size = x.shape
    kernel = w.shape[2:]
    matrix = w.reshape(group, c // group, math.prod(w.shape[1:])).transpose(0, 2, 1)
    products = np.matmul(matrix, x.reshape(n, group, c // group, math.prod(size)))
    products = products.reshape(n, group, w.shape[1], *kernel, *size)
    y = np.zeros((n, group, w.shape[1], *full), x.dtype)
    for tap in itertools.product(*map(range, kernel)):
        at: list[Any] = [
            slice(t * d, t * d + (m - 1) * s + 1, s) if m else slice(0, 0)
            for t, d, m, s in zip(tap, dilations, size, strides, strict=True)
        ]
        y[(..., *at)] += products[(slice(None),) * 3 + tap]
    return y
