"""Fusion: GPU nodes to groups, each of which becomes the dispatches of one kernel.

A group is an optional anchor (MatMul, Conv, Reduce, ...) followed by elementwise nodes over the
shape of the anchor's output, or elementwise nodes alone. Rules, each with a name that can be
disabled: `elementwise-chain` joins elementwise nodes, `epilogue` puts them behind an anchor, and
`transposed-store` lets a group store what it computes in the order of a Transpose behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from engine.ir import Graph, Node, Shape
from engine.ops import bound_inputs, definition
from engine.target import Target

RULES: tuple[tuple[str, str], ...] = (
    ("elementwise-chain", "elementwise nodes over one shape become one shader"),
    ("epilogue", "elementwise nodes after a kernel are computed where it stores its output"),
    ("transposed-store", "a Transpose after a kernel is where the kernel stores its output"),
)


@dataclass(frozen=True)
class Turned:
    """A Transpose that is only an order of storing: `source`, a value of the group, through views.

    Nothing in the group reads its output.
    """

    node: Node
    source: str


@dataclass(frozen=True)
class Group:
    """Nodes that run together.

    Attributes:
        nodes: in topological order; the anchor, if there is one, comes first.
        anchor: the node whose `lower` rule makes the dispatches; None: elementwise only.
        inputs: values read from outside, in order of first use.
        outputs: values that something outside reads; only these are stored.
        turned: those of the nodes that are done by storing in another order.
    """

    nodes: tuple[Node, ...]
    anchor: Node | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    turned: tuple[Turned, ...] = ()

    @property
    def key(self) -> str:
        return self.nodes[0].key

    @property
    def label(self) -> str:
        """Operators and names of the model's nodes, for listings and GPU labels."""
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


def is_elementwise(node: Node) -> bool:
    """Whether a node's GPU form is one expression."""
    op = definition(node)
    return op is not None and op.elementwise is not None


def _has_epilogue(node: Node) -> bool:
    """Whether the last stage stores the output.

    A variadic node has one stage if it keeps to the limit of buffers, which groups are held to;
    that counts an input once, and the kernel binds it as often as it is read.
    """
    op = definition(node)
    if op is None or op.lower is None or not op.epilogue:
        return False
    return not op.variadic or len(set(node.inputs)) == len(node.inputs)


def rule_for(graph: Graph, producer: Node, consumer: Node) -> str | None:
    """Name of the rule by which `consumer` may be fused behind `producer`, or None.

    Both costs and fusion ask this; whether a group is full or would close a cycle comes later.
    """
    if not is_elementwise(consumer) or producer.outputs[0] not in consumer.inputs:
        return None
    rule = "elementwise-chain" if is_elementwise(producer) else "epilogue"
    if rule == "epilogue" and not _has_epilogue(producer):
        return None
    made, wanted = graph.tensor(producer.outputs[0]), graph.tensor(consumer.outputs[0])
    if made is None or wanted is None or made.shape is None or made.shape != wanted.shape:
        return None
    return rule


@dataclass(eq=False)
class _Draft:
    """A group being built; nothing joins one without a shape (of another device, or alone)."""

    nodes: list[Node]
    anchor: Node | None
    shape: Shape | None
    last: int
    turned: list[Turned] = field(default_factory=list)


class _Fuser:
    """Joins nodes into drafts in topological order, each node once."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        disable: Collection[str],
        alone: Collection[str],
        roots: Mapping[str, str],
    ) -> None:
        self.graph = graph
        self.roots = roots
        self.turned: set[str] = set()
        self.alone = set(alone)
        self.limit = target.max_storage_buffers_per_shader_stage
        self.enabled = {name for name, _ in RULES} - set(disable)
        self.order = {name: i for i, n in enumerate(graph.nodes) for name in n.writes}
        self.draft_of: dict[str, _Draft] = {}
        self.applied: list[str] = []
        self.near_misses: list[str] = []

    def add(self, node: Node, on_gpu: bool) -> None:
        shape = None
        on_gpu = on_gpu and node.key not in self.alone
        if on_gpu and node.op_type == "Transpose" and not node.domain and self._turn(node):
            return
        elementwise = on_gpu and is_elementwise(node)
        if elementwise or (on_gpu and _has_epilogue(node)):
            tensor = self.graph.tensor(node.outputs[0])
            shape = tensor.shape if tensor else None
        draft = _Draft([node], None if elementwise else node, shape, self.order[node.key])
        if elementwise and shape is not None:
            draft = self._join(node, draft)
        for name in node.writes:
            self.draft_of[name] = draft

    def _turn(self, node: Node) -> bool:
        """Joins a Transpose as an order of storing what a draft computes, if that is possible."""
        source = self.roots.get(node.inputs[0], node.inputs[0])
        producer, draft = self.graph.producer.get(source), self.draft_of.get(source)
        if producer is None or draft is None or draft.shape is None or source in self.turned:
            return False
        if "transposed-store" not in self.enabled or source != producer.outputs[0]:
            return False
        tensor = self.graph.tensor(node.inputs[0])
        shape = tensor.shape if tensor is not None else None
        if shape is None or any(
            rule_for(self.graph, node, after) is not None
            for after in self.graph.consumers.get(node.outputs[0], ())
        ):
            return False
        turned = [*draft.turned, Turned(node, source)]
        count = tensor_count(
            self.graph, [*draft.nodes, node], draft.anchor, self.roots, [t.node for t in turned]
        )
        if count > self.limit:
            self.near_misses.append(
                f"{_name(node)} not stored by {_name(producer)}: it would need {count} storage "
                f"buffers, and the device allows {self.limit}"
            )
            return False
        self.applied.append(f"transposed-store: {_name(node)} by {_name(producer)}")
        draft.nodes.append(node)
        draft.turned = turned
        draft.last = max(draft.last, self.order[node.key])
        self.turned.add(node.outputs[0])
        self.draft_of[node.outputs[0]] = draft
        return True

    def _join(self, node: Node, joined: _Draft) -> _Draft:
        """`node`'s draft joined with those of its producers, the latest first."""
        for name in sorted(set(node.reads), key=lambda n: self.order.get(n, -1), reverse=True):
            producer = self.graph.producer.get(name)
            if producer is None or self.draft_of[name] is joined:
                continue
            if self.draft_of[name].shape is None or name in self.turned:
                continue
            if rule_for(self.graph, producer, node) not in self.enabled:
                continue
            draft = self.draft_of[name]
            problem = self._obstacle(draft, joined)
            if problem:
                self.near_misses.append(
                    f"{_name(node)} not fused behind {_name(producer)}: {problem}"
                )
                continue
            rule = rule_for(self.graph, producer, node)
            self.applied.append(f"{rule}: {_name(node)} behind {_name(producer)}")
            joined = self._merge(draft, joined)
        return joined

    def _obstacle(self, draft: _Draft, joined: _Draft) -> str:
        if draft.anchor is not None and joined.anchor is not None:
            return "each already has a kernel of its own"
        nodes = draft.nodes + joined.nodes
        anchor = draft.anchor or joined.anchor
        if anchor is not None and any(set(n.writes) & set(anchor.reads) for n in nodes):
            return f"{_name(anchor)} needs what would be computed behind it"
        turned = [t.node for t in (*draft.turned, *joined.turned)]
        stored = {n.outputs[0] for n in turned}
        if any(self.roots.get(r, r) in stored for n in nodes for r in n.reads):
            return "it reads in another order what the same kernel would store"
        count = tensor_count(self.graph, nodes, anchor, self.roots, turned)
        if count > self.limit:
            return f"it would need {count} storage buffers, and the device allows {self.limit}"
        if self._reaches_back(draft, joined):
            return "something between them is computed elsewhere"
        return ""

    def _reaches_back(self, draft: _Draft, joined: _Draft) -> bool:
        """Whether a path leaves the union of two drafts and comes back into it."""
        floor = min(self.order[n.key] for n in (*draft.nodes, *joined.nodes))
        stack = [name for n in (*draft.nodes, *joined.nodes) for name in n.reads]
        seen: set[int] = set()
        while stack:
            owner = self.draft_of.get(stack.pop())
            if owner is None or owner is draft or owner is joined or id(owner) in seen:
                continue
            seen.add(id(owner))
            if owner.last < floor:
                continue
            for name in (name for n in owner.nodes for name in n.reads):
                if self.draft_of.get(name) in (draft, joined):
                    return True
                stack.append(name)
        return False

    def _merge(self, draft: _Draft, joined: _Draft) -> _Draft:
        anchor = draft.anchor or joined.anchor
        rest = [n for n in draft.nodes + joined.nodes if n is not anchor]
        rest.sort(key=lambda n: self.order[n.key])
        draft.nodes = [*([anchor] if anchor is not None else []), *rest]
        draft.anchor = anchor
        draft.last = max(draft.last, joined.last)
        draft.turned = [*draft.turned, *joined.turned]
        for node in joined.nodes:
            for name in node.writes:
                self.draft_of[name] = draft
        return draft


def _name(node: Node) -> str:
    return f"{node.op_type} {node.title!r}"


def kernel_inputs(node: Node) -> tuple[str, ...]:
    """The inputs of a node that kernels read: all but omitted ones and `OpDef.shape_inputs`."""
    op = definition(node)
    planned = op.shape_inputs if op is not None else ()
    return tuple(n for i, n in enumerate(node.inputs) if n and i not in planned)


def _boundary(
    graph: Graph, nodes: Sequence[Node], roots: Mapping[str, str], turned: Sequence[Node]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    members = {n.key for n in nodes}
    inside = {name for n in nodes for name in n.writes}
    stored = {n.key for n in turned}
    inputs: dict[str, None] = {}
    for node in nodes:
        used = kernel_inputs(node) if node.key not in stored else ()
        inputs.update(dict.fromkeys(n for n in used if n not in inside))
    outputs = tuple(
        name for n in nodes for name in n.writes if _needed(graph, name, members, roots)
    )
    return tuple(inputs), outputs


def _needed(graph: Graph, name: str, members: Collection[str], roots: Mapping[str, str]) -> bool:
    """Whether something that is no member reads a value, as it is or through views."""
    if graph.is_output(name):
        return True
    for reader in graph.consumers.get(name, ()):
        if reader.key in members:
            continue
        if reader.outputs[0] not in roots or _needed(graph, reader.outputs[0], members, roots):
            return True
    return False


def tensor_count(
    graph: Graph,
    nodes: list[Node],
    anchor: Node | None,
    roots: Mapping[str, str],
    turned: Sequence[Node] = (),
) -> int:
    """Storage buffers that one kernel over `nodes` binds."""
    inputs, outputs = _boundary(graph, nodes, roots, turned)
    stored = {n.key for n in turned}
    bound = {name for n in nodes if n.key not in stored for name in bound_inputs(graph, n)}
    op = definition(anchor) if anchor is not None else None
    return len(bound.intersection(inputs)) + max(len(outputs), 1) + (op.scratch if op else 0)


def fuse(
    graph: Graph,
    on_gpu: Callable[[Node], bool],
    target: Target,
    disable: Collection[str] = (),
    alone: Collection[str] = (),
    roots: Mapping[str, str] | None = None,
) -> Fusion:
    """Groups for the nodes of `graph` that run on the GPU.

    Args:
        graph: after passes, with types.
        on_gpu: which nodes the partition put on the GPU.
        target: for the number of storage buffers a kernel may bind.
        disable: names of `RULES` not to use.
        alone: keys of nodes to keep in groups of their own.
        roots: views to the values whose buffers they share.
    """
    roots = roots or {}
    fuser = _Fuser(graph, target, disable, alone, roots)
    for node in graph.nodes:
        fuser.add(node, on_gpu(node))
    groups: dict[int, Group] = {}
    for node in graph.nodes:
        if not on_gpu(node):
            continue
        draft = fuser.draft_of[node.key]
        if id(draft) not in groups:
            turned = tuple(draft.turned)
            inputs, outputs = _boundary(graph, draft.nodes, roots, [t.node for t in turned])
            groups[id(draft)] = Group(tuple(draft.nodes), draft.anchor, inputs, outputs, turned)
    return Fusion(tuple(groups.values()), tuple(fuser.applied), tuple(fuser.near_misses))
