"""Convolutions, quantised and other operators of com.microsoft: types only, as `contrib.py`."""

from __future__ import annotations

from engine.dims import Dim, dmax, floordiv
from engine.dtypes import FLOAT32
from engine.errors import ShapeError
from engine.ir import Shape, TensorType, ValueType
from engine.ops import InferView, NodeView, OpDef, register
from engine.ops.quant import MICROSOFT
from engine.ops.shape import keep_type
from engine.windows import Windows, windows


def _channels_last(view: NodeView) -> bool:
    return view.node.op_type == "NhwcConv" or bool(view.attr("channels_last", 0))


def _first_channels(view: NodeView, shape: Shape) -> Shape:
    """The shape with its channels behind the batch."""
    return (shape[0], shape[-1], *shape[1:-1]) if _channels_last(view) else shape


def _placed(view: NodeView, batch: Dim, channels: Dim, rest: Shape) -> Shape:
    """The shape of a result."""
    return (batch, *rest, channels) if _channels_last(view) else (batch, channels, *rest)


def _windows(view: NodeView, x: Shape, kernel: Shape) -> Windows:
    if len(x) < 3 or len(x) != len(kernel) + 2:
        raise ShapeError(f"{view.describe()}: the data does not have the rank of its windows")
    return windows(
        x[2:],
        kernel,
        auto_pad=view.attr("auto_pad", "NOTSET"),
        strides=view.attr("strides"),
        dilations=view.attr("dilations"),
        pads=view.attr("pads"),
        ceil_mode=int(view.attr("ceil_mode", 0)),
    )


def _conv(view: InferView) -> list[ValueType]:
    quantized = view.node.op_type == "QLinearConv"
    x, w = _first_channels(view, view.shape(0)), view.shape(3 if quantized else 1)
    dtype = view.dtype(7 if quantized else 0)
    return [TensorType(dtype, _placed(view, x[0], w[0], _windows(view, x, w[2:]).out))]


def _gemm(view: InferView) -> list[ValueType]:
    quantized = view.node.op_type == "QGemm"
    a, b = view.shape(0), view.shape(3 if quantized else 1)
    if len(a) != 2 or len(b) != 2:
        raise ShapeError(f"{view.describe()}: its operands are no matrices")
    rows = a[1 if view.attr("transA", 0) else 0]
    columns = b[0 if view.attr("transB", 0) else 1]
    dtype = view.dtype(0)
    if quantized:
        dtype = FLOAT32 if not view.has(7) else view.dtype(8) if view.has(8) else dtype
    return [TensorType(dtype, (rows, columns))]


def _average(view: InferView) -> list[ValueType]:
    x = _first_channels(view, view.shape(0))
    rest: Shape = (1,) * (len(x) - 2)
    if view.node.op_type == "QLinearAveragePool":
        rest = _windows(view, x, tuple(view.attr("kernel_shape"))).out
    return [TensorType(view.dtype(0), _placed(view, x[0], x[1], rest))]


def _concat(view: InferView) -> list[ValueType]:
    parts = [view.shape(i) for i in range(2, len(view.node.inputs), 3)]
    first = parts[0]
    axis = view.axis(len(first), 0)
    if any(len(part) != len(first) for part in parts):
        raise ShapeError(f"{view.describe()}: its ranks differ")
    total: Dim = 0
    for part in parts:
        total = total + part[axis]
    return [TensorType(view.dtype(2), (*first[:axis], total, *first[axis + 1 :]))]


def _group_query(view: InferView) -> list[ValueType]:
    batch, length, width = view.shape(0)
    heads, key_heads = int(view.attr("num_heads")), int(view.attr("kv_num_heads"))
    packed = not view.has(1)
    size = floordiv(width, heads + 2 * key_heads if packed else heads)
    value = size if packed else floordiv(view.shape(2)[2], key_heads)
    known = view.dim_list(6)
    total = known[0] if known else view.fresh("total")
    past = view.shape(3)[2] if view.has(3) else 0
    dtype = view.dtype(0)
    caches = [
        TensorType(dtype, (batch, key_heads, dmax(past, total), part)) for part in (size, value)
    ]
    return [TensorType(dtype, (batch, length, heads * value)), *caches]


def _simplified(view: InferView) -> list[ValueType]:
    """Root-mean-square normalisation over the axes from `axis` on, and its factor."""
    x = view.type(0)
    if x.shape is None:
        return [x, TensorType(FLOAT32)]
    axis = view.axis(len(x.shape), -1)
    ones = (1,) * (len(x.shape) - axis)
    return [x, TensorType(FLOAT32, (*x.shape[:axis], *ones))]


for _names, _rule in (
    (("FusedConv", "NhwcConv", "QLinearConv"), _conv),
    (("FusedGemm", "QGemm"), _gemm),
    (("QLinearAveragePool", "QLinearGlobalAveragePool"), _average),
    (("QLinearConcat",), _concat),
    (("QLinearSoftmax",), keep_type),
    (("GroupQueryAttention",), _group_query),
    (("SimplifiedLayerNormalization",), _simplified),
):
    for _name in _names:
        register(OpDef(_name, domain=MICROSOFT, infer=_rule))
