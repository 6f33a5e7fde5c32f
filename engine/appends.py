"""Values that grow: which outputs append to which inputs, so that both can share a buffer."""

from __future__ import annotations

from collections.abc import Mapping

from engine.ir import Graph
from engine.plan import Append


def appending_concats(graph: Graph) -> Mapping[str, Append]:
    """Concats of a graph input and something else that are graph outputs, by their output."""
    found = {}
    for node in graph.nodes:
        if node.op_type != "Concat" or node.domain or len(node.inputs) != 2:
            continue
        past, grown = node.inputs[0], node.outputs[0]
        tensor = graph.tensor(past)
        if past in graph.inputs and graph.is_output(grown) and tensor is not None:
            rank = len(tensor.shape or ())
            axis = int(node.attrs.get("axis", 0))
            if -rank <= axis < rank and graph.constant(past) is None:
                found[grown] = Append(past, node.inputs[1], grown, axis % rank)
    return found


_CACHES = {("", "Attention"): (4, 5), ("com.microsoft", "MultiHeadAttention"): (6, 7)}
"""Operators that passes split caches off from, as Concats: inputs of the past."""


def growing_pairs(graph: Graph) -> frozenset[tuple[str, str]]:
    """Graph inputs and outputs that append to them, in the model as it was written."""
    pairs = {(a.past, a.grown) for a in appending_concats(graph).values()}
    for node in graph.nodes:
        pasts = (node.input(i) for i in _CACHES.get((node.domain, node.op_type), ()))
        pairs.update((p, n) for p, n in zip(pasts, node.outputs[1:3], strict=False) if p and n)
    return frozenset((p, n) for p, n in pairs if p in graph.inputs and graph.is_output(n))
