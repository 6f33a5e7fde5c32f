"""Several nodes in the place of one: what passes that write an operator out in others share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from engine import dtypes
from engine.errors import ShapeError
from engine.importer.opsets import PINNED, since_version
from engine.ir import Array, Attribute, Graph, Node, TensorType, Value, label
from engine.ops import NodeView
from engine.passes.base import PassResult, in_every_body


class Builder(NodeView):
    """A node, what is known of it, and the nodes that are to take its place."""

    def __init__(self, graph: Graph, node: Node) -> None:
        super().__init__(graph, node)
        self.nodes: list[Node] = []
        self.values: list[Value] = []
        self._taken: set[str] = set()

    def _fresh(self, hint: str) -> str:
        base = name = f"{self.node.key}/{hint}"
        number = 1
        while name in self.graph.values or name in self._taken:
            number += 1
            name = f"{base}.{number}"
        self._taken.add(name)
        return name

    def constant(self, array: Array) -> str:
        """Name of a new constant."""
        name = self._fresh("constant")
        array.flags.writeable = False
        kind = TensorType(dtypes.from_numpy(array.dtype), array.shape)
        self.values.append(Value(name, kind, array))
        return name

    def int_constant(self, *content: int) -> str:
        """Name of a new 1-D int64 constant."""
        return self.constant(np.array(content, np.int64))

    def op(self, op_type: str, *inputs: str, output: str = "", **attrs: Attribute) -> str:
        """Adds a standard node with one output; returns its name, a new one unless given."""
        return self.many(op_type, inputs, (output or self._fresh(op_type),), **attrs)[0]

    def many(
        self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Attribute
    ) -> Sequence[str]:
        """Adds a standard node with the given outputs; returns them."""
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        since = since_version(op_type, "", PINNED) or 1
        kept = {name: value for name, value in attrs.items() if value is not None}
        node = Node(
            op_type, tuple(inputs), tuple(outputs), kept, "", since, self.node.name, (),
            self.node.origin,
        )  # fmt: skip
        self.nodes.append(node)
        return outputs

    def names(self, count: int, hint: str) -> list[str]:
        """New names, for the outputs of `many`."""
        return [self._fresh(hint) for _ in range(count)]

    def output(self, index: int) -> str:
        """Name of output `index` of the old node, "" if there is none."""
        return self.node.outputs[index] if self.wants(index) else ""

    def wanted(self, index: int) -> bool:
        """Whether anything reads output `index`."""
        name = self.output(index)
        return bool(name) and (name in self.graph.consumers or self.graph.is_output(name))


Rule = Callable[[Builder], str | None]
"""Adds nodes to a builder; returns "", or why it could not, or None if nobody would expect it."""


def replace_nodes(graph: Graph, rule_of: Callable[[Node], Rule | None]) -> PassResult:
    """`replace_here` in a graph and in all bodies inside it."""
    return in_every_body(graph, lambda inner: replace_here(inner, rule_of))


def replace_here(graph: Graph, rule_of: Callable[[Node], Rule | None]) -> PassResult:
    """Runs the rule of each node that has one, and puts what it built in its place.

    A node about which too little is known yet is left for the next round.
    """
    nodes: list[Node] = []
    values: list[Value] = []
    applied, near = [], []
    for node in graph.nodes:
        rule = rule_of(node)
        if rule is None:
            nodes.append(node)
            continue
        builder = Builder(graph, node)
        try:
            reason = rule(builder)
        except ShapeError as error:
            reason = str(error)
        if reason or reason is None:
            near += [f"{label(node)} kept: {reason}"] if reason else []
            nodes.append(node)
            continue
        nodes += builder.nodes
        values += builder.values
        made = " + ".join(n.op_type for n in builder.nodes)
        applied.append(f"{label(node)} => {made}")
    if not applied:
        return PassResult(graph, (), tuple(near))
    return PassResult(graph.rebuild(nodes, values), tuple(applied), tuple(near))
