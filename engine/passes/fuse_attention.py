"""Attention written out: `MatMul(Softmax(MatMul(q, k^T) * scale + mask), v) => Attention`, whose
kernels never store the scores.

Around it exporters split heads off by Reshape and Transpose [0, 2, 1, 3], and join them again:
`Transpose(Attention(Transpose, Transpose, Transpose)) => Attention` of heads where they lie.
`Where(IsNaN(p), 0, p)` around the Softmax, which PyTorch writes for rows that reach no key, is what
Attention does; without it the mask has to be finite, since such a row is NaN then. NaN in a query
or a key, which the Where would hide, shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engine.ir import Graph, Node, Shape, label
from engine.ops.attention import MAX_VALUE_SIZE
from engine.passes.base import PassResult, in_every_body
from engine.passes.build import Builder, Rule, replace_here
from engine.passes.match import broadcasts_into, is_op

HEADS_FIRST = [0, 2, 1, 3]
KEYS_LAST = [0, 1, 3, 2]
MASK_DEPTH = 12
"""How far back it is followed that a mask is finite."""


def fuse_attention(graph: Graph) -> PassResult:
    """Recognises attention over heads in a dimension of their own."""
    return in_every_body(graph, _run)


def _run(graph: Graph) -> PassResult:
    return replace_here(graph, lambda node: _rule(graph, node))


def _rule(graph: Graph, node: Node) -> Rule | None:
    if is_op(node, "Attention"):
        return _join_heads if _joins_heads(graph, node) else None
    softmax = _softmax(graph, node)
    return None if softmax is None else lambda b: _fuse(b, softmax)


def _softmax(graph: Graph, node: Node) -> Node | None:
    """The Softmax of scores that `node` multiplies by values."""
    if not is_op(node, "MatMul"):
        return None
    found = graph.producer.get(node.inputs[0])
    if found is not None and is_op(found, "Where"):
        found = graph.producer.get(found.inputs[2])
    if found is None or not is_op(found, "Softmax"):
        return None
    scores = graph.tensor(found.inputs[0])
    rank = len(scores.shape) if scores is not None and scores.shape is not None else 0
    last = int(found.attrs.get("axis", -1)) in (-1, rank - 1)
    return found if rank == 4 and last else None


@dataclass
class _Scores:
    """`product * scale + mask`."""

    product: Node
    scale: float
    mask: str


def _fuse(b: Builder, softmax: Node) -> str:
    graph, node = b.graph, b.node
    guarded = _is_guard(graph, graph.producer[node.inputs[0]], softmax)
    if guarded is None:
        return "what is done to its weights is not known"
    found = _scores(graph, softmax.inputs[0])
    if isinstance(found, str):
        return found
    reason = _used_beyond(graph, node, found)
    if reason:
        return reason
    reason = _mask_problem(graph, found, softmax.inputs[0], guarded)
    if reason:
        return reason
    keys = graph.producer.get(found.product.inputs[1])
    if keys is None or not is_op(keys, "Transpose"):
        return "its keys are not the transpose of something"
    reason = _size_problem(graph, found.product, keys.outputs[0], node.inputs[1])
    if reason:
        return reason
    transposed = b.op("Transpose", keys.outputs[0], perm=KEYS_LAST)
    operands = (found.product.inputs[0], transposed, node.inputs[1], found.mask)
    b.many("Attention", operands, node.outputs, scale=found.scale)
    return ""


def _size_problem(graph: Graph, product: Node, keys: str, values: str) -> str:
    """Why operands are not [batch, heads, length, size] as Attention wants them: MatMul would
    broadcast more. `keys` is transposed already."""
    shapes: list[Shape] = []
    for name in (product.inputs[0], keys, values):
        tensor = graph.tensor(name)
        if tensor is None or tensor.shape is None or len(tensor.shape) != 4:
            return "its operands have no dimension of heads each"
        shapes.append(tensor.shape)
    query, key, value = shapes
    for size in (query[-1], value[-1]):
        if not isinstance(size, int) or not 1 <= size <= MAX_VALUE_SIZE:
            return f"its heads have the size {size}"
    if not query[0] == key[0] == value[0]:
        return "its operands differ in the batch, which would be broadcast"
    if key[1] != value[1] or key[1] not in (query[1], 1):
        return "its operands differ in their number of heads, which would be broadcast"
    return ""


def _is_guard(graph: Graph, last: Node, softmax: Node) -> bool | None:
    """Whether weights that are NaN become 0 on the way from the Softmax to the product."""
    if last is softmax:
        return False
    test = graph.producer.get(last.inputs[0])
    if test is None or not is_op(test, "IsNaN") or test.inputs[0] != softmax.outputs[0]:
        return None
    zero = graph.constant(last.inputs[1])
    return True if zero is not None and zero.size == 1 and not zero.reshape(-1)[0] else None


def _scores(graph: Graph, name: str) -> _Scores | str:
    """How scores are made, or why that is not known."""
    scale, mask = 1.0, ""
    while True:
        node = graph.producer.get(name)
        if node is None:
            return "its scores are no product"
        if is_op(node, "MatMul"):
            return _Scores(node, scale, mask)
        if is_op(node, "Add") and not mask and scale == 1.0:
            makers = [graph.producer.get(n) for n in node.inputs]
            inner = [i for i, m in enumerate(makers) if m is not None and is_op(m, *_SCORES)]
            place = next(
                (i for i in inner if graph.tensor(node.inputs[i]) == _out(graph, node)), -1
            )
            if place < 0:
                return "a sum of its scores is not of a product and a mask"
            name, mask = node.inputs[place], node.inputs[1 - place]
            continue
        factor = _factor(graph, node)
        if factor is None:
            return f"{label(node)} on its scores is no scale and no mask"
        scale, name = scale * factor[0], factor[1]


_SCORES = ("MatMul", "Mul", "Div")


def _out(graph: Graph, node: Node) -> object:
    return graph.tensor(node.outputs[0])


def _factor(graph: Graph, node: Node) -> tuple[float, str] | None:
    """The number that a node multiplies by, and what it multiplies."""
    if not is_op(node, "Mul", "Div"):
        return None
    for index in (1, 0) if is_op(node, "Mul") else (1,):
        array = graph.constant(node.inputs[index])
        if array is not None and array.size == 1 and array.ndim <= 4:
            number = float(array.reshape(-1)[0])
            if not math.isfinite(number) or not number:
                return None
            return (1 / number if is_op(node, "Div") else number), node.inputs[1 - index]
    return None


def _used_beyond(graph: Graph, node: Node, found: _Scores) -> str:
    """Who needs what lies between the two products, in words; "" if nobody does."""
    inside = {node.key}
    stack = [node.inputs[0]]
    while stack:
        name = stack.pop()
        if name == found.mask or name not in graph.producer:
            continue
        maker = graph.producer[name]
        if graph.is_output(name):
            return f"{name!r} is an output of the graph"
        for reader in graph.consumers.get(name, ()):
            if reader.key not in inside and not is_op(reader, "IsNaN"):
                return f"{label(reader)} reads {name!r} too"
        inside.add(maker.key)
        if maker.key != found.product.key:
            stack += [n for n in maker.inputs if graph.constant(n) is None]
    return ""


def _mask_problem(graph: Graph, found: _Scores, scores: str, guarded: bool) -> str:
    if not found.mask:
        return ""
    tensor, whole = graph.tensor(found.mask), graph.tensor(scores)
    if tensor is None or whole is None or tensor.shape is None or whole.shape is None:
        return "the shape of its mask is not known"
    if not tensor.shape or not broadcasts_into(tensor.shape, whole.shape):
        return f"its mask {tensor} does not broadcast to its scores"
    if tensor.shape[-1] != whole.shape[-1]:
        return "its mask is one for all keys"
    if not guarded and not _is_finite(graph, found.mask, MASK_DEPTH):
        return "its mask may hold minus infinity for all keys of a row, of which Softmax makes NaN"
    return ""


_KEEP = ("Reshape", "Unsqueeze", "Squeeze", "Expand", "Slice", "Transpose", "Identity", "Flatten")
_JOIN = ("Add", "Sub", "Mul", "Where", "Concat", "Max", "Min")


def _is_finite(graph: Graph, name: str, depth: int) -> bool:
    """Whether a value surely is finite, as sums and products of numbers of moderate size are."""
    array = graph.constant(name)
    if array is not None:
        return array.dtype.kind in "biu" or bool(np.isfinite(array.astype(np.float64)).all())
    tensor, node = graph.tensor(name), graph.producer.get(name)
    if tensor is not None and not tensor.dtype.is_float:
        return True
    if node is None or depth == 0:
        return False
    if is_op(node, "Cast"):
        source = graph.tensor(node.inputs[0])
        if source is None or tensor is None:
            return False
        narrower = source.dtype.is_float and tensor.dtype.nbytes < source.dtype.nbytes
        return not narrower and _is_finite(graph, node.inputs[0], depth - 1)
    if is_op(node, *_KEEP):
        return _is_finite(graph, node.inputs[0], depth - 1)
    if is_op(node, *_JOIN):
        return all(_is_finite(graph, n, depth - 1) for n in node.inputs)
    return False


def _joins_heads(graph: Graph, node: Node) -> bool:
    """Whether heads are first only between Transposes: those of what an Attention reads, and of
    what it makes."""
    y = node.outputs[0]
    behind = graph.consumers.get(y, ())
    if len(node.reads) < 3 or any(node.outputs[1:]) or graph.is_output(y) or len(behind) != 1:
        return False
    before = [_before(graph, name) for name in node.inputs[:3]]
    return _is_turn(behind[0]) and all(_heads(graph, name) for name in before)


def _join_heads(b: Builder) -> str:
    sources = [_before(b.graph, name) for name in b.node.inputs[:3]]
    sizes = [found for name in sources if (found := _heads(b.graph, name)) is not None]
    flat = [
        b.op("Reshape", source, b.int_constant(0, 0, heads * size))
        for source, (heads, size) in zip(sources, sizes, strict=True)
    ]
    whole = b.names(1, "Attention")
    attrs = {**b.node.attrs, "q_num_heads": sizes[0][0], "kv_num_heads": sizes[1][0]}
    b.many("Attention", (*flat, *b.node.inputs[3:]), whole, **attrs)
    apart = b.op("Reshape", whole[0], b.int_constant(0, 0, sizes[0][0], sizes[2][1]))
    b.op("Transpose", apart, output=b.node.outputs[0], perm=HEADS_FIRST)
    return ""


def _heads(graph: Graph, name: str) -> tuple[int, int] | None:
    """Number and size of the heads of [batch, length, heads, size], if they are known."""
    tensor = graph.tensor(name) if name else None
    if tensor is None or tensor.shape is None or len(tensor.shape) != 4:
        return None
    heads, size = tensor.shape[2:]
    return (heads, size) if isinstance(heads, int) and isinstance(size, int) else None


def _is_turn(node: Node | None) -> bool:
    if node is None or not is_op(node, "Transpose"):
        return False
    return list(node.attrs.get("perm", ())) == HEADS_FIRST


def _before(graph: Graph, name: str) -> str:
    """What a Transpose of heads and length makes a value of, "" if none does."""
    node = graph.producer.get(name)
    return node.inputs[0] if node is not None and _is_turn(node) else ""
