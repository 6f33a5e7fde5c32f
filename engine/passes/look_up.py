"""A product with one-hot rows takes rows out of its constant: `Equal -> Cast -> MatMul => Gather`.

JAX writes an embedding as ids compared with all numbers of a vocabulary, times the weights. An id
that is none of them has a row of zeros: the constant gets one at either end.
"""

from __future__ import annotations

import numpy as np

from engine.ir import Array, Graph, Node
from engine.ops import NodeView
from engine.passes.base import PassResult
from engine.passes.build import Builder, Rule, replace_nodes
from engine.passes.match import is_op


def look_up(graph: Graph) -> PassResult:
    """Turns products of constants with one-hot rows into Gather."""
    return replace_nodes(graph, _rule_of)


def _rule_of(node: Node) -> Rule | None:
    return _look_up if is_op(node, "MatMul") else None


def _look_up(b: Builder) -> str | None:
    table, cast = b.const(1), b.graph.producer.get(b.node.inputs[0])
    compared = b.graph.producer.get(cast.inputs[0]) if cast and is_op(cast, "Cast") else None
    if table is None or table.ndim != 2 or compared is None or not is_op(compared, "Equal"):
        return None
    found = _ids(NodeView(b.graph, compared), len(table))
    if found is None:
        return None
    ids, first = found
    if not np.isfinite(table.astype(np.float32)).all():
        return "0 times an infinite weight is no 0"
    dtype = first.dtype
    if not np.iinfo(dtype).min < first or not first < np.iinfo(dtype).max - len(table):
        return f"{dtype} has no numbers beyond those of the rows"
    ids = b.op("Squeeze", ids, b.int_constant(-1))
    below, above = (b.constant(np.array(v, dtype)) for v in (first - 1, first + len(table)))
    rows = b.op("Sub", b.op("Clip", ids, below, above), below)
    padded = b.constant(np.pad(table, ((1, 1), (0, 0))))
    b.op("Gather", padded, rows, output=b.node.key, axis=0)
    return ""


def _ids(equal: NodeView, count: int) -> tuple[str, Array] | None:
    """Ids [..., 1] that are compared with `count` neighbouring numbers, and the first of these."""
    for index in (0, 1):
        numbers, shape = equal.const(index), equal.type(1 - index).shape
        if numbers is None or not numbers.size or numbers.dtype.kind not in "iu":
            continue
        if numbers.shape[-1:] != (count,):
            continue
        flat = numbers.reshape(-1)
        whole = shape is not None and len(shape) >= numbers.ndim and shape[-1] == 1
        if whole and len(flat) == count and np.array_equal(flat - flat[0], np.arange(count)):
            return equal.node.inputs[1 - index], flat[0]
    return None
