"""Depthwise convolution of small maps: a product with a banded matrix for each channel.

The rows of pixels that a row of outputs reads lie one behind the other, as one row of a matrix;
those of the next row of outputs overlap it. This matrix is multiplied by the kernel, repeated along
a diagonal. BLAS multiplies the zeros beside it faster than NumPy adds up taps of short rows; with
longer rows the matrices, read once in a call, grow too large.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from cpu_fallback.convolve_pieces import Compute, Sizes, pieces, scratch
from cpu_fallback.planes import span
from cpu_fallback.registry import Memo, Tensor
from cpu_fallback.windows import Windows

MIN_ROWS, MAX_COLUMNS, MAX_TAPS = 4, 8, 7


def fits(win: Windows) -> bool:
    """Whether maps are so small that this is the fastest way; rows that are read lie together."""
    if len(win.out) != 2 or win.dilations[0] > 1 or max(win.kernel) > MAX_TAPS:
        return False
    return win.out[0] >= MIN_ROWS and win.out[1] <= MAX_COLUMNS


def reach(win: Windows) -> tuple[int, int]:
    """Rows and columns of pixels that the windows read."""
    rows, columns = (
        (o - 1) * s + (k - 1) * d + 1
        for o, s, k, d in zip(win.out, win.strides, win.kernel, win.dilations, strict=True)
    )
    return rows, columns


def banded(sizes: Sizes) -> Compute:
    """A channel for each channel, for windows that `fits` accepts."""
    win, batch, channels, _, _, dtype = sizes
    rows, columns = reach(win)
    dense = dataclasses.replace(win, strides=(1, 1))
    top, bottom, at_rows = span(dense, 0, 0, 0, rows)
    left, right, at_columns = span(dense, 1, 0, 0, columns)
    cuts = [
        (image, at)
        for image in range(batch)
        for at, _ in pieces(channels, 1, rows * columns * dtype.itemsize)
    ]

    def compute(x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, memo: Memo) -> None:
        matrices = memo.of(1, "banded", lambda: _matrices(w, win, columns))
        for image, at in cuts:
            target = y[image, at]
            padded = scratch.array("padded", dtype, at.stop - at.start, rows, columns)
            padded[:, :top] = padded[:, bottom:] = 0
            padded[..., :left] = padded[..., right:] = 0
            padded[:, top:bottom, left:right] = x[image, at, at_rows, at_columns]
            channel, row, one = padded.strides
            shape = (at.stop - at.start, win.out[0], win.kernel[0] * columns)
            strides = (channel, win.strides[0] * row, one)
            overlapping: Tensor = np.ndarray(shape, dtype, padded, 0, strides)
            np.matmul(overlapping, matrices[at], out=target)
            if bias is not None:
                np.add(target, bias[at, None, None], out=target)

    return compute


def _matrices(w: Tensor, win: Windows, columns: int) -> Tensor:
    """[C, kernel rows * columns, outputs of a row] of kernels [C, 1, kernel]."""
    channels, _, high, wide = w.shape
    matrices = np.zeros((channels, high, columns, win.out[1]), w.dtype)
    outputs = np.arange(win.out[1])
    for tap in range(wide):
        reads = outputs * win.strides[1] + tap * win.dilations[1]
        matrices[:, :, reads, outputs] = w[:, 0, :, tap, None]
    return matrices.reshape(channels, high * columns, win.out[1])
