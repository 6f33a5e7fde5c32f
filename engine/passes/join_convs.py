"""Convolutions of one value that a Concat joins are one convolution of all their channels.

n x (Conv -> Transpose, views, functions of one operand) -> Concat => Conv -> the same, once

Spectra are written like that: real and imaginary parts are convolutions of the same samples, put
side by side. One kernel reads the samples once, and has more channels to share what it loads.
Channels follow each other as the Concat wants them, those of a new innermost axis in turns.

A power spectrum is the sum of two such convolutions, squared, and what a mel filterbank multiplies.
`Add -> MatMul` is then `Concat -> MatMul` with the weights twice: the product adds up by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from engine.ir import Array, Graph, Node, Shape, label
from engine.passes.base import PassResult, in_every_body
from engine.passes.build import Builder
from engine.passes.chains import VIEWS, Target, reshape_target
from engine.passes.match import ints, is_op
from engine.passes.sink_pad import matching_axes
from engine.passes.sink_views import BINARY, UNARY
from engine.records import dataclass

MORE_WORK = 1 / 8
"""Of a convolution, that a product may add to do a sum."""


def join_convs(graph: Graph) -> PassResult:
    """Joins convolutions that differ in their weights only, and meet in a Concat or a product."""
    return in_every_body(graph, _run)


@dataclass(frozen=True)
class _Branch:
    """A Conv, and what leads from it to where branches meet: a Concat or an Add.

    Attributes:
        steps: the nodes between.
        axes: where the channels are, in the result of the Conv and of each step.
        channels: how many there are.
    """

    conv: Node
    steps: tuple[Node, ...]
    axes: tuple[int, ...]
    channels: int

    @property
    def end(self) -> str:
        return self.steps[-1].key if self.steps else self.conv.key


def _run(graph: Graph) -> PassResult:
    groups: dict[tuple[object, ...], list[_Branch]] = {}
    meetings: dict[str, Node] = {}
    for node in graph.nodes:
        found = _branch_of(graph, node) if is_op(node, "Conv") else None
        if found is not None:
            branch, meeting = found
            meetings[meeting.key] = meeting
            groups.setdefault((meeting.key, *_form(graph, branch)), []).append(branch)
    joiner = _Joiner(graph)
    for (key, *_), branches in groups.items():
        joiner.join(meetings[str(key)], branches)
    return joiner.result()


def _branch_of(graph: Graph, conv: Node) -> tuple[_Branch, Node] | None:
    """A Conv of constant weights as a branch, and the Concat or Add that it leads to."""
    operands = [graph.constant(name) for name in conv.inputs[1:] if name]
    if any(o is None for o in operands) or int(conv.attrs.get("group", 1) or 1) != 1:
        return None
    weights = operands[0]
    assert weights is not None
    steps: list[Node] = []
    axes, node = [1], conv
    while True:
        readers = graph.consumers.get(node.key, ())
        if len(readers) != 1 or graph.is_output(node.key) or len(node.writes) > 1:
            return None
        axis = _axis_behind(graph, readers[0], node.key, axes[-1])
        if is_op(readers[0], "Concat") or (axis is None and is_op(readers[0], "Add")):
            return _Branch(conv, tuple(steps), tuple(axes), len(weights)), readers[0]
        if axis is None:
            return None
        node = readers[0]
        steps.append(node)
        axes.append(axis)


def _axis_behind(graph: Graph, node: Node, value: str, axis: int) -> int | None:
    """Where axis `axis` of `value` is behind a node, None if that does more than to move it."""
    before, after = graph.shape(value), graph.shape(node.key)
    if before is None or after is None:
        return None
    if is_op(node, "Transpose"):
        perm = ints(node, "perm") or list(range(len(before)))[::-1]
        return perm.index(axis)
    if is_op(node, *VIEWS):
        return (matching_axes(before, after) or {}).get(axis)
    others = [graph.constant(name) for name in node.inputs if name and name != value]
    if not is_op(node, *UNARY, *BINARY) or len(after) != len(before):
        return None
    return axis if all(o is not None and o.size == 1 for o in others) else None


def _product_behind(
    graph: Graph, add: Node, axis: int
) -> tuple[tuple[Node, ...], tuple[int, ...]] | None:
    """What leads from a sum to a product with constant weights, along the axis of the channels.

    Returns: the nodes, the product last, and the axis in the sum and behind each but the last.
    """
    node, steps, axes = add, list[Node](), [axis]
    while True:
        readers = graph.consumers.get(node.key, ())
        if len(readers) != 1 or graph.is_output(node.key):
            return None
        reader, shape = readers[0], graph.shape(node.key)
        steps.append(reader)
        if is_op(reader, "MatMul"):
            weights = graph.constant(reader.inputs[1])
            last = reader.inputs[0] == node.key and axes[-1] + 1 == len(shape or ())
            known = last and weights is not None and weights.ndim == 2
            return (tuple(steps), tuple(axes)) if known else None
        moved = _axis_behind(graph, reader, node.key, axes[-1])
        if moved is None or not is_op(reader, "Transpose", *VIEWS):
            return None
        node = reader
        axes.append(moved)


def _form(graph: Graph, branch: _Branch) -> tuple[object, ...]:
    """What branches that are joined have in common."""
    conv = branch.conv
    weights = graph.constant(conv.inputs[1])
    assert weights is not None
    kernel = (conv.inputs[0], weights.shape[1:], weights.dtype, _attributes(conv))
    steps = []
    value = conv.key
    for node, axis in zip(branch.steps, branch.axes[1:], strict=True):
        operands = tuple(_content(graph, name) for name in node.inputs if name != value)
        if is_op(node, *VIEWS):
            operands = ()
        shape = _with(graph.shape(node.key), axis, 0)
        attributes = () if is_op(node, *VIEWS) else _attributes(node)
        steps.append((node.op_type, node.inputs.index(value), operands, attributes, shape))
        value = node.key
    return kernel, tuple(steps)


def _attributes(node: Node) -> tuple[tuple[str, object], ...]:
    return tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in sorted(node.attrs.items()))


def _content(graph: Graph, name: str) -> object:
    constant = graph.constant(name)
    return name if constant is None else (constant.dtype, constant.shape, constant.tobytes())


class _Joiner:
    """Builds what takes the places of branches."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builders: list[Builder] = []
        self.dropped: set[str] = set()
        self.constants: dict[tuple[object, ...], str] = {}
        self.applied: list[str] = []
        self.near: list[str] = []

    def join(self, meeting: Node, branches: list[_Branch]) -> None:
        """Joins branches if they are all that meet, in an order that weights can take."""
        ends = {b.end: b for b in branches}
        if len(branches) < 2 or sorted(ends) != sorted(meeting.inputs):
            return
        ordered = [ends[name] for name in meeting.inputs]
        if is_op(meeting, "Add"):
            self._sum(meeting, ordered)
        else:
            self._concat(meeting, ordered)

    def _concat(self, concat: Node, ordered: list[_Branch]) -> None:
        names = f"{len(ordered)} convolutions such as {label(ordered[0].conv)}"
        turns = self._turns(concat, ordered)
        problem = turns if isinstance(turns, str) else self._build(concat, ordered, turns)
        if problem:
            self.near.append(f"{names} not joined: {problem}")
            return
        self.dropped.update(n.key for b in ordered for n in (b.conv, *b.steps))
        self.dropped.add(concat.key)
        self.applied.append(f"{names} joined: they read {ordered[0].conv.inputs[0]!r}")

    def _sum(self, add: Node, branches: Sequence[_Branch]) -> None:
        """Lets a product do a sum of branches; what is a Concat then is joined in the next round.

        Nothing is said where no product follows, or one of many columns, which would take longer.
        """
        graph, first = self.graph, branches[0]
        found = _product_behind(graph, add, first.axes[-1])
        if found is None or len({b.channels for b in branches}) > 1:
            return
        steps, axes = found
        product = steps[-1]
        weights, kernel = self._array(product.inputs[1]), self._array(first.conv.inputs[1])
        if weights.shape[1] > MORE_WORK * kernel[0].size:
            return
        nodes, total = (add, *steps[:-1]), sum(b.channels for b in branches)
        shapes = [_with(graph.shape(n.key), a, total) for n, a in zip(nodes, axes, strict=True)]
        targets = _targets(nodes[1:], shapes)
        if targets is None:
            return
        origin = dict.fromkeys(name for n in (*nodes, product) for name in n.origin)
        builder = Builder(graph, product.replace(origin=tuple(origin)))
        self.builders.append(builder)
        value = builder.op("Concat", *add.inputs, axis=axes[0])
        value = _repeated(builder, value, nodes, targets)
        stacked = builder.constant(np.concatenate([weights] * len(branches)))
        builder.op("MatMul", value, stacked, output=product.key)
        self.dropped.update(n.key for n in (add, *steps))
        self.applied.append(f"{label(add)} done by {label(product)}, whose weights are there twice")

    def _turns(self, concat: Node, branches: Sequence[_Branch]) -> bool | str:
        """Whether channels of the branches take turns, or why they can't follow each other."""
        shape, axis = self.graph.shape(branches[0].end), branches[0].axes[-1]
        if shape is None or self.graph.shape(concat.key) is None:
            return "a shape is unknown"
        place = int(concat.attrs["axis"]) % len(shape)
        if place == axis:
            return False
        low, high = sorted((place, axis))
        between = [d for i, d in enumerate(shape) if low < i < high or i == place]
        if any(d != 1 for d in between) or len({b.channels for b in branches}) > 1:
            return f"{label(concat)} puts them side by side in another axis than the channels"
        return place > axis

    def _build(self, concat: Node, branches: Sequence[_Branch], turns: bool) -> str:
        """Adds the nodes of all branches, once; or returns why that is not possible."""
        graph, first = self.graph, branches[0]
        origin = (name for b in branches for n in (b.conv, *b.steps) for name in n.origin)
        conv = first.conv.replace(origin=tuple(dict.fromkeys((*origin, *concat.origin))))
        total = sum(b.channels for b in branches)
        names = [n.key for n in (conv, *first.steps)]
        axes = zip(names, first.axes, strict=True)
        shapes: list[Shape | None] = [_with(graph.shape(n), axis, total) for n, axis in axes]
        shapes.append(graph.shape(concat.key))
        targets = _targets((*first.steps, None), shapes)
        if targets is None:
            return "the shape of all can't be written as one Reshape target"
        builder = Builder(graph, conv)
        self.builders.append(builder)
        operands = self._operands(builder, [b.conv for b in branches], turns)
        value = builder.op("Conv", conv.inputs[0], *operands, **conv.attrs)
        value = _repeated(builder, value, (conv, *first.steps), targets[:-1])
        _reshaped(builder, value, targets[-1], concat.key)
        return ""

    def _operands(self, builder: Builder, convs: Sequence[Node], turns: bool) -> list[str]:
        """The weights, and biases if there are any, of all."""
        weights = [self._array(c.inputs[1]) for c in convs]
        given = [c.input(2) for c in convs]
        found = [self._constant(builder, ("w", *(c.inputs[1] for c in convs)), weights, turns)]
        if any(given):
            pairs = zip(given, weights, strict=True)
            biases = [self._array(n) if n else np.zeros(len(w), w.dtype) for n, w in pairs]
            sizes = map(len, weights)
            found.append(self._constant(builder, ("b", *given, *sizes), biases, turns))
        return found

    def _array(self, name: str) -> Array:
        found = self.graph.constant(name)
        assert found is not None
        return found

    def _constant(
        self, builder: Builder, names: tuple[object, ...], arrays: Iterable[Array], turns: bool
    ) -> str:
        """Name of arrays joined along their first axis, made once for all that want the same."""
        key = (turns, *names)
        if key not in self.constants:
            parts = list(arrays)
            shape = (-1, *parts[0].shape[1:])
            whole = np.stack(parts, 1).reshape(shape) if turns else np.concatenate(parts)
            self.constants[key] = builder.constant(whole)
        return self.constants[key]

    def result(self) -> PassResult:
        graph = self.graph
        if not self.applied:
            return PassResult(graph, (), tuple(self.near))
        made = {builder.node.key: builder.nodes for builder in self.builders}
        kept = (made.get(n.key, [n] * (n.key not in self.dropped)) for n in graph.nodes)
        nodes = [node for places in kept for node in places]
        values = [value for builder in self.builders for value in builder.values]
        return PassResult(graph.rebuild(nodes, values), tuple(self.applied), tuple(self.near))


def _with(shape: Shape | None, axis: int, size: int) -> Shape:
    assert shape is not None
    return (*shape[:axis], size, *shape[axis + 1 :])


def _targets(
    nodes: Sequence[Node | None], shapes: Sequence[Shape | None]
) -> list[Target | None] | None:
    """For each node that is written as a Reshape, as one that is None is, its target for all
    channels; None if there is none for one.

    Args:
        shapes: what is in front of the first node, and behind each.
    """
    written = [n is None or is_op(n, "Reshape", "Flatten") for n in nodes]
    pairs = zip(written, pairwise(shapes), strict=True)
    targets = [reshape_target(*pair) if view else None for view, pair in pairs]
    missing = any(view and t is None for view, t in zip(written, targets, strict=True))
    return None if missing else targets


def _repeated(
    builder: Builder, value: str, nodes: Sequence[Node], targets: Sequence[Target | None]
) -> str:
    """`nodes` but the first again, behind `value`; `targets` of those that become a Reshape."""
    for before, node, target in zip(nodes, nodes[1:], targets, strict=False):
        if target is not None:
            value = _reshaped(builder, value, target)
        else:
            inputs = [value if name == before.key else name for name in node.inputs]
            value = builder.op(node.op_type, *inputs, **node.attrs)
    return value


def _reshaped(builder: Builder, value: str, target: Target | None, output: str = "") -> str:
    assert target is not None
    attrs = {"allowzero": 1} if target.allow_zero else {}
    return builder.op("Reshape", value, builder.int_constant(*target.sizes), output=output, **attrs)
