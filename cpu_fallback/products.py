"""Matrix products in blocks, on all threads."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from cpu_fallback import threads
from cpu_fallback.registry import Tensor

MIN_BLOCK_NS = 300_000
"""Blocks take at least so long: BLAS packs operands for each, so that two cost 10 % and 16 30 %."""
MAX_BLOCKS = 8
_LEAST = 32
"""Rows or columns of a block."""
_STEP = 16
"""BLAS adds up in another order in what is left over of so many: equal columns of weights, which a
saturated softmax tells apart, have to give equal results wherever blocks end."""
_ALL = slice(None)
RUN = 1024
"""Elements that NumPy needs side by side so that what it does for each run does not count."""


def product(a: Tensor, b: Tensor, out: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """`a` [..., M, K] times `b` [..., K, N] plus `bias`, which broadcasts to the result.

    All have one float type; batches broadcast. Within `threads.alone` large ones are cut into
    blocks, worked out from sizes alone.
    Returns: [..., M, N], in `out` if it is given.
    """
    if out is None:
        batch = () if a.ndim == b.ndim == 2 else np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        out = np.empty((*batch, a.shape[-2], b.shape[-1]), a.dtype)
    axis, counts = blocks(out.shape, a.shape[-1], a.itemsize)
    if counts == (1, 1, 1) or not threads.alone.threads:
        _block(a, b, out, bias)
        return out

    def work(piece: tuple[slice, ...]) -> None:
        at, rows, columns = piece
        _block(
            _part(a, axis, at, rows, _ALL),
            _part(b, axis, at, _ALL, columns),
            _part(out, axis, at, rows, columns),
            None if bias is None else _part(bias, axis, at, rows, columns),
        )

    sizes = (out.shape[axis] if out.ndim > 2 else 1, *out.shape[-2:])
    pieces = [*itertools.product(*map(spans, sizes, counts, (1, _STEP, _STEP)))]
    threads.run(pieces, work, MIN_BLOCK_NS)
    return out


def _block(a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None) -> None:
    np.matmul(a, b, out=out)
    if bias is not None:
        np.add(out, bias, out=out)


def run_of(row: Tensor) -> Tensor:
    """A row [N], repeated until `add_rows` need not mind how short it is."""
    return np.tile(row, max(1, RUN // max(1, row.size)))


def add_rows(out: Tensor, run: Tensor) -> None:
    """Adds a row to each row of `out` [M, N]; `run` is `run_of` it."""
    columns = out.shape[1]
    together = run.size // columns if out.flags.c_contiguous else out.shape[0] + 1
    whole = out.shape[0] // together * together
    if whole:
        runs = out[:whole].reshape(-1, run.size)
        np.add(runs, run, out=runs)
    if whole < out.shape[0]:
        np.add(out[whole:], run[:columns], out=out[whole:])


def _part(x: Tensor, axis: int, at: slice, rows: slice, columns: slice) -> Tensor:
    """Of an operand, which broadcasts: axes of one element stay as they are."""
    index = [_ALL] * x.ndim
    for which, span in ((axis, at), (-2, rows), (-1, columns)):
        if x.ndim >= -which and x.shape[which] > 1:
            index[which] = span
    return x[tuple(index)]


@functools.lru_cache(maxsize=1024)
def blocks(shape: tuple[int, ...], inner: int, itemsize: int) -> tuple[int, tuple[int, int, int]]:
    """Into how many parts a product is cut: the axis of batches, and parts of it, rows, columns.

    shape: of the result. inner: columns of the first operand.
    """
    rows, columns = shape[-2:]
    axis = max(range(len(shape) - 2), key=shape.__getitem__, default=-1) - len(shape)
    touched = math.prod(shape[:-2]) * (rows * inner + inner * columns + rows * columns)
    ns = threads.about_ns(2 * math.prod(shape) * inner, touched * itemsize)
    count = min(MAX_BLOCKS, ns // MIN_BLOCK_NS)
    if count < 2:
        return axis, (1, 1, 1)
    parts = min(count, shape[axis]) if len(shape) > 2 else 1
    high = wide = 1
    while 2 * parts * high * wide <= count:
        if rows // high >= max(columns // wide, 2 * _LEAST):
            high *= 2
        elif columns // wide >= 2 * _LEAST:
            wide *= 2
        else:
            break
    return axis, (parts, high, wide)


def spans(size: int, count: int, step: int = 1) -> list[slice]:
    """`count` slices of about the same length; all but the last end at multiples of `step`."""
    ends = [size * i // count // step * step for i in range(count)]
    return [slice(*pair) for pair in itertools.pairwise([*ends, size])]
