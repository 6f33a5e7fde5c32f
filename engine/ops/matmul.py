"""Matrix products: MatMul and Gemm."""

from __future__ import annotations

from engine.dims import Dim, product
from engine.errors import ShapeError
from engine.ir import TensorType, ValueType
from engine.ops import FLOATS, InferView, NodeView, OpDef, register
from engine.ops.shape import broadcast_shapes


def _inner(view: NodeView, a: Dim, b: Dim) -> Dim:
    """The size summed over. Raises: ShapeError if the operands disagree about it."""
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise ShapeError(f"{view.describe()}: inner sizes {a} and {b} differ")
    return b if isinstance(b, int) else a


def _infer_matmul(view: InferView) -> list[ValueType]:
    a, b = view.type(0), view.type(1)
    if a.shape is None or b.shape is None:
        return [TensorType(a.dtype)]
    if not a.shape or not b.shape:
        raise ShapeError(f"{view.describe()}: operands must have at least one axis")
    _inner(view, a.shape[-1], b.shape[-2] if len(b.shape) > 1 else b.shape[0])
    batch = broadcast_shapes(view, a.shape[:-2], b.shape[:-2])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if len(b.shape) > 1 else ()
    return [TensorType(a.dtype, (*batch, *rows, *columns))]


def _infer_gemm(view: InferView) -> list[ValueType]:
    a, b = view.type(0), view.type(1)
    rows = _axes(view, a, "transA")
    columns = _axes(view, b, "transB")
    if rows is not None and columns is not None:
        _inner(view, rows[1], columns[0])
    m = view.fresh("m") if rows is None else rows[0]
    n = view.fresh("n") if columns is None else columns[1]
    return [TensorType(a.dtype, (m, n))]


def _axes(view: NodeView, matrix: TensorType, attribute: str) -> tuple[Dim, Dim] | None:
    """Rows and columns of an operand of Gemm, transposed if its attribute says so."""
    if matrix.shape is None:
        return None
    if len(matrix.shape) != 2:
        raise ShapeError(f"{view.describe()}: an operand has rank {len(matrix.shape)}, not 2")
    rows, columns = matrix.shape
    return (columns, rows) if view.attr(attribute, 0) else (rows, columns)


def _flops(view: NodeView) -> Dim:
    """Two for each multiplication of the sum."""
    a = view.shape(0)
    inner = a[0] if view.node.op_type == "Gemm" and view.attr("transA", 0) else a[-1]
    return 2 * product(view.out_shape()) * inner


register(OpDef("MatMul", infer=_infer_matmul, flops=_flops, dtypes=FLOATS))
register(OpDef("Gemm", 7, infer=_infer_gemm, flops=_flops, dtypes=FLOATS))
