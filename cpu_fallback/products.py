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
_FEW_ROWS = 16
_MAX_UNPACKED = 1_000_000
"""Multiply-adds up to which OpenBLAS takes float32 operands as they lie, on CPUs with AVX-512;
others lose nothing by smaller parts."""
_LEAST_UNPACKED = 112
"""Columns of a part; with fewer, the parts take as long as packing."""
_ALL = slice(None)


def product(a: Tensor, b: Tensor, out: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """`a` [..., M, K] times `b` [..., K, N] plus `bias`, which broadcasts to the result.

    All have one float type; batches broadcast. Blocks are worked out from sizes alone.
    Returns: [..., M, N], in `out` if it is given.
    """
    if out is None:
        batch = () if a.ndim == b.ndim == 2 else np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        out = np.empty((*batch, a.shape[-2], b.shape[-1]), a.dtype)
    axis, counts = blocks(out.shape, a.shape[-1], a.itemsize)
    if counts == (1, 1, 1):
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
    few = a.ndim == b.ndim == 2 and 1 < a.shape[0] <= _FEW_ROWS and a.dtype == np.float32
    cuts = _unpacked(a.shape[0], *b.shape) if few and b.strides[1] == b.itemsize else ()
    for at in cuts:
        np.matmul(a, b[:, at], out=out[:, at])
    if not cuts:
        np.matmul(a, b, out=out)
    if bias is not None:
        np.add(out, bias, out=out)


@functools.lru_cache(maxsize=1024)
def _unpacked(rows: int, inner: int, columns: int) -> tuple[slice, ...]:
    """Columns that OpenBLAS multiplies with few rows without packing them; () for all at once.

    Packing takes longer than multiplying then: 12 by 384 by 1536 takes half as long in parts, and
    2 by 384 by 1536 a fourth.
    """
    most = _MAX_UNPACKED // (rows * max(inner, 1)) - 2 * _STEP
    if most < _LEAST_UNPACKED or columns <= most + 2 * _STEP or columns % (2 * _STEP):
        return ()
    return tuple(spans(columns, -(-columns // most), 2 * _STEP))


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
