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
class Layout:
    """How rows of windows lie in planes [..., phases, positions].

    The strides split the padded input into phases, of which every tap reads one. Window `o` reads
    its tap at `[..., phase, shift + o]`, where `o` counts positions row-major in `size`; positions
    beyond the last window of an axis hold numbers of no meaning.

    Attributes:
        win: the windows.
        size: positions of each axis.
        phases: offset of each phase on each axis.
        taps: phase and shift of each tap of the kernel, row-major.
        inner: for each phase, where the axes after the first read.
        lines: the distinct sets of taps along the last axis, each as phases and shifts.
        leads: for each tap of the other axes, its line, and how far it lies beyond it.
    """

    win: Windows
    size: tuple[int, ...]
    phases: tuple[tuple[int, ...], ...]
    taps: tuple[tuple[int, int], ...]
    inner: tuple[tuple[Span, ...], ...]
    lines: tuple[tuple[tuple[int, int], ...], ...]
    leads: tuple[tuple[int, int], ...]

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

        target: [..., phases, rows, positions of a row].
        """
        rows = target.shape[-2]
        shaped = target.reshape(*target.shape[:-1], *self.size[1:])
        lead = (slice(None),) * (x.ndim - len(self.size))
        for index, phase in enumerate(self.phases):
            spans = (span(self.win, 0, phase[0], first, rows), *self.inner[index])
            inside: list[Any] = [*lead, index]
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


@functools.lru_cache(maxsize=1024)
def layout(win: Windows) -> Layout:
    """The layout for windows of which every axis has at least one."""
    size = tuple(
        o + (k - 1) * d // s
        for o, k, d, s in zip(win.out, win.kernel, win.dilations, win.strides, strict=True)
    )
    starts = [[t * d for t in range(k)] for k, d in zip(win.kernel, win.dilations, strict=True)]
    used = [sorted({a % s for a in each}) for each, s in zip(starts, win.strides, strict=True)]
    phases = tuple(itertools.product(*used))
    steps = [math.prod(size[axis + 1 :]) for axis in range(len(size))]
    taps = []
    for offsets in itertools.product(*starts):
        phase = tuple(a % s for a, s in zip(offsets, win.strides, strict=True))
        moves = (a // s * step for a, s, step in zip(offsets, win.strides, steps, strict=True))
        taps.append((phases.index(phase), sum(moves)))
    inner = tuple(
        tuple(span(win, axis, phase[axis], 0, size[axis]) for axis in range(1, len(size)))
        for phase in phases
    )
    lines: list[tuple[tuple[int, int], ...]] = []
    leads = []
    for start in range(0, len(taps), win.kernel[-1]):
        each = taps[start : start + win.kernel[-1]]
        first = min(shift for _, shift in each)
        line = tuple((phase, shift - first) for phase, shift in each)
        if line not in lines:
            lines.append(line)
        leads.append((lines.index(line), first))
    return Layout(win, size, phases, tuple(taps), inner, tuple(lines), tuple(leads))
