"""Ways to compute a convolution in NumPy: products through BLAS, taps where there is no sum.

Each works in pieces that fit a core's cache, on all threads.
"""

from __future__ import annotations

import enum
import functools
import itertools
import math
import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cpu_fallback import threads
from cpu_fallback.planes import Layout, layout, span
from cpu_fallback.products import product, spans
from cpu_fallback.registry import Memo, Tensor
from cpu_fallback.windows import Windows

PIECE_NBYTES = 1 << 20
FEW_OUTPUTS = 8
"""Up to so many outputs of a group, adding products of taps beats copying taps."""
MIN_TAP_CHANNELS = 8
MAX_PHASES = 16
MAX_TAPS = 128


class Route(enum.Enum):
    """How a convolution is computed."""

    POINTWISE = "one product of the pixels"
    COLUMNS = "one product of the taps of every window, copied side by side"
    DEPTHWISE = "one channel a group: a sum over taps, whose pixels lie side by side"
    TAPS = "a product for each tap, on shifted views"


def route(win: Windows, channels: int, each: int, group: int) -> Route:
    """The fastest way, for `channels` in and `each` out in a group."""
    taps = math.prod(win.kernel)
    if taps == 1:
        return Route.POINTWISE
    if channels == each == 1 and group > 1 and len(win.out) <= 2 and taps <= MAX_TAPS:
        return Route.DEPTHWISE
    if channels >= MIN_TAP_CHANNELS and each <= min(channels, FEW_OUTPUTS) and _is_flat(win):
        return Route.TAPS
    return Route.COLUMNS


def _is_flat(win: Windows) -> bool:
    """Whether it pays to compute on rows with their padding, as one run of memory."""
    phases = math.prod(min(s, k) for s, k in zip(win.strides, win.kernel, strict=True))
    if phases > 1 or math.prod(win.kernel) > MAX_TAPS:
        return False
    waste = math.prod(
        (o + (k - 1) * d) / o
        for o, k, d in zip(win.out[1:], win.kernel[1:], win.dilations[1:], strict=True)
    )
    return waste <= 1.6


def convolve(
    x: Tensor, w: Tensor, bias: Tensor | None, win: Windows, group: int, memo: Memo
) -> Tensor:
    """Convolution of `x` [N, C, spatial] with `w` [M, C/group, kernel] plus `bias` [M].

    Returns: [N, M, out], of the one float type of all.
    """
    y = np.empty((x.shape[0], w.shape[0], *win.out), x.dtype)
    if not y.size:
        return y
    channels, each = w.shape[1], w.shape[0] // group
    grouped = x.reshape(x.shape[0], group, channels, *x.shape[2:])
    target = y.reshape(x.shape[0], group, each, *win.out)
    added = None if bias is None else bias.reshape(group, each, 1)
    way = route(win, channels, each, group)
    if not x.size:
        target[...] = 0 if bias is None else bias.reshape(group, each, *(1,) * len(win.out))
    elif way is Route.POINTWISE:
        pixels = win.padded(grouped, 0)[win.tap((0,) * len(win.kernel))]
        flat = (x.shape[0], group, -1, math.prod(win.out))
        product(w.reshape(group, each, -1), pixels.reshape(flat), target.reshape(flat), added)
    elif way is Route.COLUMNS:
        _by_columns(grouped, w.reshape(group, each, -1), added, win, target)
    elif way is Route.DEPTHWISE:
        _depthwise(x, w[:, 0], bias, win, y)
    else:
        weights = memo.of(1, "taps", lambda: _tap_first(w, group))
        _by_taps(grouped, weights, added, layout(win), target)
    return y


class _Scratch(threading.local):
    """Memory of a thread, used for one array after the other."""

    def __init__(self) -> None:
        self._memory: dict[tuple[str, np.dtype[Any]], Tensor] = {}

    def array(self, name: str, dtype: np.dtype[Any], *shape: int) -> Tensor:
        """An array of any content; it takes the place of the one before of that name."""
        size = math.prod(shape)
        memory = self._memory.get((name, dtype))
        if memory is None or memory.size < size:
            memory = self._memory[name, dtype] = np.empty(size, dtype)
        return memory[:size].reshape(shape)


_scratch = _Scratch()


def pieces(groups: int, rows: int, row_nbytes: int) -> list[tuple[slice, slice]]:
    """Groups and rows to compute together: what they need (`row_nbytes` each) fits the cache."""
    if rows * row_nbytes <= PIECE_NBYTES:
        together = max(1, PIECE_NBYTES // max(1, rows * row_nbytes))
        return [(at, slice(0, rows)) for at in _evenly(groups, together)]
    step = max(1, PIECE_NBYTES // row_nbytes)
    cuts = _evenly(rows, step)
    return [(slice(g, g + 1), cut) for g in range(groups) for cut in cuts]


def _evenly(size: int, most: int) -> list[slice]:
    """Slices of at most `most`, an even number of them unless it is one."""
    count = -(-size // most)
    return spans(size, min(size, count + count % 2 if count > 1 else 1))


def _by_columns(x: Tensor, matrix: Tensor, bias: Tensor | None, win: Windows, y: Tensor) -> None:
    """One product of the taps of every window. matrix: [group, M/group, C/group * taps]."""
    group, each, inner = matrix.shape
    row = math.prod(win.out[1:])
    parts = pieces(group, win.out[0], (inner + each) * row * x.itemsize)
    multiply = np.matmul if x.shape[0] * len(parts) > 1 else product

    def work(piece: tuple[int, tuple[slice, slice]]) -> None:
        image, (at, rows) = piece
        columns = _columns(x[image, at], win, rows)
        out = y[image, at].reshape(at.stop - at.start, each, -1)
        out = out[:, :, rows.start * row : rows.stop * row]
        multiply(matrix[at], columns, out=out)
        if bias is not None:
            np.add(out, bias[at], out=out)

    threads.run([*itertools.product(range(x.shape[0]), parts)], work)


def _columns(x: Tensor, win: Windows, rows: slice) -> Tensor:
    """[group, C/group * taps, windows] of some rows of windows of `x` [group, C/group, spatial]."""
    count, first = rows.stop - rows.start, rows.start * win.strides[0]
    part = replace(win, begin=(win.begin[0] - first, *win.begin[1:]), out=(count, *win.out[1:]))
    padded = part.padded(x, 0)
    steps = padded.strides[2:]
    shape = (*x.shape[:2], *win.kernel, *part.out)
    strides = (
        *padded.strides[:2],
        *(d * s for d, s in zip(win.dilations, steps, strict=True)),
        *(d * s for d, s in zip(win.strides, steps, strict=True)),
    )
    taps = np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)
    columns = _scratch.array("columns", x.dtype, *shape)
    columns[...] = taps
    return columns.reshape(x.shape[0], -1, math.prod(part.out))


def _depthwise(x: Tensor, w: Tensor, bias: Tensor | None, win: Windows, y: Tensor) -> None:
    """A channel for each channel. w: [C, kernel].

    For each tap of the last axis there is a plane of the pixels that it reads, so that the taps of
    the axis before are shifts by whole rows, and the sum is one over strided views.
    """
    if len(win.out) == 1:
        x, w, y, win = x[:, :, None], w[:, None], y[:, :, None], raised(win)
    kernel = lines(win)
    phases, wide = len(kernel), win.kernel[1]
    rows = win.out[0] + max(line.last for line in kernel)
    row = win.out[1]
    one = (wide * phases * rows + 2 * win.out[0]) * row * x.itemsize
    parts = [at for at, _ in pieces(x.shape[1], 1, one)]

    def work(piece: tuple[int, slice]) -> None:
        image, at = piece
        count = at.stop - at.start
        planes = _scratch.array("planes", x.dtype, count, phases, wide, rows, row)
        out = y[image, at].reshape(count, win.out[0] * row)
        other = _scratch.array("sums", x.dtype, *out.shape) if phases > 1 else out
        for index, line in enumerate(kernel):
            plane = planes[:, index]
            _fill(plane, x[image, at], win, line.phase)
            lead, tap, line_nbytes, pixel = plane.strides
            views = np.lib.stride_tricks.as_strided(
                plane[:, :, line.first :],
                (count, line.count, wide, win.out[0] * row),
                (lead, line.step * line_nbytes, tap, pixel),
                writeable=False,
            )
            target = other if index else out
            np.einsum("ckl,ckln->cn", w[at, line.taps], views, out=target)
            if index:
                np.add(out, other, out=out)
        if bias is not None:
            np.add(out, bias[at, None], out=out)

    threads.run([*itertools.product(range(x.shape[0]), parts)], work)


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


def _fill(planes: Tensor, x: Tensor, win: Windows, phase: int) -> None:
    """Every `stride`-th row of `x` [C, H, W] from `phase` on, padded; a plane for each tap of W.

    planes: [C, taps, rows, windows of a row].
    """
    top, bottom, rows = span(win, 0, phase, 0, planes.shape[2])
    planes[:, :, :top] = 0
    planes[:, :, bottom:] = 0
    for tap in range(win.kernel[1]):
        left, right, columns = span(win, 1, tap * win.dilations[1], 0, win.out[1])
        plane = planes[:, tap, top:bottom]
        if left:
            plane[..., :left] = 0
        if right < win.out[1]:
            plane[..., right:] = 0
        plane[..., left:right] = x[:, rows, columns]


def _tap_first(w: Tensor, group: int) -> Tensor:
    """[taps, group, M/group, C/group]."""
    shaped = w.reshape(group, w.shape[0] // group, w.shape[1], -1)
    return np.ascontiguousarray(shaped.transpose(3, 0, 1, 2))


def _by_taps(x: Tensor, weights: Tensor, bias: Tensor | None, lay: Layout, y: Tensor) -> None:
    """A product for each tap, on shifted views. weights: [taps, group, M/group, C/group]."""
    group, each = y.shape[1:3]
    row_nbytes = (2 * each + x.shape[2]) * lay.row * y.itemsize
    parts = pieces(group, lay.win.out[0], row_nbytes)

    def work(piece: tuple[int, tuple[slice, slice]]) -> None:
        image, (at, rows) = piece
        data = _planes(x[image, at], rows, lay)
        count = lay.count(rows.stop - rows.start)
        shape = (at.stop - at.start, each, (rows.stop - rows.start) * lay.row)
        whole = _scratch.array("sums", y.dtype, *shape)
        other = _scratch.array("products", y.dtype, *shape)
        total, more = whole[..., :count], other[..., :count]
        for index, (_, shift) in enumerate(lay.taps):
            pixels = data[:, :, shift : shift + count]
            np.matmul(weights[index, at], pixels, out=more if index else total)
            if index:
                np.add(total, more, out=total)
        _store(y[image, at, :, rows], whole, None if bias is None else bias[at], lay)

    threads.run([*itertools.product(range(x.shape[0]), parts)], work)


def _planes(x: Tensor, rows: slice, lay: Layout) -> Tensor:
    """[group, C/group, positions] of some rows of windows of `x` [group, C/group, spatial]."""
    if lay.is_plain(x):
        return x.reshape(*x.shape[:2], -1)[..., rows.start * lay.row :]
    count = rows.stop - rows.start + lay.halo
    target = _scratch.array("planes", x.dtype, *x.shape[:2], 1, count, lay.row)
    lay.fill(target, x, rows.start)
    return target.reshape(*x.shape[:2], count * lay.row)


def _store(y: Tensor, total: Tensor, bias: Tensor | None, lay: Layout) -> None:
    """Drops the positions between rows of `total` [group, M, positions]; adds the bias."""
    shaped = total.reshape(*y.shape[:3], *lay.size[1:])
    at: list[Any] = [..., *(slice(0, o) for o in lay.win.out[1:])]
    inside = shaped[tuple(at)]
    if bias is None:
        y[...] = inside
    else:
        np.add(inside, bias.reshape(*bias.shape[:2], *(1,) * len(lay.size)), out=y)
