"""Convolution with 3 x 3 kernels by Winograd's F(4 x 4, 3 x 3): a quarter of the multiplications.

A tile of 4 x 4 results reads 6 x 6 pixels. Transformed, tile and kernel are multiplied number by
number, so that the sum over channels is 36 products of matrices. The transforms are products too:
of a tile's numbers by the Kronecker product of the matrix of one axis with itself. A pixel that is
infinite or NaN, or overflows, makes all results of its tiles NaN.

Source: Lavin, Gray, "Fast Algorithms for Convolutional Neural Networks" (2015).
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from cpu_fallback import threads
from cpu_fallback.convolve_pieces import Compute, Sizes, pieces, scratch
from cpu_fallback.planes import Span, span
from cpu_fallback.products import add_rows, product
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
    reads, results = _READS.astype(dtype), _RESULTS.astype(dtype)
    multiply = np.matmul if len(cuts) > 1 else product
    numbers = NUMBERS * batch * math.prod(tiles(win)) // len(cuts)
    flops = 2 * numbers * (channels * each + NUMBERS * channels + TILE * TILE * each)
    each_ns = threads.about_ns(flops, 2 * numbers * (channels + each) * dtype.itemsize)

    def compute(x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, memo: Memo) -> None:
        kernels = memo.of(1, "winograd", lambda: transformed(w))

        def work(cut: _Cut) -> None:
            count = (cut.images.stop - cut.images.start) * cut.high * wide
            pixels = _pixels(x, cut, wide).reshape(NUMBERS, count * channels)
            # both memories are used twice: by now for the pixels, later for the results
            seen = scratch.array("seen", dtype, NUMBERS, count, channels)
            np.matmul(reads, pixels, out=seen.reshape(pixels.shape))
            size = count * each
            ahead = scratch.array("tiles", dtype, NUMBERS, -(-size // _WHOLE) * _WHOLE)
            multiply(seen, kernels, out=ahead[:, :size].reshape(NUMBERS, count, each))
            sums = scratch.array("seen", dtype, TILE * TILE, ahead.shape[1])
            np.matmul(results, ahead, out=sums)
            _store(y[cut.images, cut.target], sums[:, :size], bias, cut.high, wide)

        threads.run(cuts, work, each_ns)

    return compute


def transformed(w: Tensor) -> Tensor:
    """[36, C, M] of kernels [M, C, 3, 3]."""
    numbers = _KERNELS @ w.T.reshape(KERNEL, KERNEL, -1).swapaxes(0, 1).reshape(KERNEL**2, -1)
    return numbers.astype(w.dtype).reshape(NUMBERS, w.shape[1], w.shape[0])


def _pixels(x: Tensor, cut: _Cut, wide: int) -> Tensor:
    """[6, 6, images, rows, columns of tiles, C] of the pixels of each tile of `x` [N, H, W, C]."""
    part = x[cut.images]
    (top, bottom, rows), (left, right, columns) = cut.rows, cut.columns
    height, width = TILE * cut.high + KERNEL - 1, TILE * wide + KERNEL - 1
    padded = scratch.array("padded", x.dtype, part.shape[0], height, width, part.shape[3])
    padded[:, :top] = padded[:, bottom:] = 0
    padded[:, :, :left] = padded[:, :, right:] = 0
    padded[:, top:bottom, left:right] = part[:, rows, columns]
    image, row, column, one = padded.strides
    shape = (READ, READ, part.shape[0], cut.high, wide, part.shape[3])
    strides = (row, column, image, TILE * row, TILE * column, one)
    pixels = scratch.array("tiles", x.dtype, *shape)
    pixels[...] = np.ndarray(shape, x.dtype, padded, 0, strides)
    return pixels


def _store(y: Tensor, sums: Tensor, bias: Tensor | None, high: int, wide: int) -> None:
    """Puts the pixels of tiles side by side in `y` [images, H, W, M]; adds the bias.

    sums: [4 * 4, images * tiles * M].
    """
    found = sums.reshape(TILE, TILE, y.shape[0], high, wide, y.shape[3])
    if bias is not None and sums.flags.c_contiguous:
        add_rows(sums.reshape(-1, y.shape[3]), bias)
    elif bias is not None:
        np.add(found, bias[: y.shape[3]], out=found)
    for row, column in itertools.product(range(TILE), repeat=2):
        target = y[:, row::TILE, column::TILE]
        target[...] = found[row, column, :, : target.shape[1], : target.shape[2]]
