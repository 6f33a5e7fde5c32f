"""What matrix products do, for costs."""

from __future__ import annotations

from math import prod

import numpy as np

from engine.ops import NodeView
from engine.ops._matmul_tiles import FEW_ROWS
from engine.ops._work import FLOAT_NBYTES, in_shape, out_shape, product, tiled
from engine.work import CpuWork, GpuWork


def product_cpu(view: NodeView, left: int = 0, right: int = 1) -> CpuWork:
    """The product of two inputs as NumPy's matmul, each batch item a product of its own."""
    a, b = in_shape(view, left), in_shape(view, right)
    a, b = ((1, *a) if len(a) == 1 else a), ((*b, 1) if len(b) == 1 else b)
    count = prod(np.broadcast_shapes(a[:-2], b[:-2]))
    return product(view, count, a[-2], a[-1], b[-1])


def matmul_cpu(view: NodeView) -> CpuWork:
    """MatMul in NumPy."""
    return product_cpu(view) + CpuWork(2)


def product_gpu(count: int, rows: int, inner: int, columns: int) -> GpuWork:
    """A product by the tile that its rows are few or many enough for."""
    if columns == 1:
        rows, columns = 1, rows
    if rows <= FEW_ROWS:
        shared = count * rows * inner * columns
        weights = count * inner * columns * FLOAT_NBYTES
        return GpuWork(1, fmas=2 * shared, nbytes=weights)
    return tiled(rows, inner, columns, (8, 32), count)


def operands_gpu(a: tuple[int, ...], b: tuple[int, ...]) -> GpuWork:
    """The product of operands of these shapes: one where the second has no batch of its own."""
    a, b = ((1, *a) if len(a) == 1 else a), ((*b, 1) if len(b) == 1 else b)
    rows, inner, columns = a[-2], a[-1], b[-1]
    count = prod(np.broadcast_shapes(a[:-2], b[:-2]))
    if prod(b[:-2]) == 1:
        return product_gpu(1, count * rows, inner, columns)
    return product_gpu(count, rows, inner, columns)


def matmul_gpu(view: NodeView) -> GpuWork:
    """MatMul in tiles."""
    return operands_gpu(in_shape(view, 0), in_shape(view, 1))


def _gemm_inner(view: NodeView) -> int:
    return in_shape(view, 0)[0 if view.attr("transA", 0) else 1]


def gemm_cpu(view: NodeView) -> CpuWork:
    """Gemm in NumPy: a product, and a pass that adds C."""
    rows, columns = out_shape(view)
    found = product(view, 1, rows, _gemm_inner(view), columns)
    return found + CpuWork(4, passes=(2 * rows * columns * FLOAT_NBYTES,))


def gemm_gpu(view: NodeView) -> GpuWork:
    """Gemm: C is added where the product is stored."""
    rows, columns = out_shape(view)
    return product_gpu(1, rows, _gemm_inner(view), columns)
