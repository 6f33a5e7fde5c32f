"""Operators of com.microsoft: types only; they become standard ones, or run on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

from engine.dims import Dim, floordiv
from engine.dtypes import FLOAT32, INT32
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


def _skip_normalization(view: InferView) -> list[ValueType]:
    x = view.type(0)
    statistic = TensorType(FLOAT32, None if x.shape is None else (*x.shape[:-1], 1))
    return [x, statistic, statistic, x]


def _length(view: NodeView, index: int) -> Dim:
    """Size of the cache behind input `index`, 0 without it."""
    return view.shape(index)[2] if view.has(index) else 0


def _heads(view: NodeView, part: int, heads: Dim) -> Shape:
    """[batch, heads, length, size] of queries (0), keys (1) or values (2), packed or not."""
    index = part
    if len(view.shape(0)) == 5:
        index = 0
    elif view.has(1) and len(view.shape(1)) == 5 and part:
        index = 1
    shape = view.shape(index)
    if len(shape) == 5:
        return (shape[0], shape[2], shape[1], shape[4])
    if len(shape) == 4:
        return shape
    return (shape[0], heads, shape[1], floordiv(shape[2], heads))


def _multi_head(view: InferView) -> list[ValueType]:
    heads = int(view.attr("num_heads"))
    q, k, v = (_heads(view, i, heads) for i in range(3))
    past = _length(view, 6)
    dtype = view.dtype(0)
    caches = [TensorType(dtype, (x[0], x[1], past + x[2], x[3])) for x in (k, v)]
    scores = TensorType(dtype, (q[0], q[1], q[2], past + k[2]))
    return [TensorType(dtype, (q[0], q[2], q[1] * v[3])), *caches, scores]


def _self_attention(view: InferView) -> list[ValueType]:
    batch, length, _ = view.shape(0)
    sizes = view.attr("qkv_hidden_sizes")
    width: Dim = int(sizes[2]) if sizes else floordiv(view.shape(1)[1], 3)
    size = floordiv(width, int(view.attr("num_heads")))
    past = view.shape(4)[3] if view.has(4) else 0
    present = (2, batch, int(view.attr("num_heads")), past + length, size)
    dtype = view.dtype(0)
    return [TensorType(dtype, (batch, length, width)), TensorType(dtype, present)]


def _embedding(view: InferView) -> list[ValueType]:
    dtype, ids = view.dtype(2), view.shape(0)
    total = TensorType(dtype, (*ids, view.shape(2)[1]))
    return [total, TensorType(INT32, (ids[0],)), total]


def _ops(infer: Infer, *op_types: str) -> Sequence[OpDef]:
    return [register(OpDef(name, domain=DOMAIN, infer=infer)) for name in op_types]


_ops(keep_type, "Gelu", "BiasGelu", "FastGelu", "QuickGelu")
_ops(_fused_matmul, "FusedMatMul")
_ops(_float_product, "DynamicQuantizeMatMul")
_ops(_skip_normalization, "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
_ops(keep_type, "RotaryEmbedding")
_ops(_multi_head, "MultiHeadAttention")
_ops(_self_attention, "Attention")
_ops(_embedding, "EmbedLayerNormalization")
