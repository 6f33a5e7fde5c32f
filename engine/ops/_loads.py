"""How often kernels load each element of an input (`OpDef.loads`): a tile loads for itself only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from engine.ops import NodeView
from engine.ops._work import in_shape, out_shape

Loads = Callable[[NodeView], float]

TILE_ROWS, TILE_COLUMNS = 8, 4
"""Of a register tile, as most kernels have it."""


def times(count: float, index: int = 0) -> Mapping[int, Loads]:
    """Each element of input `index` is loaded `count` times, whatever the sizes."""
    return {index: lambda view: count}


def per_output(taps: Callable[[NodeView], int]) -> Mapping[int, Loads]:
    """Each element of the output needs `taps` loads of input 0."""

    def loads(view: NodeView) -> float:
        return taps(view) * prod(out_shape(view)) / max(prod(in_shape(view, 0)), 1)

    return {0: loads}


def _operands(view: NodeView) -> tuple[int, int, int, int]:
    """Rows and columns of the result, all batches as rows, and sizes of the operands."""
    y = out_shape(view)
    columns = y[-1] if len(in_shape(view, 1)) > 1 else 1
    return (
        prod(y) // max(columns, 1),
        columns,
        max(prod(in_shape(view, 0)), 1),
        max(prod(in_shape(view, 1)), 1),
    )


def _left(view: NodeView) -> float:
    rows, columns, size, _ = _operands(view)
    return -(-columns // TILE_COLUMNS) * rows * _inner(view) / size


def _right(view: NodeView) -> float:
    rows, columns, _, size = _operands(view)
    return -(-rows // TILE_ROWS) * columns * _inner(view) / size


def _inner(view: NodeView) -> int:
    a = in_shape(view, 0)
    return a[0] if view.node.op_type == "Gemm" and view.attr("transA", 0) else a[-1]


PRODUCT: Mapping[int, Loads] = {0: _left, 1: _right}
"""Of a matrix product: rows by the tiles of columns, and the other way round."""
