"""Operators of com.microsoft: types only, they run on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

from engine.dims import Dim
from engine.dtypes import FLOAT32
from engine.errors import ShapeError
from engine.ir import Shape, TensorType, ValueType
from engine.ops import Infer, InferView, NodeView, OpDef, register
from engine.ops._shapes import broadcast_shapes
from engine.ops.shape import keep_type

DOMAIN = "com.microsoft"


def _product_shape(view: NodeView, a: Shape, b: Shape) -> Shape:
    """Shape of a matrix product of operands of rank 1 and up."""
    if not a or not b:
        raise ShapeError(f"{view.describe()}: a matrix product of a scalar")
    left, right = (a if len(a) > 1 else (1, *a)), (b if len(b) > 1 else (*b, 1))
    inner, other = left[-1], right[-2]
    if isinstance(inner, int) and isinstance(other, int) and inner != other:
        raise ShapeError(f"{view.describe()}: inner sizes {inner} and {other} differ")
    batch = broadcast_shapes(view, [left[:-2], right[:-2]])
    rows: Shape = left[-2:-1] if len(a) > 1 else ()
    columns: Shape = right[-1:] if len(b) > 1 else ()
    return (*batch, *rows, *columns)


def _fused_matmul(view: InferView) -> list[ValueType]:
    shapes = []
    for index, name in enumerate(("A", "B")):
        shape = view.shape(index)
        if view.attr(f"transBatch{name}", 0):
            shape = (*shape[1:-1], shape[0], shape[-1])
        if view.attr(f"trans{name}", 0) and len(shape) > 1:
            shape = (*shape[:-2], shape[-1], shape[-2])
        shapes.append(shape)
    return [TensorType(view.dtype(0), _product_shape(view, *shapes))]


def _float_product(view: InferView) -> list[ValueType]:
    return [TensorType(FLOAT32, _product_shape(view, view.shape(0), view.shape(1)))]


def _lstm(view: InferView) -> list[ValueType]:
    length, batch, _ = view.shape(0)
    hidden: Dim = int(view.attr("hidden_size"))
    directions = 2 if view.attr("direction", "forward") == "bidirectional" else 1
    state = TensorType(view.dtype(0), (directions, batch, hidden))
    return [TensorType(view.dtype(0), (length, directions, batch, hidden)), state, state]


def _skip_normalization(view: InferView) -> list[ValueType]:
    x = view.type(0)
    statistic = TensorType(FLOAT32, None if x.shape is None else (*x.shape[:-1], 1))
    return [x, statistic, statistic, x]


def _matmul_n_bits(view: InferView) -> list[ValueType]:
    return [TensorType(view.dtype(0), (*view.shape(0)[:-1], int(view.attr("N"))))]


def _ops(infer: Infer, *op_types: str) -> Sequence[OpDef]:
    return [register(OpDef(name, domain=DOMAIN, infer=infer)) for name in op_types]


_ops(keep_type, "Gelu", "BiasGelu", "FastGelu", "QuickGelu")
_ops(_fused_matmul, "FusedMatMul")
_ops(_float_product, "DynamicQuantizeMatMul")
_ops(_lstm, "DynamicQuantizeLSTM")
_ops(_skip_normalization, "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
_ops(_matmul_n_bits, "MatMulNBits")
