"""A value between its own ends is padded: `Concat(Slice(x), x, Slice(x)) => Pad(wrap)`.

Circular padding is exported so, axis by axis. Two of these Pads of one value become one.
"""

from __future__ import annotations

import numpy as np

from engine.ir import Graph, Node, Shape
from engine.ops import NodeView
from engine.ops.pad import pad_amounts
from engine.ops.slice import slices
from engine.passes.base import PassResult
from engine.passes.build import Builder, Rule, replace_nodes
from engine.passes.match import is_op, text


def wrap_ends(graph: Graph) -> PassResult:
    """Turns what joins a value and its own ends into a Pad, and neighbouring such Pads into one."""
    return replace_nodes(graph, _rule_of)


def _rule_of(node: Node) -> Rule | None:
    if is_op(node, "Concat") and len(node.inputs) in (2, 3):
        return _wrap
    return _merge if _is_wrapping(node) else None


def _is_wrapping(node: Node | None) -> bool:
    return node is not None and is_op(node, "Pad") and text(node, "mode") == "wrap"


def _wrap(b: Builder) -> str | None:
    names = b.node.inputs
    for place, whole in enumerate(names):
        if place > 1 or len(names) - place > 2:
            continue
        before = names[0] if place else ""
        after = names[place + 1] if place + 1 < len(names) else ""
        shape = b.shape(place)
        axis = b.axis(len(shape))
        counts = (
            _end(b, before, whole, axis, shape, last=True),
            _end(b, after, whole, axis, shape, last=False),
        )
        if None not in counts and any(counts):
            pads = [0] * (2 * len(shape))
            pads[axis], pads[len(shape) + axis] = (int(n or 0) for n in counts)
            b.op("Pad", whole, b.int_constant(*pads), output=b.node.key, mode="wrap")
            return ""
    return None


def _end(b: Builder, name: str, whole: str, axis: int, shape: Shape, *, last: bool) -> int | None:
    """How many of the first or last elements of `whole` along an axis a value is; None: it is no
    such end."""
    if not name:
        return 0
    node = b.graph.producer.get(name)
    if node is None or not is_op(node, "Slice") or node.inputs[0] != whole:
        return None
    found = slices(NodeView(b.graph, node), shape)
    tensor = b.graph.tensor(name)
    if found is None or tensor is None or tensor.shape is None or set(found) != {axis}:
        return None
    count, cut = tensor.shape[axis], found[axis]
    if not isinstance(count, int) or cut.step != 1:
        return None
    return count if cut.start == (shape[axis] - count if last else 0) else None


def _merge(b: Builder) -> str | None:
    first = b.graph.producer.get(b.node.inputs[0])
    if first is None or not _is_wrapping(first) or b.graph.is_output(first.key):
        return None
    if len(b.graph.consumers.get(first.key, ())) > 1:
        return None
    rank = len(b.shape(0))
    both = [pad_amounts(view, rank) for view in (NodeView(b.graph, first), b)]
    if both[0] is None or both[1] is None:
        return None
    pairs = list(zip(*both, strict=True))
    if any(mine != (0, 0) and theirs != (0, 0) for mine, theirs in pairs):
        return None
    amounts = [mine if theirs == (0, 0) else theirs for mine, theirs in pairs]
    sizes = [size for side in (0, 1) for size in (pair[side] for pair in amounts)]
    if not all(isinstance(size, int) for size in sizes):
        return None
    pads = b.constant(np.array(sizes, np.int64))
    b.op("Pad", first.inputs[0], pads, output=b.node.key, mode="wrap")
    return ""
