"""Passes over large arrays, in pieces on all threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cpu_fallback import threads
from cpu_fallback.products import spans
from cpu_fallback.registry import Tensor

MIN_SWEPT = 1 << 20
"""Elements from which on threads pay."""
PIECE = 1 << 19
"""Elements of a piece."""
CACHED = 1 << 16
"""Elements that stay in a core's cache with what is computed of them, pass after pass."""


def parts(shape: tuple[int, ...], whole: int | None = None) -> list[tuple[slice, ...]] | None:
    """Indices of the pieces of an array, cut along its first axis that can be; None for one piece.

    Axis `whole` is not cut.
    """
    size = math.prod(shape)
    if size < MIN_SWEPT:
        return None
    for axis, length in enumerate(shape):
        if length > 1 and axis != whole:
            lead = (slice(None),) * axis
            return [(*lead, at) for at in spans(length, min(length, size // PIECE))]
    return None


def in_memory(x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of `x` as they lie in memory, the one of the smallest steps last, and the way back.

    Of an array that ends a convolution the channels come last: transposed like that it is one run.
    """
    order = sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))
    back = sorted(range(x.ndim), key=order.__getitem__)
    return tuple(order), tuple(back)


def taken(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """`x` at positions of an axis; in memory in the order of `x`."""
    if x.flags.c_contiguous:
        return np.take(x, index, axis=axis)
    order, back = in_memory(x)
    return np.take(x.transpose(order), index, axis=back[axis]).transpose(back)


def sweep(function: Callable[..., Any], out: Tensor, *operands: Tensor) -> Tensor:
    """`function(*operands, out=out)`, elementwise; operands broadcast to `out`."""
    cuts = parts(out.shape)
    if cuts is None:
        function(*operands, out=out)
        return out
    rank, axis = out.ndim, len(cuts[0]) - 1
    if not out.flags.c_contiguous:
        order, _ = in_memory(out)
        if order != (*range(rank),):
            whole = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in operands)
            sweep(function, out.transpose(order), *(x.transpose(order) for x in whole))
            return out

    def work(cut: tuple[slice, ...]) -> None:
        pieces = []
        for x in operands:
            own = axis - rank + x.ndim
            cuttable = own >= 0 and x.shape[own] > 1
            pieces.append(x[cut[rank - x.ndim :]] if cuttable else x)
        function(*pieces, out=out[cut])

    threads.run(cuts, work, threads.about_ns(0, (len(operands) + 1) * out.nbytes // len(cuts)))
    return out
