"""Groups: nodes that become one kernel, what it reads and stores, and how many buffers it binds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from engine.ir import Graph, Node
from engine.ops import bound_inputs, definition, kernel_inputs
from engine.records import dataclass


@dataclass(frozen=True)
class Turned:
    """A Transpose that is only an order of storing: `source`, a value of the group, through views.

    Nothing in the group reads its output.
    """

    node: Node
    source: str


@dataclass(frozen=True)
class Prologue:
    """Elementwise nodes in front of an anchor: it computes `value` where it loads it.

    Nothing else reads `value`, and nothing outside reads what the nodes make besides.

    Attributes:
        border: the only node is a Pad, which the anchor's own loads do (`OpDef.border`). Others may
            do so too: it is in the groups of all of them.
    """

    nodes: tuple[Node, ...]
    value: str
    border: bool = False


@dataclass(frozen=True)
class Group:
    """Nodes that run together.

    Attributes:
        nodes: in topological order: prologues, the anchor, if there is one, and what is behind it.
        anchor: the node whose `lower` rule makes the dispatches; None: elementwise only.
        inputs: values read from outside, in order of first use.
        outputs: values that something outside reads; only these are stored.
        turned: those of the nodes that are done by storing in another order.
        prologues: those that are computed where the anchor loads.
        repeated: those of one element, which are computed for each element of what reads them.
            Other groups may do so too.
    """

    nodes: tuple[Node, ...]
    anchor: Node | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    turned: tuple[Turned, ...] = ()
    prologues: tuple[Prologue, ...] = ()
    repeated: tuple[Node, ...] = ()

    @property
    def first(self) -> Node:
        """The anchor, or the first node; its output has the shape of the chain."""
        return self.anchor or next(n for n in self.nodes if n not in self.repeated)

    @property
    def key(self) -> str:
        return self.first.key

    @property
    def chain(self) -> tuple[Node, ...]:
        """The nodes without those of prologues; the anchor, if there is one, comes first."""
        front = {n.key for p in self.prologues for n in p.nodes}
        return tuple(n for n in self.nodes if n.key not in front)

    @property
    def border(self) -> Node | None:
        """The Pad that the anchor's loads do."""
        return next((p.nodes[0] for p in self.prologues if p.border), None)

    @property
    def label(self) -> str:
        """Its operators, for listings and GPU labels."""
        return " + ".join(n.op_type for n in self.nodes)

    @property
    def origin(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(o for n in self.nodes for o in (n.origin or (n.key,))))


@dataclass(frozen=True)
class Fusion:
    """Groups of all GPU nodes in topological order; what fused, and what nearly did and why not."""

    groups: tuple[Group, ...]
    applied: tuple[str, ...]
    near_misses: tuple[str, ...]


@dataclass(frozen=True)
class Aside:
    """Nodes of a group that are not computed in its chain, or in those of other groups too."""

    turned: tuple[Node, ...] = ()
    prologues: tuple[Prologue, ...] = ()
    repeated: tuple[Node, ...] = ()

    def __add__(self, other: Aside) -> Aside:
        return Aside(
            self.turned + other.turned,
            self.prologues + other.prologues,
            self.repeated + other.repeated,
        )


ALL_IN_CHAIN = Aside()


def boundary(
    graph: Graph, nodes: Sequence[Node], roots: Mapping[str, str], aside: Aside
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The values that nodes of one kernel read from outside, and those that they store."""
    members = {n.key for n in nodes}
    inside = {name for n in nodes for name in n.writes}
    stored = {n.key for n in aside.turned}
    loaded = {p.value for p in aside.prologues}
    unstored = loaded.union(n.outputs[0] for n in aside.repeated)
    inputs: dict[str, None] = {}
    for node in nodes:
        used = kernel_inputs(node) if node.key not in stored else ()
        inputs.update(dict.fromkeys(n for n in used if n not in inside))
    inputs = {n: None for n in inputs if roots.get(n, n) not in loaded}
    outputs = tuple(
        name
        for n in nodes
        for name in n.writes
        if name not in unstored and is_needed(graph, name, members, roots)
    )
    return tuple(inputs), outputs


def is_needed(graph: Graph, name: str, members: Collection[str], roots: Mapping[str, str]) -> bool:
    """Whether something that is no member reads a value, as it is or through views."""
    if graph.is_output(name):
        return True
    for reader in graph.consumers.get(name, ()):
        if reader.key in members:
            continue
        if reader.outputs[0] not in roots or is_needed(graph, reader.outputs[0], members, roots):
            return True
    return False


def tensor_count(
    graph: Graph,
    nodes: Sequence[Node],
    anchor: Node | None,
    roots: Mapping[str, str],
    aside: Aside = ALL_IN_CHAIN,
) -> int:
    """Storage buffers that one kernel over `nodes` binds.

    The anchor binds an input as often as it reads it; each prologue, and the chain, binds its own.
    """
    inputs, outputs = boundary(graph, nodes, roots, aside)
    apart = {n.key for n in aside.turned}
    count = max(len(outputs), 1)
    for prologue in aside.prologues:
        apart.update(n.key for n in prologue.nodes)
        read = {name for n in prologue.nodes for name in bound_inputs(graph, n)}
        count += len(read.intersection(inputs))
    if anchor is not None:
        apart.add(anchor.key)
        op, own = definition(anchor), set(bound_inputs(graph, anchor)).intersection(inputs)
        count += sum(name in own for name in anchor.inputs) + (op.scratch if op else 0)
    bound = {name for n in nodes if n.key not in apart for name in bound_inputs(graph, n)}
    return count + len(bound.intersection(inputs))
