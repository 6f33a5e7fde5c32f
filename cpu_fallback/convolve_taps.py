"""Convolution with few outputs: a product for each tap, on shifted views of padded planes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from cpu_fallback import threads
from cpu_fallback.convolve_pieces import Compute, Sizes, pieces, scratch
from cpu_fallback.planes import Planes, planes_of
from cpu_fallback.registry import Memo, Tensor
from cpu_fallback.windows import Windows

MIN_LAST = 24
"""Fewer channels than this are multiplied faster as planes, even if they have to be copied."""


def _tap_first(w: Tensor, group: int) -> Tensor:
    """[taps, group, M/group, C/group]."""
    shaped = w.reshape(group, w.shape[0] // group, w.shape[1], -1)
    return np.ascontiguousarray(shaped.transpose(3, 0, 1, 2))


def bands(
    win: Windows, group: int, channels: int, each: int, itemsize: int
) -> list[tuple[slice, slice]]:
    """Groups and rows of windows to compute together, as `pieces` cuts them."""
    return pieces(group, win.out[0], (2 * each + channels) * planes_of(win).row * itemsize)


def by_taps(sizes: Sizes) -> Compute:
    """A product for each tap, on shifted views."""
    win, batch, group, channels, each, dtype = sizes
    lie, parts = planes_of(win), bands(win, group, channels, each, dtype.itemsize)
    cuts = [*itertools.product(range(batch), parts)]
    sums = batch * group * each * math.prod(win.out) * math.prod(win.kernel) // len(cuts)
    each_ns = threads.about_ns(2 * sums * channels, 3 * sums * dtype.itemsize)

    def compute(x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, memo: Memo) -> None:
        first = (0, x.ndim - 1, *range(1, x.ndim - 1))
        images = x.transpose(first).reshape(batch, group, channels, *win.size)
        weights = memo.of(1, "taps", lambda: _tap_first(w, group))
        added = None if bias is None else bias[: group * each].reshape(group, each, 1)
        whole = y.transpose(first).reshape(batch, group, each, *win.out)

        def work(cut: tuple[int, tuple[slice, slice]]) -> None:
            image, (at, rows) = cut
            data = _planes(images[image, at], rows, lie)
            count = lie.count(rows.stop - rows.start)
            shape = (at.stop - at.start, each, (rows.stop - rows.start) * lie.row)
            sums = scratch.array("sums", dtype, *shape)
            other = scratch.array("products", dtype, *shape)
            total, more = sums[..., :count], other[..., :count]
            for index, shift in enumerate(lie.shifts):
                pixels = data[:, :, shift : shift + count]
                np.matmul(weights[index, at], pixels, out=more if index else total)
                if index:
                    np.add(total, more, out=total)
            _store(whole[image, at, :, rows], sums, None if added is None else added[at], lie)

        threads.run(cuts, work, each_ns)

    return compute


def _planes(x: Tensor, rows: slice, lie: Planes) -> Tensor:
    """[group, C/group, positions] of some rows of windows of `x` [group, C/group, spatial]."""
    if lie.is_plain(x):
        return x.reshape(*x.shape[:2], -1)[..., rows.start * lie.row :]
    count = rows.stop - rows.start + lie.halo
    group, channels = x.shape[:2]
    if channels >= MIN_LAST and x.strides[1] == x.itemsize:
        pixels = scratch.array("planes", x.dtype, count, lie.row, group, channels)
        target = pixels.transpose(2, 3, 0, 1)
    else:
        target = scratch.array("planes", x.dtype, group, channels, count, lie.row)
    lie.fill(target, x, rows.start)
    return target.reshape(group, channels, count * lie.row)


def _store(y: Tensor, total: Tensor, bias: Tensor | None, lie: Planes) -> None:
    """Drops the positions between rows of `total` [group, M, positions]; adds the bias."""
    shaped = total.reshape(*y.shape[:3], *lie.size[1:])
    at: list[Any] = [..., *(slice(0, o) for o in lie.win.out[1:])]
    inside = shaped[tuple(at)]
    if bias is None:
        y[...] = inside
    else:
        np.add(inside, bias.reshape(*bias.shape[:2], *(1,) * len(lie.size)), out=y)
