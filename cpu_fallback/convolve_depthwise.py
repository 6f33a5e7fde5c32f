"""Depthwise convolution: planes for the taps of a row, and a sum over views of them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from cpu_fallback.convolve_pieces import Compute, Sizes, pieces, scratch
from cpu_fallback.planes import Span, span
from cpu_fallback.registry import Memo, Tensor
from cpu_fallback.windows import Windows


def depthwise(sizes: Sizes) -> Compute:
    """A channel for each channel.

    For each tap of the last axis there is a plane of the pixels that it reads, so that the taps of
    the axis before are shifts by whole rows, and the sum is one over strided views.
    """
    win = sizes.win if len(sizes.win.out) == 2 else raised(sizes.win)
    kernel, wide = lines(win), win.kernel[1]
    rows = win.out[0] + max(line.last for line in kernel)
    channels, size, itemsize = sizes.group, math.prod(win.out), sizes.dtype.itemsize
    row, one = win.out[1], len(kernel) * wide * rows * win.out[1] + 2 * size
    inside = [_spans(win, line.phase, rows) for line in kernel]
    cuts = [
        (image, at) for image in range(sizes.batch) for at, _ in pieces(channels, 1, one * itemsize)
    ]

    def compute(x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, memo: Memo) -> None:
        images = x.reshape(sizes.batch, channels, *win.size)
        taps = w.reshape(channels, *win.kernel)
        whole = y.reshape(sizes.batch, channels, size)
        for image, at in cuts:
            count = at.stop - at.start
            planes = scratch.array("planes", sizes.dtype, count, wide, rows, row)
            out = whole[image, at]
            for index, line in enumerate(kernel):
                _fill(planes, images[image, at], inside[index])
                views: Tensor = np.ndarray(
                    (count, line.count, wide, size),
                    sizes.dtype,
                    planes,
                    line.first * row * itemsize,
                    (planes.strides[0], line.step * row * itemsize, planes.strides[1], itemsize),
                )
                target = scratch.array("sums", sizes.dtype, count, size) if index else out
                np.einsum("ckl,ckln->cn", taps[at, line.taps], views, out=target)
                if index:
                    np.add(out, target, out=out)
            if bias is not None:
                np.add(out, bias[at, None], out=out)

    return compute


@dataclass(frozen=True)
class Line:
    """Taps of the first axis that read the same rows: every `stride`-th, from `phase` on.

    Attributes:
        taps: which. count: how many.
        first, step: rows by which the first one is shifted, and each further one.
    """

    phase: int
    taps: slice
    count: int
    first: int
    step: int

    @property
    def last(self) -> int:
        """Rows by which the last one is shifted."""
        return self.first + (self.count - 1) * self.step


@functools.lru_cache(maxsize=1024)
def lines(win: Windows) -> tuple[Line, ...]:
    """The taps of the first axis, by the rows that they read."""
    stride, spread, size = win.strides[0], win.dilations[0], win.kernel[0]
    every = stride // math.gcd(stride, spread)
    return tuple(
        Line(
            tap * spread % stride,
            slice(tap, None, every),
            len(range(tap, size, every)),
            tap * spread // stride,
            every * spread // stride,
        )
        for tap in range(min(every, size))
    )


def raised(win: Windows) -> Windows:
    """Windows over one axis as windows over two, the first of one row."""
    ones, zeros = (1,), (0,)
    return Windows(
        ones + win.size,
        ones + win.kernel,
        ones + win.strides,
        ones + win.dilations,
        zeros + win.begin,
        zeros + win.end,
        ones + win.out,
    )


Spans = tuple[Span, list[Span]]
"""Where rows, and the windows of a row for each tap, lie inside: start, end, what they read."""


def _spans(win: Windows, phase: int, rows: int) -> Spans:
    columns = (span(win, 1, t * win.dilations[1], 0, win.out[1]) for t in range(win.kernel[1]))
    return span(win, 0, phase, 0, rows), list(columns)


def _fill(planes: Tensor, x: Tensor, spans: Spans) -> None:
    """Some rows of `x` [C, H, W], padded; a plane for each tap of the last axis.

    planes: [C, taps, rows, windows of a row].
    """
    (top, bottom, rows), columns = spans
    if top:
        planes[:, :, :top] = 0
    if bottom < planes.shape[2]:
        planes[:, :, bottom:] = 0
    for tap, (left, right, at) in enumerate(columns):
        plane = planes[:, tap, top:bottom]
        if left:
            plane[..., :left] = 0
        if right < plane.shape[2]:
            plane[..., right:] = 0
        plane[..., left:right] = x[:, rows, at]
