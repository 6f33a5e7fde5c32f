"""Depthwise convolution: a sum over taps of runs of channels."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

import numpy as np

from cpu_fallback import threads
from cpu_fallback.convolve_pieces import Compute, Sizes, pieces, scratch
from cpu_fallback.planes import Span, span
from cpu_fallback.products import RUN, add_rows
from cpu_fallback.registry import Memo, Tensor
from cpu_fallback.windows import Windows


def depthwise(sizes: Sizes) -> Compute:
    """A channel for each channel.

    Where windows are a stride apart, the columns that a tap reads are copied next to each other.
    So the channels of neighbouring windows form runs, whatever the stride, and the sum is one over
    strided views of them. Few channels are multiplied for several windows together.
    """
    win = sizes.win if len(sizes.win.out) == 2 else raised(sizes.win)
    channels, dtype = sizes.group, sizes.dtype
    dense = dataclasses.replace(win, strides=(1, win.strides[1]))
    together = windows_together(win, channels)
    sums = [_Sum(line, win, dense, width_of(win), channels) for line in lines(win)]
    cuts = [(n, rows) for n in range(sizes.batch) for rows in bands(win, channels, dtype.itemsize)]
    macs = math.prod(win.out) * channels * math.prod(win.kernel) * sizes.batch
    each_ns = int(macs * NS_PER_MAC) // len(cuts)

    # not in the memo, which would grow with every width of images
    kept: list[Tensor] = []

    def compute(x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, memo: Memo) -> None:
        images = x.reshape(sizes.batch, *win.size, channels)
        whole = y.reshape(sizes.batch, *win.out, channels)
        taps = kept[0] if kept else _runs(w, win, together)
        if 1 in memo.constants and not kept:
            kept.append(taps)

        def work(cut: tuple[int, slice]) -> None:
            image, rows = cut
            out = whole[image, rows]
            target = out.reshape(len(out), -1, together * channels)
            for index, one in enumerate(sums):
                views = one.views(images[image], rows, together)
                more = scratch.array("sums", dtype, *target.shape) if index else target
                np.einsum("hwklc,klc->hwc", views, taps[:, one.line.taps], out=more)
                if index:
                    np.add(target, more, out=target)
            if bias is not None:
                add_rows(out.reshape(-1, channels), bias)

        threads.run(cuts, work, each_ns)

    return compute


NS_PER_MAC = 0.2
"""Einsum multiplies and adds so fast."""


def width_of(win: Windows) -> int:
    """Columns that are copied for the windows of a row."""
    return win.out[1] + max(line.last for line in lines(win))


def bands(win: Windows, channels: int, itemsize: int) -> list[slice]:
    """Rows of windows to compute together."""
    columns = win.strides[0] * width_of(win) + 2 * win.out[1]
    return [rows for _, rows in pieces(1, win.out[0], columns * channels * itemsize)]


def windows_together(win: Windows, channels: int) -> int:
    """How many windows of a row are multiplied as one run of channels."""
    wide = win.out[1]
    counts = (n for n in range(1, wide) if wide % n == 0 and n * channels >= RUN // 2)
    return next(counts, wide)


def _runs(w: Tensor, win: Windows, together: int) -> Tensor:
    """[kernel, together * C] of kernels [C, 1, kernel]."""
    taps = w.reshape(-1, *win.kernel).transpose(1, 2, 0)
    return np.ascontiguousarray(np.tile(taps, (1, 1, together)))


@dataclass(frozen=True)
class _Sum:
    """The taps of a line, for windows `win`, and `dense` ones that read every row.

    Attributes:
        width: columns that are copied for a row.
    """

    line: Line
    win: Windows
    dense: Windows
    width: int
    channels: int

    def views(self, x: Tensor, rows: slice, together: int) -> Tensor:
        """[rows, runs, kernel rows, taps, together * C] of what taps read in `x` [H, W, C]."""
        win, row = self.win, self.width * self.channels
        count = rows.stop - rows.start
        high = (count - 1) * win.strides[0] + (win.kernel[0] - 1) * win.dilations[0] + 1
        pixels = scratch.array("planes", x.dtype, high, self.width, self.channels)
        _fill(
            pixels,
            x,
            span(self.dense, 0, 0, rows.start * win.strides[0], high),
            span(self.dense, 1, self.line.phase, 0, self.width),
        )
        run = together * self.channels
        shape = (count, win.out[1] // together, win.kernel[0], self.line.count, run)
        steps = (
            win.strides[0] * row,
            run,
            win.dilations[0] * row,
            self.line.step * self.channels,
            1,
        )
        strides = tuple(n * x.itemsize for n in steps)
        start = self.line.first * self.channels * x.itemsize
        return np.ndarray(shape, x.dtype, pixels, start, strides)


@dataclass(frozen=True)
class Line:
    """Taps of the last axis that read the same columns: every `stride`-th, from `phase` on.

    Attributes:
        taps: which. count: how many.
        first, step: columns by which the first one is shifted, and each further one.
    """

    phase: int
    taps: slice
    count: int
    first: int
    step: int

    @property
    def last(self) -> int:
        """Columns by which the last one is shifted."""
        return self.first + (self.count - 1) * self.step


@functools.lru_cache(maxsize=1024)
def lines(win: Windows) -> tuple[Line, ...]:
    """The taps of the last axis, by the columns that they read."""
    stride, spread, size = win.strides[-1], win.dilations[-1], win.kernel[-1]
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


def _fill(pixels: Tensor, x: Tensor, rows: Span, columns: Span) -> None:
    """Some rows and columns of `x` [H, W, C], padded."""
    (top, bottom, at_rows), (left, right, at_columns) = rows, columns
    pixels[:top] = 0
    pixels[bottom:] = 0
    pixels[top:bottom, :left] = 0
    pixels[top:bottom, right:] = 0
    pixels[top:bottom, left:right] = x[at_rows, at_columns]
