"""Each size that data decide has one symbol, that of the node which decides it.

A node that was written out in others, or whose operands are known by now, leaves a result with a
symbol of its own for a size that follows from other sizes: nothing would bind it.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine import dims, ops
from engine.dims import Dim
from engine.errors import ShapeError
from engine.ir import Graph, Node
from engine.passes.symbols import dims_of, is_typed, lone_symbol, rename_symbols

_NEW = "?"
"""Begins the names of sizes that a node decides."""


def bound_sizes(graph: Graph) -> Graph:
    """The graph with sizes named as what they follow from; itself if all are."""
    given = (*graph.inputs, *graph.captures)
    bound = {s for name in given for s in dims_of(graph.values[name].type)}
    names: dict[str, Dim] = {}
    for node in graph.nodes:
        tensors = [t for name in node.writes if (t := graph.tensor(name)) is not None]
        alone = {lone_symbol(dim) for t in tensors for dim in t.shape or ()} - bound - {""}
        for symbol, dim in _follow(graph, node) if alone else ():
            if symbol in alone:
                names[symbol] = dims.substitute(dim, names)
        bound |= alone
    return rename_symbols(graph, names) if names else graph


def _follow(graph: Graph, node: Node) -> Iterator[tuple[str, Dim]]:
    """Symbols that are sizes of results, and what they are by the rule of a node."""
    rule = ops.definition(node)
    inputs = [graph.values[name] for name in node.inputs if name]
    if rule is None or rule.infer is None or not all(map(is_typed, inputs)):
        return
    minted: list[Dim] = []

    def fresh(hint: str) -> Dim:
        minted.append(dims.symbol(f"{_NEW}{len(minted)}"))
        return minted[-1]

    try:
        found = rule.infer(ops.InferView(graph, node, fresh))
    except ShapeError:
        return
    for name, kind in zip(node.outputs, found, strict=False):
        old, new = graph.tensor(name) if name else None, getattr(kind, "shape", None)
        for before, after in zip((old and old.shape) or (), new or (), strict=False):
            told = not any(s.startswith(_NEW) for s in dims.symbols_of(after))
            if told and before != after and lone_symbol(before):
                yield lone_symbol(before), after
