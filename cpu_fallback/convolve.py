"""Ways to compute a convolution in NumPy: products through BLAS, taps where there is no sum.

Each works in pieces that fit a core's cache; products of long ones on all threads.
"""

from __future__ import annotations

import enum
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cpu_fallback import convolve_banded, convolve_winograd, threads
from cpu_fallback.convolve_depthwise import depthwise
from cpu_fallback.convolve_pieces import Compute, Sizes, pieces, scratch
from cpu_fallback.planes import Layout, layout
from cpu_fallback.products import product
from cpu_fallback.registry import Memo, Tensor
from cpu_fallback.windows import Windows

_Make = Callable[[Sizes], Compute]

FEW_OUTPUTS = 8
"""Up to so many outputs of a group, adding products of taps beats copying taps."""
MIN_TAP_CHANNELS = 8
MAX_TAPS = 128


class Route(enum.Enum):
    """How a convolution is computed."""

    POINTWISE = "one product of the pixels"
    COLUMNS = "one product of the taps of every window, copied side by side"
    DEPTHWISE = "one channel a group: a sum over taps, whose pixels lie side by side"
    BANDED = "one channel a group: a product for each channel, with a banded matrix"
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
        return Route.BANDED if constant and convolve_banded.fits(win) else Route.DEPTHWISE
    if channels >= MIN_TAP_CHANNELS and each <= min(channels, FEW_OUTPUTS) and _is_flat(win):
        return Route.TAPS
    winograd = constant and convolve_winograd.fits(win, group)
    if winograd and convolve_winograd.is_faster(win, channels, each):
        return Route.WINOGRAD
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


@dataclass(frozen=True)
class Convolution:
    """A convolution of given sizes: what they decide is worked out once.

    Attributes:
        shape: of the result, [N, M, out].
        compute: writes the result of `x` [N, C, spatial], `w` [M, C/group, kernel] and a bias [M].
    """

    shape: tuple[int, ...]
    compute: Compute

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None, memo: Memo) -> Tensor:
        """The result; all are of one float type."""
        y = np.empty(self.shape, x.dtype)
        if x.size and y.size:
            self.compute(np.ascontiguousarray(x), w, bias, y, memo)
        else:
            y[...] = 0 if bias is None else bias.reshape(-1, *(1,) * (x.ndim - 2))
        return y


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
    ways: Mapping[Route, _Make] = {
        Route.POINTWISE: _pointwise,
        Route.COLUMNS: _by_columns,
        Route.DEPTHWISE: depthwise,
        Route.BANDED: functools.partial(_or_else, convolve_banded.banded, depthwise),
        Route.TAPS: _by_taps,
        Route.WINOGRAD: functools.partial(_or_else, convolve_winograd.winograd, _by_columns),
    }
    make = ways[route(win, channels, each, group, constant)]
    shape = (batch, w[0], *win.out)
    return Convolution(shape, make(sizes) if math.prod(shape) and channels else _nothing)


def _nothing(x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, memo: Memo) -> None:
    """For sums of nothing, and results without elements: never called."""


def _or_else(fast: _Make, plain: _Make, sizes: Sizes) -> Compute:
    """`fast` if what it gives are numbers, else `plain`, which reads no pixel beyond a window.

    For ways in which 0 times a pixel is added to other results: that is NaN if it is infinite.
    """
    first = fast(sizes)
    second = functools.cache(lambda: plain(sizes))

    def compute(x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, memo: Memo) -> None:
        first(x, w, bias, y, memo)
        if np.isnan(y.min()):
            second()(x, w, bias, y, memo)

    return compute


def _pointwise(sizes: Sizes) -> Compute:
    """One product of the pixels."""
    win, batch, group, channels, each, _ = sizes
    lead = () if batch == group == 1 else (batch, group)
    plain = win.size == win.out and not any(win.begin) and set(win.strides) == {1}
    first = win.tap((0,) * len(win.kernel))
    tall = lead[1:]

    def compute(x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, memo: Memo) -> None:
        pixels = x if plain else win.padded(x, 0)[first]
        product(
            w.reshape(*tall, each, channels),
            pixels.reshape(*lead, channels, -1),
            y.reshape(*lead, each, -1),
            None if bias is None else bias.reshape(*tall, each, 1),
        )

    return compute


class _Cut(NamedTuple):
    """Some rows of windows of one image, and the part of it that they read.

    Attributes:
        image, at: which image and groups.
        source: indices of the part, [C/group, spatial].
        inside: where it lies in the padded part; None if nothing is padded.
        shape: of the padded part.
        windows: [C/group, kernel, out].
        steps: strides of these windows in the padded part, in elements.
        target: which windows of the result.
    """

    image: int
    at: slice
    source: tuple[slice, ...]
    inside: tuple[Any, ...] | None
    shape: tuple[int, ...]
    windows: tuple[int, ...]
    steps: tuple[int, ...]
    target: slice


def _cut(sizes: Sizes, image: int, at: slice, rows: slice) -> _Cut:
    win = sizes.win
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
    within = [math.prod(padded[axis + 1 :]) for axis in range(len(padded))]
    row = math.prod(win.out[1:])
    return _Cut(
        image,
        at,
        tuple(source),
        None if full else (..., *inside),
        (sizes.channels, *padded),
        (sizes.channels, *win.kernel, rows.stop - rows.start, *win.out[1:]),
        (
            math.prod(padded),
            *(d * n for d, n in zip(win.dilations, within, strict=True)),
            *(s * n for s, n in zip(win.strides, within, strict=True)),
        ),
        slice(rows.start * row, rows.stop * row),
    )


def _by_columns(sizes: Sizes) -> Compute:
    """One product of the taps of every window."""
    win, batch, group, channels, each, dtype = sizes
    inner = channels * math.prod(win.kernel)
    parts = pieces(group, win.out[0], (inner + each) * math.prod(win.out[1:]) * dtype.itemsize)
    cuts = [_cut(sizes, image, *part) for image in range(batch) for part in parts]
    multiply = np.matmul if len(cuts) > 1 else product
    windows = batch * group * math.prod(win.out) // len(cuts)
    each_ns = threads.about_ns(2 * windows * inner * each, 2 * windows * inner * dtype.itemsize)

    def compute(x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, memo: Memo) -> None:
        images = x.reshape(batch, group, channels, *win.size)
        matrix = w.reshape(group, each, inner)
        added = None if bias is None else bias.reshape(group, each, 1)
        whole = y.reshape(batch, group, each, -1)

        def work(cut: _Cut) -> None:
            columns = _columns(images, cut).reshape(cut.at.stop - cut.at.start, inner, -1)
            out = whole[cut.image, cut.at, :, cut.target]
            multiply(matrix[cut.at], columns, out=out)
            if added is not None:
                np.add(out, added[cut.at], out=out)

        threads.run(cuts, work, each_ns)

    return compute


def _columns(images: Tensor, cut: _Cut) -> Tensor:
    """[group, C/group, kernel, windows] of the taps of some windows."""
    index: list[Any] = [cut.image, cut.at, slice(None), *cut.source]
    part = images[tuple(index)]
    lead = part.shape[0]
    if cut.inside is None and lead == 1 and part[0].flags.c_contiguous:
        padded = part
    else:
        padded = scratch.array("padded", part.dtype, lead, *cut.shape)
        if cut.inside is None:
            padded[...] = part
        else:
            padded.fill(0)
            padded[cut.inside] = part
    size = padded.itemsize
    strides = (math.prod(cut.shape) * size, *(n * size for n in cut.steps))
    columns = scratch.array("columns", part.dtype, lead, *cut.windows)
    columns[...] = np.ndarray(columns.shape, part.dtype, padded, 0, strides)
    return columns


def _tap_first(w: Tensor, group: int) -> Tensor:
    """[taps, group, M/group, C/group]."""
    shaped = w.reshape(group, w.shape[0] // group, w.shape[1], -1)
    return np.ascontiguousarray(shaped.transpose(3, 0, 1, 2))


def _by_taps(sizes: Sizes) -> Compute:
    """A product for each tap, on shifted views."""
    win, batch, group, channels, each, dtype = sizes
    lay = layout(win)
    parts = pieces(group, win.out[0], (2 * each + channels) * lay.row * dtype.itemsize)
    cuts = [*itertools.product(range(batch), parts)]
    sums = batch * group * each * math.prod(win.out) * math.prod(win.kernel) // len(cuts)
    each_ns = threads.about_ns(2 * sums * channels, 3 * sums * dtype.itemsize)

    def compute(x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, memo: Memo) -> None:
        images = x.reshape(batch, group, channels, *win.size)
        weights = memo.of(1, "taps", lambda: _tap_first(w, group))
        added = None if bias is None else bias.reshape(group, each, 1)
        whole = y.reshape(batch, group, each, *win.out)

        def work(cut: tuple[int, tuple[slice, slice]]) -> None:
            image, (at, rows) = cut
            data = _planes(images[image, at], rows, lay)
            count = lay.count(rows.stop - rows.start)
            shape = (at.stop - at.start, each, (rows.stop - rows.start) * lay.row)
            sums = scratch.array("sums", dtype, *shape)
            other = scratch.array("products", dtype, *shape)
            total, more = sums[..., :count], other[..., :count]
            for index, (_, shift) in enumerate(lay.taps):
                pixels = data[:, :, shift : shift + count]
                np.matmul(weights[index, at], pixels, out=more if index else total)
                if index:
                    np.add(total, more, out=total)
            _store(whole[image, at, :, rows], sums, None if added is None else added[at], lay)

        threads.run(cuts, work, each_ns)

    return compute


def _planes(x: Tensor, rows: slice, lay: Layout) -> Tensor:
    """[group, C/group, positions] of some rows of windows of `x` [group, C/group, spatial]."""
    if lay.is_plain(x):
        return x.reshape(*x.shape[:2], -1)[..., rows.start * lay.row :]
    count = rows.stop - rows.start + lay.halo
    target = scratch.array("planes", x.dtype, *x.shape[:2], 1, count, lay.row)
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
