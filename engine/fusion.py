"""Fusion: GPU nodes to groups, each of which becomes the dispatches of one kernel.

A group is an optional anchor (MatMul, Conv, Reduce, ...) followed by elementwise nodes over the
shape of the anchor's output, or elementwise nodes alone. By the rules (`fusion_rules.py`):
`elementwise-chain` joins elementwise nodes, `epilogue` puts them behind an anchor,
`transposed-store` lets a group store what it computes in the order of a Transpose behind it,
`prologue` puts elementwise nodes in front of an anchor, which computes them each time it loads
(`prologue.py` says whether that pays), `scalar` repeats a node of one element in each group that
reads it, and `border` lets an anchor do a Pad that repeats elements where it loads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.fusion_rules import RULES, Weigh, has_epilogue, is_elementwise, rule_for, why_no_border
from engine.groups import (
    Aside,
    Fusion,
    Group,
    Prologue,
    Turned,
    boundary,
    is_needed,
    tensor_count,
)
from engine.ir import Graph, Node, Shape, label
from engine.ops import definition
from engine.target import Target


def _free(prologue: Prologue, node: Node) -> str:
    return ""


@dataclass(eq=False)
class _Draft:
    """A group being built; nothing joins one without a shape (of another device, or alone)."""

    nodes: list[Node]
    anchor: Node | None
    shape: Shape | None
    last: int
    turned: list[Turned] = field(default_factory=list)
    prologues: list[Prologue] = field(default_factory=list)
    repeated: tuple[Node, ...] = ()

    @property
    def aside(self) -> Aside:
        return Aside(tuple(t.node for t in self.turned), tuple(self.prologues), self.repeated)


class _Fuser:
    """Joins nodes into drafts in topological order, each node once."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        disable: Collection[str],
        single: Collection[str],
        roots: Mapping[str, str],
        weigh: Weigh,
        on_gpu: Callable[[Node], bool],
    ) -> None:
        self.graph = graph
        self.on_gpu = on_gpu
        self.borders: dict[str, Node] = {}
        self.scalars: dict[str, tuple[Node, ...]] = {}
        """Value of one element to the nodes that its readers compute."""
        self.roots = roots
        self.weigh = weigh
        self.turned: set[str] = set()
        self.single = set(single)
        self.limit = target.max_storage_buffers_per_shader_stage
        self.enabled = {name for name, _ in RULES} - set(disable)
        self.order = {name: i for i, n in enumerate(graph.nodes) for name in n.writes}
        self.draft_of: dict[str, _Draft] = {}
        self.applied: list[str] = []
        self.near_misses: list[str] = []

    def add(self, node: Node) -> None:
        """Gives a node a draft, unless the drafts of its readers or of its producer compute it."""
        if not self.on_gpu(node) or node.key in self.single:
            draft = _Draft([node], node, None, self.order[node.key])
        elif self._leave_to_readers(node) or self._turn(node):
            return
        else:
            draft = self._chain(node) if is_elementwise(node) else self._anchored(node)
        for name in node.writes:
            self.draft_of[name] = draft

    def _leave_to_readers(self, node: Node) -> bool:
        """Notes a node that every reader computes for itself: a border, or a scalar."""
        if self._is_border(node):
            self.borders[node.outputs[0]] = node
        elif self._is_scalar(node):
            self.scalars[node.outputs[0]] = (*self._scalars_of(node), node)
        else:
            return False
        return True

    def _scalars_of(self, node: Node) -> tuple[Node, ...]:
        return _once(n for name in node.reads for n in self.scalars.get(name, ()))

    def _chain(self, node: Node) -> _Draft:
        """An elementwise node with the scalars that it reads, behind what makes its operands."""
        tensor, scalars = self.graph.tensor(node.outputs[0]), self._scalars_of(node)
        if scalars:
            names = " and ".join(map(label, scalars))
            self.applied.append(f"scalar: {names} in {label(node)}")
        shape = tensor.shape if tensor else None
        draft = _Draft([*scalars, node], None, shape, self.order[node.key], repeated=scalars)
        return draft if shape is None else self._join(node, draft)

    def _anchored(self, node: Node) -> _Draft:
        """A kernel with what it computes where it loads: a border, and prologues."""
        tensor = self.graph.tensor(node.outputs[0]) if has_epilogue(node) else None
        draft = _Draft([node], node, tensor.shape if tensor else None, self.order[node.key])
        pad = self.borders.get(node.input(0))
        if pad is not None:
            self.applied.append(f"border: {label(pad)} in {label(node)}")
            draft.nodes.insert(0, pad)
            draft.prologues.append(Prologue((pad,), node.inputs[0], border=True))
        if "prologue" in self.enabled:
            self._load_through(node, draft)
        return draft

    def is_taken(self, node: Node) -> bool:
        """Whether a node is in the groups of what reads it, and in no other."""
        return node.outputs[0] in self.borders or node.outputs[0] in self.scalars

    def _is_scalar(self, node: Node) -> bool:
        """Whether all that reads a node of one element computes it, for each of more elements."""
        if not is_elementwise(node):
            return False
        value = node.outputs[0]
        tensor, readers = self.graph.tensor(value), self.graph.consumers.get(value, ())
        if "scalar" not in self.enabled or tensor is None or tensor.size != 1 or not readers:
            return False
        if self.graph.is_output(value) or len(node.writes) > 1:
            return False
        makers = (self.graph.producer.get(name) for name in node.reads)
        if any(m and rule_for(self.graph, m, node) in self.enabled for m in makers):
            return False
        return all(
            is_elementwise(r)
            and self.on_gpu(r)
            and r.key not in self.single
            and (made := self.graph.tensor(r.outputs[0])) is not None
            and made.shape not in (None, tensor.shape)
            for r in readers
        )

    def _is_border(self, pad: Node) -> bool:
        """Whether a node is a Pad, and all that reads it does it where it loads."""
        if pad.op_type != "Pad" or pad.domain:
            return False
        value = pad.outputs[0]
        readers = self.graph.consumers.get(value, ())
        if "border" not in self.enabled or self.graph.is_output(value) or not readers:
            return False
        for reader in readers:
            found = why_no_border(self.graph, pad, reader)
            if not isinstance(found, Node):
                op = definition(reader)
                if op is not None and op.border is not None:
                    self.near_misses.append(f"{label(pad)} not in {label(reader)}: {found}")
                return False
            if not self.on_gpu(reader) or reader.key in self.single:
                return False
        return True

    def _turn(self, node: Node) -> bool:
        """Joins a Transpose as an order of storing what a draft computes, if that is possible."""
        if node.op_type != "Transpose" or node.domain:
            return False
        source = self.roots.get(node.inputs[0], node.inputs[0])
        producer, draft = self.graph.producer.get(source), self.draft_of.get(source)
        if producer is None or draft is None or draft.shape is None or source in self.turned:
            return False
        if "transposed-store" not in self.enabled or source != producer.outputs[0]:
            return False
        tensor = self.graph.tensor(node.inputs[0])
        shape = tensor.shape if tensor is not None else None
        readers = self.graph.consumers.get(node.outputs[0], ())
        if shape is None or any(self._may_follow(node, after) for after in readers):
            return False
        aside = draft.aside + Aside((node,))
        count, before = (
            tensor_count(self.graph, nodes, draft.anchor, self.roots, also)
            for nodes, also in (([*draft.nodes, node], aside), (draft.nodes, draft.aside))
        )
        if count > max(self.limit, before):
            self.near_misses.append(
                f"{label(node)} not stored by {label(producer)}: it would need {count} storage "
                f"buffers, and the device allows {self.limit}"
            )
            return False
        self.applied.append(f"transposed-store: {label(node)} by {label(producer)}")
        draft.nodes.append(node)
        draft.turned.append(Turned(node, source))
        draft.last = max(draft.last, self.order[node.key])
        self.turned.add(node.outputs[0])
        self.draft_of[node.outputs[0]] = draft
        return True

    def _may_follow(self, node: Node, reader: Node) -> bool:
        """Whether `reader` may be computed behind `node`: nothing else of what it needs is made of
        the same value by another kernel."""
        value = node.outputs[0]
        if rule_for(self.graph, node, reader) is None:
            return False
        stack, seen = [name for name in reader.reads if name != value], set()
        while stack:
            producer = self.graph.producer.get(stack.pop())
            if producer is None or producer.key in seen:
                continue
            seen.add(producer.key)
            if self.order[producer.key] < self.order[node.key]:
                continue
            if value in producer.reads and not is_elementwise(producer):
                return False
            stack += producer.reads
        return True

    def _load_through(self, node: Node, draft: _Draft) -> None:
        """Takes elementwise drafts that only `node` reads into its own, in front of it."""
        op = definition(node)
        loads = op.loads if op is not None else {}
        for name in dict.fromkeys(node.input(i) for i in loads):
            value = self.roots.get(name, name)
            front = self.draft_of.get(value)
            if front is None or front.anchor is not None or front.shape is None or front.turned:
                continue
            places = [i for i, n in enumerate(node.inputs) if self.roots.get(n, n) == value]
            if front is draft or not loads.keys() >= set(places):
                continue
            prologue = Prologue(tuple(front.nodes), value)
            problem = self._no_prologue(prologue, node, draft)
            if problem:
                self.near_misses.append(
                    f"{label(front.nodes[-1])} not computed where {label(node)} loads: {problem}"
                )
                continue
            self.applied.append(f"prologue: {label(front.nodes[-1])} in front of {label(node)}")
            draft.nodes = list(_once((*front.nodes, *draft.nodes)))
            draft.prologues.append(prologue)
            draft.repeated = _once((*front.repeated, *draft.repeated))
            for made in front.nodes:
                if made not in front.repeated:
                    self.draft_of.update(dict.fromkeys(made.writes, draft))

    def _no_prologue(self, prologue: Prologue, node: Node, draft: _Draft) -> str:
        """Why a node can't or should not compute what a draft of elementwise nodes makes."""
        members = {n.key for n in prologue.nodes}
        repeated = self.draft_of[prologue.value].repeated
        _, outputs = boundary(self.graph, prologue.nodes, self.roots, Aside(repeated=repeated))
        if outputs != (prologue.value,):
            return "something else reads it, or a part of it, so it is stored anyway"
        if is_needed(self.graph, prologue.value, members | {node.key}, self.roots):
            return "something else reads it, so it is stored anyway"
        aside = draft.aside + Aside((), (prologue,), repeated)
        nodes = [*prologue.nodes, *draft.nodes]
        count = tensor_count(self.graph, nodes, node, self.roots, aside)
        if count > self.limit:
            return f"it would need {count} storage buffers, and the device allows {self.limit}"
        return self.weigh(prologue, node)

    def _join(self, node: Node, joined: _Draft) -> _Draft:
        """`node`'s draft joined with those of its producers, the latest first."""
        for name in sorted(set(node.reads), key=lambda n: self.order.get(n, -1), reverse=True):
            producer = self.graph.producer.get(name)
            if producer is None or name in self.scalars or name in self.turned:
                continue
            draft, rule = self.draft_of[name], rule_for(self.graph, producer, node)
            if draft is joined or draft.shape is None or rule not in self.enabled:
                continue
            problem = self._obstacle(draft, joined)
            if problem:
                self.near_misses.append(
                    f"{label(node)} not fused behind {label(producer)}: {problem}"
                )
                continue
            self.applied.append(f"{rule}: {label(node)} behind {label(producer)}")
            joined = self._merge(draft, joined)
        return joined

    def _obstacle(self, draft: _Draft, joined: _Draft) -> str:
        if draft.anchor is not None and joined.anchor is not None:
            return "each already has a kernel of its own"
        nodes = draft.nodes + joined.nodes
        anchor = draft.anchor or joined.anchor
        aside = draft.aside + joined.aside
        if set(aside.repeated).intersection(n for p in aside.prologues for n in p.nodes):
            return "a kernel would compute the same scalar in front and behind"
        if anchor is not None and self._loads_what_follows(anchor, nodes, aside.prologues):
            return f"{label(anchor)} needs what would be computed behind it"
        stored = {n.outputs[0] for n in aside.turned}
        if any(self.roots.get(r, r) in stored for n in nodes for r in n.reads):
            return "it reads in another order what the same kernel would store"
        count = tensor_count(self.graph, nodes, anchor, self.roots, aside)
        if count > self.limit:
            return f"it would need {count} storage buffers, and the device allows {self.limit}"
        if self._reaches_back(draft, joined):
            return "something between them is computed elsewhere"
        return ""

    def _loads_what_follows(
        self, anchor: Node, nodes: Sequence[Node], prologues: Sequence[Prologue]
    ) -> bool:
        """Whether the anchor, or what is computed where it loads, reads what is behind it."""
        front = {n.key: n for p in prologues for n in p.nodes}
        reads = {r for n in (anchor, *front.values()) for r in n.reads}
        return any(reads.intersection(n.writes) for n in nodes if n.key not in front)

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
        draft.prologues = [*draft.prologues, *joined.prologues]
        front = [n for p in draft.prologues for n in p.nodes]
        first = [*front, *([anchor] if anchor is not None else [])]
        taken = {n.key for n in first}
        rest = [n for n in _once((*draft.nodes, *joined.nodes)) if n.key not in taken]
        rest.sort(key=lambda n: self.order[n.key])
        draft.nodes = [*first, *rest]
        draft.anchor = anchor
        draft.last = max(draft.last, joined.last)
        draft.turned = [*draft.turned, *joined.turned]
        draft.repeated = _once((*draft.repeated, *joined.repeated))
        for node in joined.nodes:
            if node not in joined.repeated:
                self.draft_of.update(dict.fromkeys(node.writes, draft))
        return draft


def _once(nodes: Iterable[Node]) -> tuple[Node, ...]:
    return tuple({n.key: n for n in nodes}.values())


def fuse(
    graph: Graph,
    on_gpu: Callable[[Node], bool],
    target: Target,
    disable: Collection[str] = (),
    single: Collection[str] = (),
    roots: Mapping[str, str] | None = None,
    weigh: Weigh = _free,
) -> Fusion:
    """Groups for the nodes of `graph` that run on the GPU.

    Args:
        graph: after passes, with types.
        on_gpu: which nodes the partition put on the GPU.
        target: for the number of storage buffers a kernel may bind.
        disable: names of `RULES` not to use.
        single: keys of nodes to keep in groups of their own.
        roots: views to the values whose buffers they share.
        weigh: what a prologue is worth; by default it always pays.
    """
    roots = roots or {}
    fuser = _Fuser(graph, target, disable, single, roots, weigh, on_gpu)
    for node in graph.nodes:
        fuser.add(node)
    groups: dict[int, Group] = {}
    for node in graph.nodes:
        if not on_gpu(node) or fuser.is_taken(node):
            continue
        draft = fuser.draft_of[node.key]
        if id(draft) not in groups:
            inputs, outputs = boundary(graph, draft.nodes, roots, draft.aside)
            groups[id(draft)] = Group(
                tuple(draft.nodes),
                draft.anchor,
                inputs,
                outputs,
                tuple(draft.turned),
                tuple(draft.prologues),
                draft.repeated,
            )
    return Fusion(tuple(groups.values()), tuple(fuser.applied), tuple(fuser.near_misses))
