"""Det."""

from __future__ import annotations

from collections.abc import Sequence

from engine.dims import Dim, product
from engine.errors import ShapeError
from engine.ir import TensorType, ValueType
from engine.ops import (
    YES,
    InferView,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    linear,
    no,
    register,
)

MAX_ROWS = 8
"""Larger matrices do not fit registers, and NumPy is good at them."""


def _infer(view: InferView) -> list[ValueType]:
    x = view.type(0)
    if x.shape is None:
        return [x]
    if len(x.shape) < 2:
        raise ShapeError(f"{view.describe()}: a matrix has two axes")
    rows, columns = x.shape[-2:]
    if isinstance(rows, int) and isinstance(columns, int) and rows != columns:
        raise ShapeError(f"{view.describe()}: {rows} rows and {columns} columns are no square")
    return [TensorType(x.dtype, x.shape[:-2])]


def _supports(view: NodeView) -> Support:
    rows, columns = view.shape(0)[-2:]
    if not isinstance(rows, int) or rows != columns or not 1 <= rows <= MAX_ROWS:
        return no(f"its kernel takes matrices of a known size, 1 to {MAX_ROWS} rows")
    return YES


def _lower(view: Lowering) -> Sequence[Stage]:
    shape = view.shape(0)
    rows, count = int(shape[-1]), product(shape[:-2])  # type: ignore[arg-type]
    call = KernelCall(
        "misc_det",
        {"x": view.node.inputs[0], "y": view.node.outputs[0]},
        {"count": count},
        linear(count),
        text={"N": str(rows)},
        trips=rows**3 + 2 * rows**2 + 16,
    )
    return [(call,)]


def _flops(view: NodeView) -> Dim:
    rows = view.shape(0)[-1]
    return product(view.shape(0)) * rows


register(
    OpDef(
        "Det",
        11,
        infer=_infer,
        lower=_lower,
        supports=_supports,
        limits=f"matrices of unknown size, or of more than {MAX_ROWS} rows",
        epilogue=True,
        flops=_flops,
    )
)
