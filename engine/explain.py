"""Explain: a plan as a report: where each node runs, why, what moves, and what memory it takes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import pairwise

from engine.ir import Node
from engine.passes import PipelineResult
from engine.plan import Dispatch, Plan
from engine.schedule import Download, RunCpu, Upload


@dataclass(frozen=True)
class NodeRow:
    """One node of the optimised graph.

    Attributes:
        name, op_type: the node.
        origin: names of the model's nodes that it computes.
        device: "gpu", "cpu", "folded", "host-shape", or "view" (no work, on either side).
        reason: why it is not on the GPU; "" where it is.
        kernel: index of the dispatch it is fused into, or None.
    """

    name: str
    op_type: str
    origin: tuple[str, ...]
    device: str
    reason: str
    kernel: int | None


@dataclass(frozen=True)
class TransferRow:
    """A value that crosses once per call; bytes at the sizes that decided the plan."""

    value: str
    direction: str
    nbytes: int


@dataclass(frozen=True)
class Report:
    """What `explain` says; `to_text` for people, `to_json` for programs.

    Attributes:
        device: adapter, or "CPU (NumPy)".
        binding: the sizes that decided the plan.
        nodes: of the optimised graph, in order.
        kernels: label of each dispatch.
        transfers: what crosses.
        predicted_ms, all_cpu_ms, all_gpu_ms: estimates of this split and of the extremes.
        memory: bytes of activation buffers: peak, without reuse, and most alive at once.
        switches: how often the call changes from one device to the other.
    """

    device: str
    binding: dict[str, int]
    nodes: tuple[NodeRow, ...]
    kernels: tuple[str, ...]
    transfers: tuple[TransferRow, ...]
    predicted_ms: float
    all_cpu_ms: float
    all_gpu_ms: float
    memory: dict[str, int]
    switches: int
    passes: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
    fusion: tuple[tuple[str, ...], tuple[str, ...]]
    shaders: tuple[str, ...]

    def to_json(self) -> str:
        """The report as JSON, without the shaders."""
        content = asdict(self)
        content.pop("shaders")
        return json.dumps(content, indent=2)

    def wgsl(self) -> str:
        """Every shader of the plan, each once."""
        return "\n".join(self.shaders)

    def summary(self) -> str:
        """What a person reads in ten seconds."""
        counts = Counter(n.device for n in self.nodes)
        where = ", ".join(f"{counts[d]} {d}" for d in _ORDER if counts[d])
        sizes = ", ".join(f"{k}={v}" for k, v in self.binding.items())
        up, down = (
            sum(t.nbytes for t in self.transfers if t.direction == d)
            for d in ("upload", "download")
        )
        lines = [
            f"device     {self.device}" + (f"  (planned for {sizes})" if sizes else ""),
            f"nodes      {len(self.nodes)}: {where}",
            f"kernels    {len(self.kernels)} dispatches, {len(self.shaders)} shaders",
            f"transfers  {_size(up)} up, {_size(down)} down, {self.switches} switches",
            f"memory     {_size(self.memory['peak'])} of activations; "
            f"{_size(self.memory['no_reuse'])} without reuse, "
            f"{_size(self.memory['lower_bound'])} alive at once",
            f"predicted  {self.predicted_ms:.2f} ms; all on the CPU {self.all_cpu_ms:.2f} ms, "
            f"all that can be on the GPU {self.all_gpu_ms:.2f} ms",
        ]
        reasons = Counter((n.op_type, n.reason) for n in self.nodes if n.device == "cpu")
        if reasons:
            lines.append("on the CPU")
            lines += [f"  {c} x {op}: {why}" for (op, why), c in reasons.most_common(12)]
            if len(reasons) > 12:
                lines.append(f"  ... and {len(reasons) - 12} more reasons")
        return "\n".join(lines)

    def to_text(self, passes: bool = False) -> str:
        """Summary, then one line per node and per transfer; with what passes did if asked."""
        lines = [self.summary(), "", "node by node"]
        for node in self.nodes:
            where = f"kernel {node.kernel}" if node.kernel is not None else node.reason
            lines.append(f"  {node.device:10} {node.op_type:20} {node.name}  {where}".rstrip())
        lines += ["", "transfers"]
        lines += [f"  {t.direction:10} {_size(t.nbytes):>10}  {t.value}" for t in self.transfers]
        lines += ["", "kernels"]
        lines += [f"  {i:4} {label}" for i, label in enumerate(self.kernels)]
        if passes:
            for name, (applied, missed) in {**self.passes, "fusion": self.fusion}.items():
                lines += ["", f"{name}: {len(applied)} applied, {len(missed)} nearly"]
                lines += [f"  + {a}" for a in applied] + [f"  - {m}" for m in missed]
        return "\n".join(lines)

    __str__ = to_text


_ORDER = ("gpu", "cpu", "view", "host-shape", "folded")


def _size(nbytes: int) -> str:
    if nbytes < 1 << 10:
        return f"{nbytes} B"
    return f"{nbytes / 1024:.1f} KiB" if nbytes < 1 << 20 else f"{nbytes / (1 << 20):.1f} MiB"


def explain(plan: Plan, passed: PipelineResult, device: str) -> Report:
    """The report of a plan."""
    kernel_of = {key: i for i, d in enumerate(plan.dispatches) for key in d.nodes}
    ran = {s.node.key for s in plan.steps if isinstance(s, RunCpu)}
    nodes = tuple(_row(plan, n, kernel_of.get(n.key), n.key in ran) for n in plan.graph.nodes)
    nbytes = {c.value: c.nbytes for c in plan.partition.crossings}
    transfers = []
    for step in plan.steps:
        if isinstance(step, (Upload, Download)):
            direction = "upload" if isinstance(step, Upload) else "download"
            transfers.append(TransferRow(step.value, direction, nbytes.get(step.value, 0)))
    memory = plan.memory
    return Report(
        device,
        dict(plan.binding),
        nodes,
        tuple(d.label for d in plan.dispatches),
        tuple(transfers),
        plan.partition.predicted_ms,
        plan.partition.all_cpu_ms,
        plan.partition.all_gpu_ms,
        {
            "peak": memory.peak_nbytes,
            "no_reuse": memory.no_reuse_nbytes,
            "lower_bound": memory.lower_bound_nbytes,
        },
        _switches(plan),
        {k: (r.applied, r.near_misses) for k, r in passed.results.items()},
        (plan.fusion.applied, plan.fusion.near_misses),
        tuple(_listing(plan, i) for i in range(len(plan.kernels))),
    )


def _row(plan: Plan, node: Node, kernel: int | None, ran: bool) -> NodeRow:
    verdict = plan.partition.verdicts[node.key]
    device: str = verdict.device
    reason = verdict.reason
    if kernel is None and not ran:
        if node.outputs[0] in plan.roots:
            device, reason = "view", "another shape of the same buffer"
        elif device in ("gpu", "cpu"):
            device, reason = "folded", "its result is known when planning"
    return NodeRow(node.name or node.key, node.op_type, node.origin, device, reason, kernel)


def _listing(plan: Plan, index: int) -> str:
    """A kernel's text, under the nodes that it computes; equal texts are one kernel."""
    kernel = plan.kernels[index]
    users = [
        f"// dispatch {i}: {d.label}: {', '.join(d.origin)}"
        for i, d in enumerate(plan.dispatches)
        if any(v.kernel == index for v in d.variants)
    ]
    return "\n".join([f"// kernel {index}: {kernel.name}", *users, kernel.wgsl])


def _switches(plan: Plan) -> int:
    """Changes of device in the order of the steps."""
    kinds = []
    for step in plan.steps:
        if isinstance(step, (Dispatch, RunCpu)):
            kinds.append(isinstance(step, Dispatch))
    return sum(a != b for a, b in pairwise(kinds))
