"""Liveness: which nodes of a graph run, and which sizes and contents are known without."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from engine.dims import Dim, symbols_of
from engine.ir import Graph, Node
from engine.ops import definition, kernel_inputs
from engine.options import Options
from engine.schedule import binders
from engine.support import reads_no_content


def input_symbols(graph: Graph) -> tuple[str, ...]:
    """The symbols in the shapes of the graph's inputs, in order."""
    found: dict[str, None] = {}
    for name in graph.inputs:
        tensor = graph.tensor(name)
        for dim in tensor.shape or () if tensor else ():
            found.update(dict.fromkeys(sorted(symbols_of(dim))))
    return tuple(found)


def planning_inputs(graph: Graph) -> tuple[str, ...]:
    """The graph inputs that kernels need to know when planning: axes, targets, sizes, scales.

    They are read through `OpDef.shape_inputs`, directly or through arithmetic on sizes.
    """
    wanted: set[str] = set()
    for node in reversed(graph.nodes):
        op = definition(node)
        if op is None:
            continue
        wanted.update(node.input(i) for i in op.shape_inputs)
        made = op.evaluate is not None and wanted.intersection(node.writes)
        if made and not reads_no_content(node):
            wanted.update(node.inputs)
    return tuple(n for n in graph.inputs if n in wanted)


def views_of(graph: Graph, options: Options, symbols: Collection[str]) -> set[str]:
    """Keys of the nodes that only give another shape to their inputs' buffers."""
    return {
        n.key for n in graph.nodes if n.key not in options.refused and _is_alias(graph, n, symbols)
    }


def _is_alias(graph: Graph, node: Node, symbols: Collection[str]) -> bool:
    """Whether a node only gives another shape to its input's buffer."""
    op = definition(node)
    if op is None or not op.view:
        return False
    source, result = graph.tensor(node.inputs[0]), graph.tensor(node.outputs[0])
    if source is None or result is None or source.shape is None or result.shape is None:
        return False
    known = set(symbols).union(*map(symbols_of, source.shape))
    return source.dtype == result.dtype and all(symbols_of(d) <= known for d in result.shape)


def live_nodes(
    graph: Graph, on_gpu: Collection[str], views: Collection[str], symbols: Collection[str]
) -> set[str]:
    """Nodes that must run: the others are known when sizes are bound, or only say sizes."""
    binder = binders(graph, symbols)
    needed: set[str] = set()

    def need(names: Iterable[str], shapes: Iterable[str] = ()) -> None:
        dims: list[Dim] = []
        for name in names:
            value = graph.values[name]
            if value.dims is not None:
                dims += value.dims.reshape(-1).tolist()
            elif value.constant is None:
                needed.add(name)
        for name in shapes:
            tensor = graph.tensor(name)
            dims += tensor.shape or () if tensor is not None else ()
        needed.update(binder[s][0] for d in dims for s in symbols_of(d) if s in binder)

    need(graph.outputs)
    live: set[str] = set()
    for node in reversed(graph.nodes):
        if not needed.intersection(node.writes):
            continue
        live.add(node.key)
        if node.key in views:
            need(node.inputs[:1], node.writes)
        elif node.key in on_gpu:
            need(kernel_inputs(node), (*kernel_inputs(node), *node.writes))
        else:
            need(node.reads)
    return live


def bound_symbols(graph: Graph, live: Collection[str], symbols: Collection[str]) -> frozenset[str]:
    """The sizes that inputs or nodes that run tell; no value that is needed hangs on others."""
    made = {name for node in graph.nodes if node.key in live for name in node.writes}
    found = (s for s, (value, _) in binders(graph, symbols).items() if value in made)
    return frozenset((*symbols, *found))


def known_contents(graph: Graph, bound: frozenset[str]) -> frozenset[str]:
    """The values whose contents follow from sizes that are bound."""
    return frozenset(
        name
        for name, value in graph.values.items()
        if value.dims is not None and all(symbols_of(d) <= bound for d in value.dims.flat)
    )
