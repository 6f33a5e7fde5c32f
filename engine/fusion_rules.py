"""Which two nodes may become one kernel, by rules that each have a name and can be disabled."""

from __future__ import annotations

from collections.abc import Callable

from engine.groups import Prologue, is_needed
from engine.ir import Graph, Node, label
from engine.ops import NodeView, definition

RULES: tuple[tuple[str, str], ...] = (
    ("elementwise-chain", "elementwise nodes over one shape become one shader"),
    ("epilogue", "elementwise nodes after a kernel are computed where it stores its output"),
    ("transposed-store", "a Transpose after a kernel is where the kernel stores its output"),
    ("prologue", "elementwise nodes before a kernel are computed where it loads what they make"),
    ("scalar", "an elementwise node of one element is computed where larger chains read it"),
    ("border", "a Pad that repeats elements before a convolution is done where that loads them"),
    ("in-place", "what is joined or cut is part of one buffer; see `engine.parts`"),
)

Weigh = Callable[[Prologue, Node], str]
"""Why a prologue would cost more than it saves if the node computed it; "" if it would not."""


def is_elementwise(node: Node) -> bool:
    """Whether a node's GPU form is one expression."""
    op = definition(node)
    return op is not None and op.elementwise is not None


def has_epilogue(node: Node) -> bool:
    """Whether one stage stores the output."""
    op = definition(node)
    return op is not None and op.lower is not None and op.epilogue


def rule_for(
    graph: Graph, producer: Node, consumer: Node, weigh: Weigh | None = None
) -> str | None:
    """Name of the rule by which `producer` and `consumer` may become one kernel, or None.

    Both costs and fusion ask this; whether a group is full, would close a cycle, or whether all
    other readers of a Pad do it too, comes later. Costs leave out what `transposed-store` and
    `scalar` save.
    Prologues, which fusion makes of whole chains, are told of if there is something to weigh them.
    """
    if producer.outputs[0] not in consumer.inputs:
        return None
    if producer.op_type == "Pad" and bordered(graph, producer, consumer) is not None:
        return "border"
    if not is_elementwise(consumer):
        found = weigh is not None and _may_load(graph, producer, consumer, weigh)
        return "prologue" if found else None
    rule = "elementwise-chain" if is_elementwise(producer) else "epilogue"
    if rule == "epilogue" and not has_epilogue(producer):
        return None
    made, wanted = graph.tensor(producer.outputs[0]), graph.tensor(consumer.outputs[0])
    if made is None or wanted is None or made.shape is None or made.shape != wanted.shape:
        return None
    return rule


def bordered(graph: Graph, pad: Node, reader: Node) -> Node | None:
    """`reader` as it would read what a Pad reads, if its kernels can."""
    found = why_no_border(graph, pad, reader)
    return found if isinstance(found, Node) else None


def why_no_border(graph: Graph, pad: Node, reader: Node) -> Node | str:
    """The same, or why not."""
    op, value = definition(reader), pad.outputs[0]
    if op is None or op.border is None or definition(pad) is None:
        return f"{label(reader)} does not find its places itself"
    if [i for i, name in enumerate(reader.inputs) if name == value] != [0]:
        return f"{label(reader)} reads it as something else"
    if graph.tensor(value) is None or graph.tensor(pad.inputs[0]) is None:
        return "a shape is unknown"
    return op.border(NodeView(graph, reader), NodeView(graph, pad))


def _may_load(graph: Graph, producer: Node, consumer: Node, weigh: Weigh) -> bool:
    """Whether a kernel would compute an elementwise node where it loads its result."""
    op, value = definition(consumer), producer.outputs[0]
    places = {i for i, name in enumerate(consumer.inputs) if name == value}
    if op is None or not op.loads.keys() >= places or not is_elementwise(producer):
        return False
    if is_needed(graph, value, {consumer.key}, {}) or graph.tensor(value) is None:
        return False
    return not weigh(Prologue((producer,), value), consumer)
