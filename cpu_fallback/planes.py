"""Padded planes: a convolution's input laid out so that each tap is a shift in flat memory."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

from cpu_fallback.registry import Tensor
from cpu_fallback.windows import Windows

Span = tuple[int, int, slice]
"""First and last position (exclusive) that lie in the input, and the indices that they read."""


@dataclass(frozen=True)
class Planes:
    """Which pixels planes [..., positions] hold for rows of windows.

    A window reads a tap at `[..., shift + position]`, where positions are row-major in `size`.
    Those beyond the last window of an axis hold numbers of no meaning. Along an axis, windows are
    next to each other, or have one tap: then planes hold the pixels that windows begin with.

    Attributes:
        win: the windows.
        size: positions of each axis.
        shifts: that of each tap of the kernel, row-major.
        inner: where the axes after the first read.
    """

    win: Windows
    size: tuple[int, ...]
    shifts: tuple[int, ...]
    inner: tuple[Span, ...]

    @property
    def row(self) -> int:
        """Positions of one index of the first axis."""
        return math.prod(self.size[1:])

    @property
    def halo(self) -> int:
        """Rows that the planes have beyond those of the windows."""
        return self.size[0] - self.win.out[0]

    def count(self, rows: int) -> int:
        """Positions from the first window of `rows` rows to their last one."""
        steps = [math.prod(self.size[axis + 1 :]) for axis in range(len(self.size))]
        ends = (rows - 1, *(o - 1 for o in self.win.out[1:]))
        return sum(e * s for e, s in zip(ends, steps, strict=True)) + 1

    def is_plain(self, x: Tensor) -> bool:
        """Whether `x` [..., spatial] already lies like this."""
        win = self.win
        return (
            x.flags.c_contiguous
            and self.size == win.size
            and not any(win.begin)
            and set(win.strides) == {1}
        )

    def fill(self, target: Tensor, x: Tensor, first: int) -> None:
        """Writes the planes of `x` [..., spatial] from row `first` on, padding with zeros.

        target: [..., rows, positions of a row].
        """
        rows = target.shape[-2]
        shaped = target.reshape(*target.shape[:-1], *self.size[1:])
        lead = (slice(None),) * (x.ndim - len(self.size))
        spans = (span(self.win, 0, 0, first, rows), *self.inner)
        inside: list[Any] = [*lead]
        for start, end, _ in spans:
            if start:
                shaped[(*inside, slice(0, start))] = 0
            shaped[(*inside, slice(end, None))] = 0
            inside.append(slice(start, end))
        shaped[tuple(inside)] = x[(*lead, *(source for _, _, source in spans))]


def span(win: Windows, axis: int, phase: int, first: int, count: int) -> Span:
    """Of `count` positions from `first` on, those inside; p reads p * stride + phase - begin."""
    stride, offset = win.strides[axis], phase - win.begin[axis]
    start = min(count, max(0, -(offset // stride) - first))
    end = max(start, min(count, (win.size[axis] - 1 - offset) // stride + 1 - first))
    if start == end:
        return start, end, slice(0, 0)
    at = (first + start) * stride + offset
    return start, end, slice(at, at + (end - start - 1) * stride + 1, stride)


def taps_are_shifts(win: Windows) -> bool:
    """Whether a tap is a shift of the pixels: along each axis the stride or the kernel is 1."""
    return all(s == 1 or k == 1 for s, k in zip(win.strides, win.kernel, strict=True))


@functools.lru_cache(maxsize=1024)
def planes_of(win: Windows) -> Planes:
    """The planes for windows whose taps are shifts, of which every axis has at least one."""
    reach = [(k - 1) * d for k, d in zip(win.kernel, win.dilations, strict=True)]
    size = tuple(o + r for o, r in zip(win.out, reach, strict=True))
    steps = [math.prod(size[axis + 1 :]) for axis in range(len(size))]
    starts = [range(0, r + 1, d) for r, d in zip(reach, win.dilations, strict=True)]
    shifts = (
        sum(at * step for at, step in zip(tap, steps, strict=True))
        for tap in itertools.product(*starts)
    )
    inner = tuple(span(win, axis, 0, 0, size[axis]) for axis in range(1, len(size)))
    return Planes(win, size, tuple(shifts), inner)
