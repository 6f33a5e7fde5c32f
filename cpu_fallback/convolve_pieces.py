"""What the ways to convolve share: sizes, pieces that fit a cache, memory to work in."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cpu_fallback.products import spans
from cpu_fallback.registry import Memo, Tensor
from cpu_fallback.windows import Windows

PIECE_NBYTES = 1 << 20
MOST_PIECES = 1 << 16
"""Of an axis. More of `PIECE_NBYTES` are larger than memory: who allocates them says so, not who
lists them."""

Compute = Callable[[Tensor, Tensor, Tensor | None, Tensor, Memo], None]
"""Writes a convolution of x [N, spatial, C], w [M, C/group, kernel] and perhaps a bias (see
`products.run_of`) into y [N, out, M]."""


class Sizes(NamedTuple):
    """`channels` in and `each` out in a group."""

    win: Windows
    batch: int
    group: int
    channels: int
    each: int
    dtype: np.dtype[Any]


class Scratch(threading.local):
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


scratch = Scratch()


def pieces(
    groups: int, rows: int, row_nbytes: int, shared_nbytes: int = 0
) -> list[tuple[slice, slice]]:
    """Groups and rows to compute together: what they need (`row_nbytes` each) fits the cache.

    shared_nbytes: what every piece reads anew, weights; no piece needs less, so that this is less
        than what it does besides.
    """
    room = max(PIECE_NBYTES, shared_nbytes)
    if rows * row_nbytes <= room:
        together = max(1, room // max(1, rows * row_nbytes))
        return [(at, slice(0, rows)) for at in evenly(groups, together)]
    step = max(1, room // row_nbytes)
    cuts = evenly(rows, step)
    return [(slice(g, g + 1), cut) for g in range(groups) for cut in cuts]


def evenly(size: int, most: int) -> list[slice]:
    """Slices of at most `most`, an even number of them unless it is one; at most `MOST_PIECES`."""
    count = min(-(-size // most), MOST_PIECES)
    return spans(size, min(size, count + count % 2 if count > 1 else 1))
