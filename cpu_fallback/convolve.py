"""Ways to compute a convolution in NumPy: products through BLAS, taps where there is no sum.

Each works in pieces that fit a core's cache; products of long ones on all threads.

All read and write pixels whose channels lie side by side: a tap is then a run of numbers, which
are copied, padded and multiplied as one, even where maps are small or windows far apart. It is an
order in memory only. Arrays have the axes [N, C, spatial] that ONNX gives them, whose strides say
where elements are, as a Transpose makes them; elementwise functions keep the order of what they
read. An input of another order is read as it is by products, or copied together with its padding.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cpu_fallback import convolve_winograd, threads
from cpu_fallback.convolve_depthwise import depthwise
from cpu_fallback.convolve_pieces import Compute, Sizes, pieces, scratch
from cpu_fallback.convolve_taps import by_taps
from cpu_fallback.planes import taps_are_shifts
from cpu_fallback.products import add_rows, product, run_of
from cpu_fallback.registry import Memo, Tensor
from cpu_fallback.windows import Windows

_Make = Callable[[Sizes], Compute]

FEW_OUTPUTS = 8
"""Up to so many outputs of a group, adding products of taps beats copying taps."""
FEW_WINDOWS = 16
"""For up to so many, BLAS is faster at weights times pixels than at its transpose."""
MIN_TAP_CHANNELS = 8
"""Least input channels of a group for products of single taps."""
MAX_TAPS = 128
"""Most taps that are added one by one."""
MIN_RUN = 8
"""Fewer channels than this make runs so short that those of windows are copied faster."""


class Route(enum.Enum):
    """How a convolution is computed."""

    POINTWISE = "one product of the pixels"
    COLUMNS = "one product of the taps of every window, copied side by side"
    DEPTHWISE = "one channel a group: a sum over taps of all channels together"
    TAPS = "a product for each tap, on shifted views"
    WINOGRAD = "products of transformed tiles and kernels"


def route(win: Windows, channels: int, each: int, group: int, constant: bool) -> Route:
    """The fastest way, for `channels` in and `each` out in a group.

    constant: whether what is made of the weights serves all calls.
    """
    taps = math.prod(win.kernel)
    if taps == 1:
        return Route.POINTWISE
    if channels == each == 1 and group > 1 and len(win.out) <= 2 and taps <= MAX_TAPS:
        return Route.DEPTHWISE
    if channels >= MIN_TAP_CHANNELS and each <= min(channels, FEW_OUTPUTS) and _is_flat(win):
        return Route.TAPS
    winograd = constant and convolve_winograd.fits(win, group)
    if winograd and convolve_winograd.is_faster(win, channels, each):
        return Route.WINOGRAD
    return Route.COLUMNS


def _is_flat(win: Windows) -> bool:
    """Whether it pays to compute on rows with their padding, as one run of memory."""
    if not taps_are_shifts(win) or math.prod(win.kernel) > MAX_TAPS:
        return False
    waste = math.prod(
        (o + (k - 1) * d) / o
        for o, k, d in zip(win.out[1:], win.kernel[1:], win.dilations[1:], strict=True)
    )
    return waste <= 1.6


@dataclass(frozen=True)
class Convolution:
    """A convolution of given sizes: what they decide is worked out once.

    Attributes:
        shape: of the result, [N, out, M].
        planes: whether each channel of the result is a plane in memory, as it has few channels,
            or windows.
        compute: writes the result of `x` [N, spatial, C], `w` [M, C/group, kernel] and a bias [M].
    """

    shape: tuple[int, ...]
    planes: bool
    compute: Compute

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None, memo: Memo) -> Tensor:
        """The result [N, M, out] for `x` [N, C, spatial]; all are of one float type."""
        last, first = _orders(x.ndim)
        if self.planes:
            y = np.empty([self.shape[axis] for axis in first], x.dtype).transpose(last)
        else:
            y = np.empty(self.shape, x.dtype)
        if x.size and y.size:
            run = None if bias is None else memo.of(2, "run", lambda: run_of(bias))
            self.compute(x.transpose(last), w, run, y, memo)
        else:
            y[...] = 0 if bias is None else bias
        return y.transpose(first)


@functools.cache
def _orders(rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of [N, C, spatial] with the channels last, and the way back."""
    return (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))


def convolution(
    batch: int,
    w: tuple[int, ...],
    win: Windows,
    group: int,
    dtype: np.dtype[Any],
    constant: bool,
) -> Convolution:
    """What convolves `batch` images with weights of shape `w` [M, C/group, kernel].

    constant: whether they are the same in every call.
    """
    channels, each = w[1], w[0] // group
    sizes = Sizes(win, batch, group, channels, each, dtype)
    shape = (batch, *win.out, w[0])
    empty = not channels or 0 in shape
    way = Route.COLUMNS if empty else route(win, channels, each, group, constant)
    ways: Mapping[Route, _Make] = {
        Route.POINTWISE: _pointwise,
        Route.COLUMNS: _by_columns,
        Route.DEPTHWISE: depthwise,
        Route.TAPS: by_taps,
        Route.WINOGRAD: _winograd,
    }
    compute = _nothing if empty else ways[way](sizes)
    small = group * each <= FEW_OUTPUTS or (batch == 1 and math.prod(win.out) <= FEW_WINDOWS)
    return Convolution(shape, small and way not in (Route.DEPTHWISE, Route.WINOGRAD), compute)


def _nothing(x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, memo: Memo) -> None:
    """For sums of nothing, and results without elements: never called."""


def _winograd(sizes: Sizes) -> Compute:
    """By Winograd's way if what it gives are numbers, else one that reads no other pixels.

    It adds 0 times a pixel to other results of its tile: that is NaN if the pixel is infinite.
    """
    fast = convolve_winograd.winograd(sizes)
    plain = functools.cache(lambda: _by_columns(sizes))

    def compute(x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, memo: Memo) -> None:
        fast(x, w, bias, y, memo)
        if np.isnan(y.min()):
            plain()(x, w, bias, y, memo)

    return compute


def _pointwise(sizes: Sizes) -> Compute:
    """One product of the pixels."""
    win, batch, group, channels, each, dtype = sizes
    plain = win.size == win.out and not any(win.begin) and set(win.strides) == {1}
    first = (slice(None), *win.tap_slices((0,) * len(win.kernel)))
    count = batch * math.prod(win.out)
    row_nbytes = (channels + each) * dtype.itemsize
    parts = [rows for _, rows in pieces(1, count, row_nbytes, channels * each * dtype.itemsize)]
    windows = count // len(parts)
    each_ns = threads.about_ns(2 * windows * channels * each, windows * row_nbytes)

    def compute(x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, memo: Memo) -> None:
        pixels = x if plain else win.padded(x, 0, trail=1)[first]
        matrix = memo.of(1, "pointwise", lambda: _tap_major(w, group))
        if group > 1:
            product(
                pixels.reshape(batch, -1, group, channels).transpose(0, 2, 1, 3),
                matrix,
                y.reshape(batch, -1, group, each).transpose(0, 2, 1, 3),
                None if bias is None else bias[: group * each].reshape(group, 1, each),
            )
        elif batch > 1 and not (pixels.flags.c_contiguous and y.flags.c_contiguous):
            # planes of several images can't be seen as rows of one matrix
            row, lead = None if bias is None else bias[:each], (batch, -1)
            product(pixels.reshape(*lead, channels), matrix[0], y.reshape(*lead, each), row)
        else:
            all_rows, out = pixels.reshape(-1, channels), y.reshape(-1, each)
            multiply = np.matmul if len(parts) > 1 else product

            def work(rows: slice) -> None:
                multiply(all_rows[rows], matrix[0], out=out[rows])
                if bias is not None:
                    add_rows(out[rows], bias)

            threads.run(parts, work, each_ns)

    return compute


def _tap_major(w: Tensor, group: int) -> Tensor:
    """[group, taps * C/group, M/group] of weights [M, C/group, kernel]."""
    shaped = w.reshape(group, w.shape[0] // group, w.shape[1], -1)
    found = np.ascontiguousarray(shaped.transpose(0, 3, 2, 1))
    return found.reshape(group, -1, shaped.shape[1])


class _Cut(NamedTuple):
    """Some rows of windows of one image, and the part of it that they read.

    Attributes:
        image, at: which image and groups.
        source: indices of the part, [spatial, C].
        inside: where it lies in the padded part; None if nothing is padded.
        last: taps [group, out, kernel, C/group] in a padded part [spatial, C].
        planes: taps [group, C/group, kernel, out] in a padded part [C, spatial].
        target: which windows of the result.
    """

    image: int
    at: slice
    source: tuple[slice, ...]
    inside: tuple[slice, ...] | None
    last: _Taps
    planes: _Taps
    target: slice


class _Taps(NamedTuple):
    """Which numbers of a padded part are the taps of windows.

    Attributes:
        part: shape of the padded part.
        shape, strides: of a view of it; in bytes.
    """

    part: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _cut(sizes: Sizes, image: int, at: slice, rows: slice) -> _Cut:
    win, channels = sizes.win, sizes.channels
    source, inside, padded = [], [], []
    for axis, size in enumerate(win.size):
        first, last = (rows.start, rows.stop) if axis == 0 else (0, win.out[axis])
        low = first * win.strides[axis] - win.begin[axis]
        reach = (win.kernel[axis] - 1) * win.dilations[axis] + 1
        high = low + (last - first - 1) * win.strides[axis] + reach
        begin, end = min(max(low, 0), size), max(min(high, size), 0)
        source.append(slice(begin, max(begin, end)))
        start = min(max(begin - low, 0), high - low)
        inside.append(slice(start, start + max(end - begin, 0)))
        padded.append(high - low)
    full = all(at.stop - at.start == n for at, n in zip(source, padded, strict=True))
    row = math.prod(win.out[1:])
    last, planes = _taps(sizes, padded, at.stop - at.start, rows.stop - rows.start)
    return _Cut(
        image,
        at,
        (*source, slice(at.start * channels, at.stop * channels)),
        None if full else tuple(inside),
        last,
        planes,
        slice(rows.start * row, rows.stop * row),
    )


def _taps(sizes: Sizes, padded: list[int], groups: int, rows: int) -> tuple[_Taps, _Taps]:
    """The taps of some rows of windows, if channels come last, and if they are planes."""
    win, channels, size = sizes.win, sizes.channels, sizes.dtype.itemsize
    out, within = (rows, *win.out[1:]), [math.prod(padded[i + 1 :]) for i in range(len(padded))]
    found = []
    for one, plane in ((groups * channels, 1), (1, math.prod(padded))):
        windows = [s * n * one * size for s, n in zip(win.strides, within, strict=True)]
        kernel = [d * n * one * size for d, n in zip(win.dilations, within, strict=True)]
        channel, group = plane * size, channels * plane * size
        found.append(((group, *windows, *kernel, channel), (group, channel, *kernel, *windows)))
    return (
        _Taps((*padded, groups * channels), (groups, *out, *win.kernel, channels), found[0][0]),
        _Taps((groups * channels, *padded), (groups, channels, *win.kernel, *out), found[1][1]),
    )


def bands(
    win: Windows, group: int, channels: int, each: int, itemsize: int
) -> list[tuple[slice, slice]]:
    """Groups and rows of windows whose taps are copied together, as `pieces` cuts them."""
    numbers = channels * math.prod(win.kernel) + each
    return pieces(group, win.out[0], numbers * math.prod(win.out[1:]) * itemsize)


def _by_columns(sizes: Sizes) -> Compute:
    """One product of the taps of every window."""
    win, batch, group, channels, each, dtype = sizes
    inner = channels * math.prod(win.kernel)
    parts = bands(win, group, channels, each, dtype.itemsize)
    cuts = [_cut(sizes, image, *part) for image in range(batch) for part in parts]
    multiply = np.matmul if len(cuts) > 1 else product
    windows = batch * group * math.prod(win.out) // len(cuts)
    each_ns = threads.about_ns(2 * windows * inner * each, 2 * windows * inner * dtype.itemsize)

    def compute(x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, memo: Memo) -> None:
        planes = channels < MIN_RUN or x.strides[-1] != x.itemsize
        if planes:
            matrix = w.reshape(group, each, inner).transpose(0, 2, 1)
        else:
            matrix = memo.of(1, "columns", lambda: _tap_major(w, group))
        added = None if bias is None else bias[: group * each].reshape(group, each)
        whole = y.reshape(batch, -1, group, each)

        def work(cut: _Cut) -> None:
            out = whole[cut.image, cut.target, cut.at]
            if planes:
                taps = _columns(x, cut, cut.planes).reshape(out.shape[1], inner, -1)
                columns = taps.transpose(0, 2, 1)
            else:
                columns = _columns(x, cut, cut.last).reshape(out.shape[1], -1, inner)
            multiply(columns, matrix[cut.at], out=out.transpose(1, 0, 2))
            if bias is not None and out.shape[1] == group:
                add_rows(out.reshape(-1, group * each), bias)
            elif added is not None:
                np.add(out, added[cut.at], out=out)

        threads.run(cuts, work, each_ns)

    return compute


def _columns(x: Tensor, cut: _Cut, taps: _Taps) -> Tensor:
    """The taps of some windows of `x` [N, spatial, C], which is read in the order of `taps`."""
    at: tuple[Any, ...] = (cut.image, *cut.source)
    part, inside = x[at], cut.inside
    if taps is cut.planes:
        part = part.transpose(-1, *range(part.ndim - 1))
        inside = None if inside is None else (slice(None), *inside)
    padded = part
    if inside is not None:
        padded = scratch.array("padded", x.dtype, *taps.part)
        padded.fill(0)
        padded[inside] = part
    elif not part.flags.c_contiguous:
        padded = scratch.array("padded", x.dtype, *taps.part)
        padded[...] = part
    columns = scratch.array("columns", x.dtype, *taps.shape)
    columns[...] = np.ndarray(taps.shape, x.dtype, padded, 0, taps.strides)
    return columns
