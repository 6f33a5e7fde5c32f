"""What kernels have in common though they need not, for drivers that compile slowly.

A software driver takes long to compile each text, and next to nothing to run what is added here:
where an operand or a result begins, in which order it is stored, an activation that does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from engine import schedule as tasks
from engine.groups import Group
from engine.ir import Graph, Node, Shape, TensorType, Value
from engine.layout import Storage
from engine.operands import Order, TurnText, order_of
from engine.ops import is_scalar_constant
from engine.ops.elementwise_unary import ALL, FLOOR, POSITIVE
from engine.parts import Parts
from engine.records import dataclass


@dataclass(frozen=True)
class Sharing:
    """How kernels are written so that there are fewer.

    Attributes:
        outputs: operators whose kernels are written for an output that begins somewhere in its
            buffer.
        inputs: of groups, by key, those that are taken to begin somewhere in theirs.
        orders: how groups are written, by label, that store in another order than they compute.
        ends: the activation that a group, by key, ends with though it has none; and each Relu that
            such ends are like, by its own key.
    """

    outputs: frozenset[str] = frozenset()
    inputs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    orders: Mapping[str, TurnText] = field(default_factory=dict)
    ends: Mapping[str, Node] = field(default_factory=dict)


NOTHING = Sharing()
CLIPS = ("Clip", "Relu")


def sharing(
    graph: Graph, scheduled: Iterable[tasks.Task], parts: Parts, roots: Mapping[str, str]
) -> Sharing:
    """What the kernels of a plan for software share."""
    groups = [task.group for task in scheduled if isinstance(task, tasks.RunGpu)]
    return Sharing(
        _outputs(groups, parts, roots),
        _inputs(graph, groups, parts, roots),
        _orders(graph, groups),
        _ends(graph, groups),
    )


def _kind_of(graph: Graph, group: Group) -> str:
    """What groups have in common whose kernels may be the same but for where inputs begin."""
    assert group.anchor is not None
    return f"{group.label} {_anchor_kind(graph, group.anchor)} {_spatial(graph, group.anchor)}"


def _spatial(graph: Graph, anchor: Node) -> Shape:
    return (graph.shape(anchor.outputs[0]) or ())[2:]


def _anchor_kind(graph: Graph, anchor: Node) -> str:
    constants = [a.shape[2:] for n in anchor.inputs if (a := graph.constant(n)) is not None]
    return f"{anchor.op_type} {sorted(anchor.attrs.items())} {constants}"


def _begins_late(parts: Parts, roots: Mapping[str, str], name: str) -> bool:
    part = parts.of.get(roots.get(name, name))
    return part is not None and part.place.begin != 0


def _outputs(groups: Iterable[Group], parts: Parts, roots: Mapping[str, str]) -> frozenset[str]:
    return frozenset(
        group.anchor.op_type
        for group in groups
        if group.anchor is not None
        for name in group.outputs
        if _begins_late(parts, roots, name)
    )


def _inputs(
    graph: Graph, groups: Sequence[Group], parts: Parts, roots: Mapping[str, str]
) -> dict[str, frozenset[str]]:
    """Inputs that begin late in some groups of a kind, and not in others."""
    kinds = {group.key: _kind_of(graph, group) for group in groups if group.anchor is not None}
    late: dict[tuple[str, int], set[bool]] = {}
    places = [
        (group, name, (kinds[group.key], place))
        for group in groups
        if group.key in kinds
        for place, name in enumerate(group.inputs)
    ]
    for _, name, place in places:
        late.setdefault(place, set()).add(_begins_late(parts, roots, name))
    found: dict[str, frozenset[str]] = {}
    for group, name, place in places:
        if len(late[place]) > 1:
            found[group.key] = found.get(group.key, frozenset()) | {name}
    return found


def _orders(graph: Graph, groups: Iterable[Group]) -> dict[str, TurnText]:
    """How groups are written, by label, that store in more than one order."""
    found: dict[str, list[Order]] = {}
    for group in groups:
        for turned in group.turned:
            found.setdefault(group.label, []).append(order_of(graph, turned, "to"))
    ways = {}
    for label, orders in found.items():
        if not all(order.step is not None for order in orders):
            ways[label] = TurnText.BY_ELEMENT
        elif len({(order.mapping.text, order.whole) for order in orders}) > 1:
            ways[label] = TurnText.ANY_ORDER
    return ways


def _ends(graph: Graph, groups: Sequence[Group]) -> dict[str, Node]:
    """Groups that differ from others only in that these clip their result, and those others."""
    clipped: dict[tuple[str, ...], list[Node]] = {}
    for group in _single(groups):
        last = group.chain[-1]
        bounds = filter(None, last.inputs[1:])
        if last.op_type in CLIPS and all(is_scalar_constant(graph, n) for n in bounds):
            clipped.setdefault(_tail(graph, group, group.chain[1:-1]), []).append(last)
    found = {}
    for group in _single(groups):
        ends = clipped.get(_tail(graph, group, group.chain[1:]))
        tensor = graph.tensor(group.outputs[0])
        if ends is not None and tensor is not None and tensor.dtype.name == "float32":
            found[group.key] = ends[0]
            found.update({node.key: node for node in ends if node.op_type == "Relu"})
    return found


def _single(groups: Iterable[Group]) -> Iterator[Group]:
    """Groups with an anchor that store the end of their chain and nothing else."""
    for group in groups:
        if group.anchor is not None and not group.turned:
            if len(group.outputs) == 1 and group.outputs == group.chain[-1].outputs:
                yield group


def _tail(graph: Graph, group: Group, chain: Iterable[Node]) -> tuple[str, ...]:
    """What groups have in common whose kernels may be the same but for their ends."""
    assert group.anchor is not None
    one_pixel = set(_spatial(graph, group.anchor)) == {1}
    ops = (node.op_type for node in chain)
    return _anchor_kind(graph, group.anchor), "one pixel" if one_pixel else "", *ops


def ended(
    graph: Graph, group: Group, storages: Mapping[str, Storage], end: Node
) -> tuple[Graph, Group, Mapping[str, Storage], str]:
    """A group that clips its result to all numbers, as `end` does to fewer, and the new result."""
    (last,) = group.outputs
    made, value, attrs = f"{last}:clipped", graph.values[last], dict(end.attrs)
    values, names = [value.replace(name=made)], [last]
    for place, bound in zip((1, 2), (-np.inf, np.inf), strict=True):
        names.append(f"{made}:{place}" if end.input(place) else "")
        if names[-1] and value.tensor is not None:
            kind = TensorType(value.tensor.dtype, ())
            values.append(Value(names[-1], kind, np.array(bound, np.float32)))
    if end.op_type == "Relu":
        attrs[FLOOR] = ALL
    inputs = tuple(names[: len(end.inputs)])
    node = replace(end, inputs=inputs, outputs=(made,), attrs=attrs)
    wider = graph.replace(values={**graph.values, **{v.name: v for v in values}})
    group = replace(group, nodes=(*group.nodes, node), outputs=(made,))
    return wider, group, {**storages, made: storages[last]}, made


def floored(group: Group) -> Group:
    """A group whose last Relu is written like those of others that do nothing."""
    last = group.chain[-1]
    relu = replace(last, attrs={FLOOR: POSITIVE})
    return replace(group, nodes=tuple(relu if n is last else n for n in group.nodes))
