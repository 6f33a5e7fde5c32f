"""The device of every node, with the reason, what crosses, and what it is predicted to take.

`gpu_support` says what the GPU can run, `partition` chooses: by the minimum cut of
`engine.placement`, or as the caller demands.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Set
from typing import Literal

from engine import ops
from engine.choice import choose, decision
from engine.costs import DeviceProfile, Direction
from engine.dims import Guard
from engine.errors import NotOnGpuError
from engine.ir import Graph, Node
from engine.ops import Support
from engine.options import DeviceChoice
from engine.placement import CostModel, MayFuse, Transfer, build_cost_model
from engine.ranges import Ranges
from engine.reasons import Entry, group_reasons, names_text
from engine.records import dataclass
from engine.support import Role, roles, strongest
from engine.target import Target

Where = Literal["gpu", "cpu", "folded", "host-shape"]

MOST_NAMES = 12
"""Nodes that a refusal names for each reason."""

_ROLE_REASONS: Mapping[Role, str] = {
    "folded": "its result is known when planning",
    "host-shape": "it only works out sizes or indices",
}
_DEMANDS: Mapping[DeviceChoice, str] = {
    "cpu": "the CPU, as was asked for",
    "gpu": "the GPU wherever it can, as was asked for",
}
_ASKED = "device='cpu' was asked for"
_NO_GPU = "no GPU adapter was found"


@dataclass(frozen=True)
class Verdict:
    """Where a node runs; `reason` says why it is not the GPU, and is "" for "gpu"."""

    device: Where
    reason: str = ""


@dataclass(frozen=True)
class Crossing:
    """A value that moves between an array and a GPU buffer, once a call."""

    value: str
    direction: Direction
    nbytes: int
    predicted_ms: float


@dataclass(frozen=True)
class Partition:
    """The split of one graph.

    Attributes:
        verdicts: node key to verdict, for every node of the graph.
        labels: node key to the node's operator and name, for messages.
        crossings: what moves, in the order in which the values are made.
        guards: conditions on sizes under which the nodes placed on the GPU are supported.
        predicted_ms, all_cpu_ms, all_gpu_ms: estimate of this split, of everything on the CPU, and
            of everything on the GPU that can run there.
        binding: the sizes that decided.
        decision: in words, what was chosen and why.
    """

    verdicts: Mapping[str, Verdict]
    labels: Mapping[str, tuple[str, str]]
    crossings: tuple[Crossing, ...]
    guards: tuple[Guard, ...]
    predicted_ms: float
    all_cpu_ms: float
    all_gpu_ms: float
    binding: Mapping[str, int]
    decision: str = ""

    def on_gpu(self, node: Node) -> bool:
        """Whether `node` runs on the GPU."""
        return self.verdicts[node.key].device == "gpu"

    def nbytes(self, direction: Direction) -> int:
        """Bytes that cross in one direction."""
        return sum(c.nbytes for c in self.crossings if c.direction == direction)


def partition(
    graph: Graph,
    support: Mapping[str, Support],
    profile: DeviceProfile,
    *,
    device: DeviceChoice = "auto",
    no_gpu: bool = False,
    may_fuse: MayFuse | None = None,
    anchors: Collection[str] = (),
    in_place: Collection[str] = (),
    binding: Mapping[str, int] | None = None,
    target: Target | None = None,
    kept: Collection[str] | None = None,
) -> Partition:
    """Places every node of `graph` (bodies are not entered).

    Args:
        support: what `gpu_support` found.
        device: "auto" takes the split with the least predicted time; "gpu" puts everything there
            that the GPU supports and that is not `roles` work; "cpu" puts nothing there.
        no_gpu: whether "cpu" is only because there is no adapter, which is the reason then.
        may_fuse: whether fusion would make one kernel of two neighbours, the first feeding the
            second; None counts no savings.
        anchors: keys of nodes with kernels of their own, two of which never become one.
        in_place: keys of nodes that need no kernel where their neighbours are on the GPU.
        binding: sizes that decide; symbols without one are taken as `costs.ASSUMED_SIZE`.
        target: whose kernels the GPU would run; the baseline's by default.
        kept: keys of the nodes on the GPU, where that is decided already.
    """
    duties = roles(graph, support)
    model = build_cost_model(
        graph,
        support,
        duties,
        profile,
        may_fuse=may_fuse,
        anchors=anchors,
        in_place=in_place,
        binding=binding,
        target=target,
    )
    software = target is not None and target.software
    if kept is not None:
        chosen = frozenset(i for i, n in enumerate(model.nodes) if n.key in kept) - model.only_cpu
    elif device == "auto":
        chosen = choose(model, software)
    else:
        chosen = model.possible if device == "gpu" else frozenset()
    reasons = _reasons(model, chosen) if device == "auto" else {}
    found = _verdicts(graph, model, chosen, support, duties, reasons, _NO_GPU if no_gpu else _ASKED)
    demand = f"the CPU: {_NO_GPU}" if no_gpu else _DEMANDS.get(device)
    words = demand or decision(model, chosen, software)
    return _summed_up(graph, support, model, chosen, found, dict(binding or {}), words)


def _summed_up(
    graph: Graph,
    support: Mapping[str, Support],
    model: CostModel,
    chosen: frozenset[int],
    verdicts: Mapping[str, Verdict],
    binding: Mapping[str, int],
    decision: str,
) -> Partition:
    """What a placement comes to: what crosses, under which guards, and what it costs."""
    on_gpu = [support[node.key] for i, node in enumerate(model.nodes) if i in chosen]
    return Partition(
        verdicts=verdicts,
        labels={node.key: (node.op_type, node.title) for node in graph.nodes},
        crossings=_crossings(model, chosen),
        guards=strongest(g for s in on_gpu for g in s.guards),
        predicted_ms=_ms(model.total_ns(chosen)),
        all_cpu_ms=_ms(model.total_ns(frozenset())),
        all_gpu_ms=_ms(model.total_ns(model.possible)),
        binding=binding,
        decision=decision,
    )


def _verdicts(
    graph: Graph,
    model: CostModel,
    chosen: frozenset[int],
    support: Mapping[str, Support],
    duties: Mapping[str, Role],
    reasons: Mapping[int, str],
    demand: str,
) -> dict[str, Verdict]:
    """`reasons` keep nodes (by id) on the CPU that the GPU could run, or `demand` keeps all."""
    found: dict[str, Verdict] = {}
    for node in graph.nodes:
        if node.key in duties:
            role = duties[node.key]
            found[node.key] = Verdict(role, _ROLE_REASONS[role])
        elif not support[node.key].ok:
            found[node.key] = Verdict("cpu", support[node.key].reason)
    for i, node in enumerate(model.nodes):
        if i in chosen:
            found[node.key] = Verdict("gpu")
        elif node.key not in found:
            found[node.key] = Verdict("cpu", reasons.get(i, demand))
    return {node.key: found[node.key] for node in graph.nodes}


def check_all_gpu(found: Partition) -> None:
    """Raises: NotOnGpuError if a node runs on the CPU, listing all that do, by reason."""
    refused = [
        Entry(key, op_type, name, found.verdicts[key].reason)
        for key, (op_type, name) in found.labels.items()
        if found.verdicts[key].device == "cpu"
    ]
    if refused:
        lines = []
        for group in group_reasons(refused):
            lines.append(f"  {group.reason}: {group.ops_text()}")
            names = names_text([entry.name for entry in group.entries], MOST_NAMES)
            lines += textwrap.wrap(
                names,
                96,
                initial_indent="    ",
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        raise NotOnGpuError(
            f"require_gpu is set, but {len(refused)} of {len(found.verdicts)} nodes run on the "
            "CPU:\n" + "\n".join(lines) + "\nWithout require_gpu they run there, and "
            "`onnx-wgpu explain` says what that costs."
        )


def checked_inputs(graph: Graph, found: Partition, ranges: Ranges) -> tuple[str, ...]:
    """The int64 graph inputs that the call must scan: if one leaves the int32 range, plan anew.

    Some value that a GPU node reads or writes is proven to fit only if they do.
    """
    needed: set[str] = set()
    for node in graph.nodes:
        if found.on_gpu(node):
            for name in (*ops.kernel_inputs(node), *node.writes):
                needed |= ranges.assumes(name)
    return tuple(name for name in (*graph.inputs, *graph.captures) if name in needed)


def _crossings(model: CostModel, chosen: Set[int]) -> tuple[Crossing, ...]:
    moves = ((t, t.direction(chosen)) for t in model.transfers)
    return tuple(
        Crossing(t.value, direction, t.nbytes, _ms(t.cost_ns(chosen)))
        for t, direction in moves
        if direction is not None
    )


def _reasons(model: CostModel, chosen: frozenset[int]) -> dict[int, str]:
    """Why nodes that the GPU could run are better off on the CPU, by id."""
    transfers: dict[int, list[Transfer]] = {}
    for transfer in model.transfers:
        for i in {transfer.producer, *transfer.gpu_readers, *transfer.cpu_readers}:
            if i is not None:
                transfers.setdefault(i, []).append(transfer)
    saved: dict[int, int] = {}
    for saving in model.savings:
        for i, other in ((saving.first, saving.second), (saving.second, saving.first)):
            if other in chosen:
                saved[i] = saved.get(i, 0) + saving.saved_ns
    submit_ns = 0 if chosen - model.free else model.submit_ns
    found = {}
    for i in model.possible - chosen:
        moved = chosen | {i}
        more = submit_ns + sum(t.cost_ns(moved) - t.cost_ns(chosen) for t in transfers.get(i, ()))
        found[i] = _reason(model, i, model.gpu_ns[i] - saved.get(i, 0), more)
    return found


def _reason(model: CostModel, i: int, gpu_ns: int, more_ns: int) -> str:
    """What moving node `i` alone to the GPU would change."""
    if i in model.free:
        return "it is another view of a value that is on the CPU"
    text = f"predicted {_ms(model.cpu_ns[i]):.3f} ms here, {_ms(gpu_ns):.3f} ms on the GPU"
    if more_ns > 0:
        return f"{text} and {_ms(more_ns):.3f} ms more for transfers and waits"
    if more_ns < 0:
        return f"{text} less {_ms(-more_ns):.3f} ms for transfers that would fall away"
    return text


def _ms(ns: int) -> float:
    return ns / 1e6
