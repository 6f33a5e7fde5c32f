"""Operators of com.microsoft as standard ones, where these compute the same.

Gelu, BiasGelu, FastGelu                       => [Add +] Gelu
QuickGelu                                      => Swish
FusedMatMul                                    => [Transpose +] MatMul [+ Mul]
SkipLayerNormalization                         => Add + LayerNormalization
SkipSimplified-, SimplifiedLayerNormalization  => [Add +] RMSNormalization
EmbedLayerNormalization                        => Gather + Add + LayerNormalization
RotaryEmbedding                                => RotaryEmbedding of ai.onnx
MultiHeadAttention, Attention                  => Attention of ai.onnx (contrib_attention.py)
GroupQueryAttention => RotaryEmbedding + TensorScatter + Attention (contrib_cached.py)
FusedConv, FusedGemm, NhwcConv                 => Conv, Gemm + ... (contrib_conv.py)
QGemm, QLinear...                              => integers or floats between (contrib_quant.py)
DynamicQuantizeMatMul => DynamicQuantizeLinear + MatMulInteger + Cast + Mul [+ Add]

An operator in float16 or bfloat16 rounds once. Where several nodes would round after each, it
stays.
"""

from __future__ import annotations

import numpy as np

from engine.dtypes import FLOAT32
from engine.ir import Graph, Node
from engine.ops import FLOATS
from engine.passes import contrib_conv, contrib_quant
from engine.passes.base import PassResult
from engine.passes.build import Builder, Rule, replace_nodes
from engine.passes.contrib_attention import attention, multi_head_attention
from engine.passes.contrib_cached import group_query_attention

DOMAIN = "com.microsoft"

_EXACT = frozenset(
    "Cast Concat Equal Expand Gather Greater Identity Range Reshape Shape Slice Split Transpose "
    "TensorScatter Unsqueeze Where".split()
)
"""What does not round; Cast only makes integers and bools here."""
_ON_INTEGERS = {
    "GroupQueryAttention": frozenset({"Add", "Max", "RotaryEmbedding", "Sub"}),
    "RotaryEmbedding": frozenset({"Add"}),
}
"""What these operators turn into besides, on integers, or where they round themselves."""


def lower_contrib(graph: Graph) -> PassResult:
    """Writes operators of com.microsoft out in standard ones."""
    return replace_nodes(graph, _rule_of)


def _rule_of(node: Node) -> Rule | None:
    if node.domain == DOMAIN and node.op_type in _RULES:
        return _in_floats
    if node.domain == DOMAIN and node.op_type in _QUANTIZED:
        return _QUANTIZED[node.op_type]
    if node.domain == "" and node.op_type == "SimplifiedLayerNormalization":
        return _in_floats
    return None


def _in_floats(b: Builder) -> str | None:
    index = 2 if b.node.op_type == "EmbedLayerNormalization" else 0
    dtype = b.dtype(index)
    if dtype.name not in FLOATS:
        return f"it computes in {dtype}"
    reason = _RULES[b.node.op_type](b)
    own = _EXACT | _ON_INTEGERS.get(b.node.op_type, frozenset())
    if not reason and dtype != FLOAT32 and sum(n.op_type not in own for n in b.nodes) > 1:
        return f"each of its parts would round to {dtype}"
    return reason


def _gelu(b: Builder) -> str:
    x = b.node.inputs[0]
    if b.has(1):
        x = b.op("Add", x, b.node.inputs[1])
    approximate = "tanh" if b.node.op_type == "FastGelu" else "none"
    b.op("Gelu", x, output=b.output(0), approximate=approximate)
    return ""


def _quick_gelu(b: Builder) -> str:
    alpha = float(b.attr("alpha", 1.702))
    b.op("Swish", b.node.inputs[0], output=b.output(0), alpha=alpha)
    return ""


def _fused_matmul(b: Builder) -> str:
    operands = [_oriented(b, index, side) for index, side in enumerate("AB")]
    alpha = float(b.attr("alpha", 1.0))
    if alpha == 1.0:
        b.op("MatMul", *operands, output=b.output(0))
        return ""
    product = b.op("MatMul", *operands)
    b.op("Mul", product, b.constant(np.array(alpha, np.float32)), output=b.output(0))
    return ""


def _oriented(b: Builder, index: int, side: str) -> str:
    rank = len(b.shape(index))
    axes = list(range(rank))
    if b.attr(f"transBatch{side}", 0) and rank > 2:
        axes = [*range(1, rank - 1), 0, rank - 1]
    if b.attr(f"trans{side}", 0) and rank > 1:
        axes[-2:] = axes[-1], axes[-2]
    name = b.node.inputs[index]
    return name if axes == sorted(axes) else b.op("Transpose", name, perm=axes)


def _summed(b: Builder, places: tuple[int, ...], output: str) -> str:
    """The sum of the inputs that are given, as `output` if there is one."""
    first, *rest = (b.node.inputs[i] for i in places if b.has(i))
    for number, name in enumerate(rest, 1):
        first = b.op("Add", first, name, output=output if number == len(rest) else "")
    return first


def _skip_layer(b: Builder) -> str:
    total = _summed(b, (0, 1, 4), b.output(3))
    epsilon = float(b.attr("epsilon", 1e-12))
    outputs = (b.output(0), b.output(1), b.output(2))
    inputs = (total, b.node.inputs[2], b.node.input(3))
    b.many("LayerNormalization", inputs, _trimmed(outputs), axis=-1, epsilon=epsilon)
    return ""


def _trimmed(names: tuple[str, ...]) -> tuple[str, ...]:
    while len(names) > 1 and not names[-1]:
        names = names[:-1]
    return names


def _skip_simplified(b: Builder) -> str:
    if b.wanted(1) or b.wanted(2):
        return "its statistics are read"
    total = _summed(b, (0, 1, 3), b.output(3))
    epsilon = float(b.attr("epsilon", 1e-12))
    scale = b.node.inputs[2]
    b.op("RMSNormalization", total, scale, output=b.output(0), axis=-1, epsilon=epsilon)
    return ""


def _simplified(b: Builder) -> str:
    if b.wanted(1):
        return "its statistics are read"
    if b.attr("stash_type", 1) != 1:
        return "it does not compute in float32"
    b.op(
        "RMSNormalization",
        *b.node.inputs[:2],
        output=b.output(0),
        axis=int(b.attr("axis", -1)),
        epsilon=float(b.attr("epsilon", 1e-5)),
    )
    return ""


def _embed_layer(b: Builder) -> str:
    if b.wanted(1) and not b.has(7):
        return "it counts tokens without a mask"
    ids, segments, words, places, segment_rows, gamma, beta = b.node.inputs[:7]
    if b.has(8):
        rows = b.op("Gather", places, b.node.inputs[8], axis=0)
    else:
        length = b.op("Shape", ids, start=1, end=2)
        rows = b.op("Slice", places, b.int_constant(0), length, b.int_constant(0))
    total = b.op("Gather", words, ids, axis=0)
    more = [rows]
    if segments and segment_rows:
        more.append(b.op("Gather", segment_rows, segments, axis=0))
    for number, name in enumerate(more, 1):
        last = number == len(more)
        total = b.op("Add", total, name, output=b.output(2) if last else "")
    epsilon = float(b.attr("epsilon", 1e-12))
    inputs = (total, gamma, beta)
    b.many("LayerNormalization", inputs, (b.output(0),), axis=-1, epsilon=epsilon)
    if b.wanted(1):
        counted = b.op("Cast", b.node.inputs[7], to=6)
        b.op("ReduceSum", counted, b.int_constant(1), output=b.output(1), keepdims=0)
    return ""


def _counted(b: Builder, x: str, first: str) -> str:
    """Positions [batch, length] from that of the first token on."""
    axis = 2 if len(b.shape(0)) == 4 else 1
    length = b.op("Shape", x, start=axis, end=axis + 1)
    zero, one = (b.constant(np.array(n, np.int64)) for n in (0, 1))
    steps = b.op("Range", zero, b.op("Reshape", length, b.int_constant()), one)
    places = b.op("Add", b.op("Reshape", first, b.int_constant(1)), steps)
    batch = b.op("Shape", x, start=0, end=1)
    return b.op("Expand", places, b.op("Concat", batch, length, axis=0))


def _rotary(b: Builder) -> str:
    if b.attr("is_packed_batching", 0):
        return "its batch is packed"
    x, positions, cosines, sines = b.node.inputs[:4]
    if len(b.shape(1)) != 2:
        positions = _counted(b, x, positions)
    dim = int(b.attr("rotary_embedding_dim", 0))
    heads = int(b.attr("num_heads", 0))
    shape = b.shape(0)
    if len(shape) == 3 and not heads:
        half, width = b.shape(2)[1], shape[2]
        if not isinstance(half, int) or not isinstance(width, int):
            return "its heads cannot be told"
        heads = width // (dim or 2 * half)
    b.op(
        "RotaryEmbedding",
        x,
        cosines,
        sines,
        positions,
        output=b.output(0),
        interleaved=int(b.attr("interleaved", 0)),
        num_heads=heads if len(shape) == 3 else None,
        rotary_embedding_dim=dim,
    )
    return ""


def _dynamic_product(b: Builder) -> str:
    x, weight, scale = b.node.inputs[:3]
    outputs = b.names(3, "DynamicQuantizeLinear")
    levels, x_scale, x_zero = b.many("DynamicQuantizeLinear", (x,), outputs)
    sums = b.op("MatMulInteger", levels, weight, x_zero, b.node.input(3))
    scales = b.op("Mul", x_scale, scale)
    product = b.op("Cast", sums, to=FLOAT32.code)
    output = b.output(0)
    scaled = b.op("Mul", product, scales, output="" if b.has(4) else output)
    if b.has(4):
        b.op("Add", scaled, b.node.inputs[4], output=output)
    return ""


_RULES: dict[str, Rule] = {
    "Gelu": _gelu,
    "BiasGelu": _gelu,
    "FastGelu": _gelu,
    "QuickGelu": _quick_gelu,
    "FusedMatMul": _fused_matmul,
    "SkipLayerNormalization": _skip_layer,
    "SkipSimplifiedLayerNormalization": _skip_simplified,
    "SimplifiedLayerNormalization": _simplified,
    "EmbedLayerNormalization": _embed_layer,
    "RotaryEmbedding": _rotary,
    "MultiHeadAttention": multi_head_attention,
    "Attention": attention,
    "DynamicQuantizeMatMul": _dynamic_product,
    "FusedConv": contrib_conv.fused_conv,
    "FusedGemm": contrib_conv.fused_gemm,
    "GroupQueryAttention": group_query_attention,
    "NhwcConv": contrib_conv.nhwc_conv,
}
_QUANTIZED: dict[str, Rule] = {
    "QGemm": contrib_quant.gemm,
    "QLinearAveragePool": contrib_quant.average_pool,
    "QLinearConcat": contrib_quant.concat,
    "QLinearConv": contrib_quant.conv,
    "QLinearGlobalAveragePool": contrib_quant.average_pool,
    "QLinearSoftmax": contrib_quant.softmax,
}
