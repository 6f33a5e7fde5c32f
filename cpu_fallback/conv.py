"""Conv and ConvTranspose in NumPy: matrix products through BLAS, taps where there is no sum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cpu_fallback.numeric import wide
from cpu_fallback.registry import Tensor, cpu_op
from cpu_fallback.windows import SAME, Windows, same_pads, windows

_COLUMN_BYTES = 16 << 20
_CACHE_BYTES = 256 << 10


@cpu_op("Conv", since=1)
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Convolution of `x` [N, C, spatial] with `w` [M, C/group, kernel] plus `b` [M].

    float16 and bfloat16 are computed in float32 and rounded at the end.
    Returns: [N, M, out], dtype of `x`. Raises: ValueError if shapes do not fit.
    Source: ONNX Conv-22.
    """
    _check(x, w, group, kernel_shape, w.shape[1] * group)
    win = windows(
        x.shape[2:],
        w.shape[2:],
        auto_pad=auto_pad,
        strides=strides,
        dilations=dilations,
        pads=pads,
    )
    if w.shape[0] % group:
        raise ValueError(f"{w.shape[0]} output channels do not split into {group} groups")
    dtype = wide(x.dtype)
    xw, ww = x.astype(dtype, copy=False), w.astype(dtype, copy=False)
    if w.shape[1] == 1 and group > 1:
        y = _depthwise(xw, ww, win, group)
    else:
        y = _dense(xw, ww, win, group)
    if b is not None:
        y += b.astype(dtype).reshape(-1, *(1,) * (x.ndim - 2))
    return y.astype(x.dtype, copy=False)


def _check(
    x: Tensor, w: Tensor, group: int, kernel_shape: Sequence[int] | None, channels: int
) -> None:
    if x.ndim < 3 or x.ndim != w.ndim:
        raise ValueError(f"x {x.shape} and w {w.shape} need the same rank, at least 3")
    if kernel_shape and tuple(kernel_shape) != w.shape[2:]:
        raise ValueError(f"kernel_shape {tuple(kernel_shape)} differs from w {w.shape}")
    if group < 1 or channels != x.shape[1] or channels % group:
        raise ValueError(f"x {x.shape} and w {w.shape} do not fit {group} groups")


def _dense(x: Tensor, w: Tensor, win: Windows, group: int) -> Tensor:
    n, c = x.shape[:2]
    matrix = w.reshape(group, w.shape[0] // group, -1)
    padded = win.padded(x, 0)
    if math.prod(win.kernel) == 1:
        pixels = padded[win.tap((0,) * len(win.kernel))]
        flat = pixels.reshape(n, group, c // group, math.prod(win.out))
        return np.asarray(np.matmul(matrix, flat)).reshape(n, w.shape[0], *win.out)
    y = np.empty((n, group, matrix.shape[1], *win.out), x.dtype)
    columns = _columns(padded, win, group)
    row_nbytes = x.itemsize * c * math.prod(win.kernel) * math.prod(win.out[1:])
    rows = max(1, _COLUMN_BYTES // max(1, row_nbytes))
    first = -len(win.out)
    for image in range(n):
        for row in range(0, win.out[0], rows):
            at = (slice(None),) * (columns.ndim - 1 + first) + (slice(row, row + rows),)
            part = columns[image][at]
            flat = part.reshape(group, matrix.shape[2], math.prod(part.shape[first:]))
            y[image, :, :, row : row + rows] = np.matmul(matrix, flat).reshape(
                group, matrix.shape[1], *part.shape[first:]
            )
    return y.reshape(n, w.shape[0], *win.out)


def _columns(padded: Tensor, win: Windows, group: int) -> Tensor:
    """View [N, group, C/group, kernel, out] of the taps of every window."""
    n, c = padded.shape[:2]
    steps = padded.strides[2:]
    shape = (n, group, c // group, *win.kernel, *win.out)
    strides = (
        padded.strides[0],
        padded.strides[1] * (c // group),
        padded.strides[1],
        *(d * s for d, s in zip(win.dilations, steps, strict=True)),
        *(d * s for d, s in zip(win.strides, steps, strict=True)),
    )
    return np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)


def _depthwise(x: Tensor, w: Tensor, win: Windows, group: int) -> Tensor:
    n = x.shape[0]
    multiplier = w.shape[0] // group
    y = np.zeros((n, group, multiplier, *win.out), x.dtype)
    weights = w.reshape(group, multiplier, *win.kernel)
    ones = (1,) * len(win.out)
    plane = n * multiplier * math.prod(win.out) * x.itemsize
    step = max(1, _CACHE_BYTES // max(1, plane))
    for start in range(0, group, step):
        part = slice(start, start + step)
        padded = win.padded(x[:, part], 0)
        total = y[:, part]
        product = np.empty(total.shape, x.dtype)
        for tap in win.taps():
            at: Any = (part, slice(None), *tap)
            pixels = padded[win.tap(tap)][:, :, None]
            np.multiply(pixels, weights[at].reshape(-1, multiplier, *ones), out=product)
            total += product
    return y.reshape(n, w.shape[0], *win.out)


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
    rank = x.ndim - 2
    kernel = w.shape[2:]
    steps = tuple(strides or (1,) * rank)
    spread = tuple(dilations or (1,) * rank)
    extra = tuple(output_padding or (0,) * rank)
    size = x.shape[2:]
    full = tuple(
        (n - 1) * s + (k - 1) * d + 1 if n else 0
        for n, s, k, d in zip(size, steps, kernel, spread, strict=True)
    )
    begin, out = _transposed_sizes(full, size, steps, extra, auto_pad, pads, output_shape)
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
    matrix = w.reshape(group, c // group, -1).transpose(0, 2, 1)
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
