"""Convolution with 3 x 3 kernels by Winograd's F(4 x 4, 3 x 3): a quarter of the multiplications.

A tile of 4 x 4 results reads 6 x 6 pixels. Transformed, tile and kernel are multiplied number by
number, so that the sum over channels is 36 products of matrices. The transforms are products too:
of a tile's numbers by the Kronecker product of the matrix of one axis with itself. A pixel that is
infinite or NaN, or overflows, makes all results of its tiles NaN.

Source: Lavin, Gray, "Fast Algorithms for Convolutional Neural Networks" (2015).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from cpu_fallback import threads
from cpu_fallback.convolve_pieces import Compute, Sizes, pieces, scratch
from cpu_fallback.planes import Span, span
from cpu_fallback.products import product
from cpu_fallback.registry import Memo, Tensor
from cpu_fallback.windows import Windows

TILE, KERNEL = 4, 3
READ = TILE + KERNEL - 1
POINTS = (0.0, 0.75, -0.75, 1.5, -1.5)
"""Where polynomials are evaluated, besides infinity: errors are a quarter of those with the usual
0, 1, -1, 2, -2, and all numbers of `_READS` are exact in float32."""
_WHOLE = 16
"""BLAS adds up in another order in what is left over of so many rows (see `products`)."""


def _transforms() -> tuple[Tensor, Tensor, Tensor]:
    """Of one axis: pixels [6, 6], kernel [6, 3], results [4, 6].

    The interpolation of a product of polynomials at POINTS and infinity, transposed.
    """
    points = np.array(POINTS)
    powers = np.vander(points, READ, increasing=True)
    pixels, kernel = np.zeros((READ, READ)), np.zeros((READ, KERNEL))
    for index, point in enumerate(points):
        others = np.delete(points, index)
        pixels[index, :-1] = np.poly(others)[::-1]
        kernel[index] = powers[index, :KERNEL] / np.prod(point - others)
    pixels[-1] = np.poly(points)[::-1]
    kernel[-1, -1] = 1
    results = np.vstack([powers[:, :TILE], np.eye(TILE)[-1]]).T
    return pixels, kernel, results


_READS, _KERNELS, _RESULTS = (np.kron(m, m) for m in _transforms())
NUMBERS = READ * READ
"""Of a transformed tile."""


def fits(win: Windows, group: int) -> bool:
    """Whether a convolution is one that this way can compute."""
    return (
        group == 1
        and win.kernel == (KERNEL, KERNEL)
        and set(win.strides) == set(win.dilations) == {1}
    )


def tiles(win: Windows) -> tuple[int, int]:
    """Rows and columns of tiles."""
    rows, columns = (-(-size // TILE) for size in win.out)
    return rows, columns


def is_faster(win: Windows, channels: int, each: int) -> bool:
    """Whether it is faster than a product of columns, by times measured (in ns)."""
    count, pixels, pairs = math.prod(tiles(win)), math.prod(win.out), channels * each
    transformed = count * (0.6 * pairs + 43 * channels + 30 * each) + 20 * pairs + 100_000
    copied = pixels * (0.145 * pairs + 4.5 * channels) + 3 * pairs + 8_000
    return transformed < copied


def bands(
    win: Windows, batch: int, channels: int, each: int, itemsize: int
) -> list[tuple[slice, slice]]:
    """Images and rows of tiles to compute together, as `pieces` cuts them."""
    (high, wide), nbytes = tiles(win), NUMBERS * itemsize
    return pieces(batch, high, nbytes * wide * max(channels, each), nbytes * channels * each)


class _Cut(NamedTuple):
    """Some rows of tiles of some images.

    Attributes:
        rows, columns: where the rows and columns that tiles read lie in the input.
        high: rows of tiles.
        target: rows of the result.
    """

    images: slice
    rows: Span
    columns: Span
    high: int
    target: slice


def _cuts(sizes: Sizes) -> list[_Cut]:
    win, wide = sizes.win, tiles(sizes.win)[1]
    found = bands(win, sizes.batch, sizes.channels, sizes.each, sizes.dtype.itemsize)
    return [
        _Cut(
            images,
            span(win, 0, 0, TILE * rows.start, TILE * (rows.stop - rows.start) + KERNEL - 1),
            span(win, 1, 0, 0, TILE * wide + KERNEL - 1),
            rows.stop - rows.start,
            slice(TILE * rows.start, min(TILE * rows.stop, win.out[0])),
        )
        for images, rows in found
    ]


def winograd(sizes: Sizes) -> Compute:
    """36 products of matrices, between transforms of tiles and of their results."""
    win, batch, _, channels, each, dtype = sizes
    cuts, wide = _cuts(sizes), tiles(win)[1]
    reads, results = _READS.astype(dtype), _RESULTS.T.astype(dtype)
    multiply = np.matmul if len(cuts) > 1 else product
    numbers = NUMBERS * batch * math.prod(tiles(win)) // len(cuts)
    flops = 2 * numbers * (channels * each + NUMBERS * channels + TILE * TILE * each)
    each_ns = threads.about_ns(flops, 2 * numbers * (channels + each) * dtype.itemsize)

    def compute(x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, memo: Memo) -> None:
        kernels = memo.of(1, "winograd", lambda: transformed(w))

        def work(cut: _Cut) -> None:
            count = (cut.images.stop - cut.images.start) * cut.high * wide
            pixels = _pixels(x, cut, wide).reshape(NUMBERS, channels * count)
            # both memories are used twice: by now for the pixels, later for the results
            seen = scratch.array("seen", dtype, NUMBERS, channels, count)
            np.matmul(reads, pixels, out=seen.reshape(pixels.shape))
            size = each * count
            ahead = scratch.array("tiles", dtype, NUMBERS, -(-size // _WHOLE) * _WHOLE)
            multiply(kernels, seen, out=ahead[:, :size].reshape(NUMBERS, each, count))
            sums = scratch.array("seen", dtype, ahead.shape[1], TILE * TILE)
            np.matmul(ahead.T, results, out=sums)
            _store(y, sums[:size], bias, cut, wide)

        threads.run(cuts, work, each_ns)

    return compute


def transformed(w: Tensor) -> Tensor:
    """[36, M, C] of kernels [M, C, 3, 3]."""
    numbers = _KERNELS @ w.reshape(-1, KERNEL * KERNEL).T.astype(np.float64)
    return numbers.astype(w.dtype).reshape(NUMBERS, *w.shape[:2])


def _pixels(x: Tensor, cut: _Cut, wide: int) -> Tensor:
    """[6, 6, C, images, rows, columns of tiles] of the pixels of each tile of `x` [N, C, H, W]."""
    part = x[cut.images]
    (top, bottom, rows), (left, right, columns) = cut.rows, cut.columns
    height, width = TILE * cut.high + KERNEL - 1, TILE * wide + KERNEL - 1
    padded = scratch.array("padded", x.dtype, *part.shape[:2], height, width)
    padded[:, :, :top] = padded[:, :, bottom:] = 0
    padded[..., :left] = padded[..., right:] = 0
    padded[:, :, top:bottom, left:right] = part[:, :, rows, columns]
    image, channel, row, one = padded.strides
    shape = (READ, READ, part.shape[1], part.shape[0], cut.high, wide)
    strides = (row, one, channel, image, TILE * row, TILE * one)
    pixels = scratch.array("tiles", x.dtype, *shape)
    pixels[...] = np.ndarray(shape, x.dtype, padded, 0, strides)
    return pixels


def _store(y: Tensor, sums: Tensor, bias: Tensor | None, cut: _Cut, wide: int) -> None:
    """Puts the rows of tiles side by side; adds the bias.

    sums: [M * images * tiles, 4 * 4].
    """
    target = y[cut.images, :, cut.target]
    count, each, height, width = target.shape
    shape = (each, count, cut.high, TILE, wide)
    four = np.dtype((np.void, TILE * sums.itemsize))
    side_by_side: Any = scratch.array("tiles", sums.dtype, *shape, TILE)
    rows = sums.view(four).reshape(each, count, cut.high, wide, TILE)
    side_by_side.view(four).reshape(shape)[...] = rows.transpose(0, 1, 2, 4, 3)
    whole = side_by_side.reshape(each, count, TILE * cut.high, TILE * wide)
    found = whole[:, :, :height, :width].transpose(1, 0, 2, 3)
    if bias is None:
        target[...] = found
    else:
        np.add(found, bias.reshape(-1, 1, 1), out=target)
