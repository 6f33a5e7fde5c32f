"""Explain: a plan as a report: where each node runs, why, what moves, and what memory it takes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np

from engine.costs import evaluate_all
from engine.dims import Dim, ceildiv
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
class KernelRow:
    """One dispatch.

    Attributes:
        label: operators of its nodes.
        origin: names of the model's nodes that it computes.
        predicted_ms: at the sizes that decided the plan.
        shaders: indices of its alternatives in `Report.shaders`.
    """

    label: str
    origin: tuple[str, ...]
    predicted_ms: float
    shaders: tuple[int, ...]


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
        kernels: dispatches, in order.
        transfers: what crosses in each call.
        weights_nbytes: constants on the device, uploaded once.
        predicted_ms, all_cpu_ms, all_gpu_ms: estimates of this split and of the extremes.
        memory: bytes of activation buffers: peak, without reuse, and most alive at once.
        switches: how often the call changes from one device to the other.
        passes: name to what it changed and what it nearly changed.
        fusion: what fused and what nearly did.
        shaders: WGSL of every kernel.
    """

    device: str
    binding: dict[str, int]
    nodes: tuple[NodeRow, ...]
    kernels: tuple[KernelRow, ...]
    transfers: tuple[TransferRow, ...]
    weights_nbytes: int
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
        """Every shader of the plan, each once, under the dispatches that it is for."""
        parts = []
        for index, text in enumerate(self.shaders):
            users = [(i, k) for i, k in enumerate(self.kernels) if index in k.shaders]
            lines = [f"// shader {index} of {len(self.shaders)}"]
            for i, kernel in users:
                lines.append(f"// kernel {i}: {kernel.label} ({_names(kernel.origin)})")
            parts.append("\n".join([*lines, text]))
        return "\n".join(parts)

    def summary(self) -> str:
        """What a person reads in ten seconds."""
        counts = Counter(n.device for n in self.nodes)
        where = ", ".join(f"{counts[d]} {_WORDS[d]}" for d in _WORDS if counts[d])
        sizes = ", ".join(f"{k}={v}" for k, v in self.binding.items())
        up, down = (
            sum(t.nbytes for t in self.transfers if t.direction == d)
            for d in ("upload", "download")
        )
        weights = f"; {size_text(self.weights_nbytes)} of weights once"
        memory = {k: size_text(v) for k, v in self.memory.items()}
        lines = [
            f"device     {self.device}",
            *([f"sizes      {sizes}"] if sizes else []),
            f"nodes      {len(self.nodes)}: {where}",
            f"predicted  {self.predicted_ms:.2f} ms by the device's profile; all on the "
            f"CPU {self.all_cpu_ms:.2f} ms, all that can be on the GPU {self.all_gpu_ms:.2f} ms",
        ]
        if self.kernels:
            lines += [
                f"kernels    {len(self.kernels)} dispatches, {len(self.shaders)} shaders "
                "with their alternatives",
                f"transfers  {size_text(up)} up, {size_text(down)} down a call, "
                f"{self.switches} switches{weights if self.weights_nbytes else ''}",
                f"memory     {memory['peak']} of activations ({memory['no_reuse']} without reuse, "
                f"{memory['lower_bound']} alive at once)",
            ]
        return "\n".join([*lines, *_reasons(n for n in self.nodes if n.device == "cpu")])

    def to_text(self, passes: bool = False) -> str:
        """One line per node, kernel and transfer, then the summary; with the passes if asked."""
        width = max((len(n.op_type) for n in self.nodes), default=0)
        lines = ["nodes"]
        for node in self.nodes:
            where = f"kernel {node.kernel}" if node.kernel is not None else node.reason
            line = (
                f"  {node.device:10}  {node.op_type:{width}}  {_short(node.name, 40):40}  {where}"
            )
            lines.append(line.rstrip())
        if self.kernels:
            lines += ["", "kernels"]
            for i, kernel in enumerate(self.kernels):
                label = _short(kernel.label, 44)
                lines.append(
                    f"  {i:4}  {kernel.predicted_ms:8.3f} ms  {label:44}  {_names(kernel.origin)}"
                )
        if self.transfers:
            lines += ["", "transfers"]
            lines += [
                f"  {t.direction:8}  {size_text(t.nbytes):>10}  {t.value}" for t in self.transfers
            ]
        if passes:
            for name, (applied, missed) in {**self.passes, "fusion": self.fusion}.items():
                lines += ["", f"{name}: {len(applied)} applied, {len(missed)} nearly"]
                lines += [f"  + {a}" for a in applied] + [f"  - {m}" for m in missed]
        return "\n".join([*lines, "", self.summary()])

    __str__ = to_text


_WORDS = {
    "gpu": "on the GPU",
    "cpu": "on the CPU",
    "view": "only another shape (no work)",
    "host-shape": "size arithmetic on the CPU",
    "folded": "known when planning",
}
_PREDICTED = "predicted "
_MOST_REASONS = 12


def _reasons(nodes: Iterable[NodeRow]) -> list[str]:
    """Why nodes are on the CPU, most frequent first, those that are only a matter of time last."""
    by_reason: dict[str, Counter[str]] = {}
    for node in nodes:
        faster = node.reason.startswith(_PREDICTED)
        reason = "predicted to be faster there" if faster else node.reason
        by_reason.setdefault(reason, Counter())[node.op_type] += 1
    if not by_reason:
        return []
    lines = ["on the CPU because"]
    ranked = sorted(by_reason.items(), key=lambda item: -item[1].total())
    for reason, ops in ranked[:_MOST_REASONS]:
        shown = ", ".join(f"{count} {op}" for op, count in ops.most_common(5))
        more = f" and {len(ops) - 5} more operators" if len(ops) > 5 else ""
        lines.append(f"  {reason}: {shown}{more}")
    if len(ranked) > _MOST_REASONS:
        lines.append(f"  ... and {len(ranked) - _MOST_REASONS} more reasons")
    return lines


def _short(text: str, width: int) -> str:
    """`text` cut in the middle to at most `width` characters."""
    if len(text) <= width:
        return text
    half = (width - 3) // 2
    return f"{text[: width - 3 - half]}...{text[-half:]}"


def _names(names: tuple[str, ...]) -> str:
    """The first names of a list, and how many follow."""
    shown = ", ".join(_short(n, 40) for n in names[:3])
    return shown + (f", ... {len(names) - 3} more" if len(names) > 3 else "")


def size_text(nbytes: int) -> str:
    """Bytes for people: "12 B", "3.4 KiB", "1.2 MiB"."""
    if nbytes < 1 << 10:
        return f"{nbytes} B"
    return f"{nbytes / 1024:.1f} KiB" if nbytes < 1 << 20 else f"{nbytes / (1 << 20):.1f} MiB"


def explain(plan: Plan, passed: PipelineResult, device: str) -> Report:
    """The report of a plan."""
    kernel_of = {key: i for i, d in enumerate(plan.dispatches) for key in d.nodes}
    ran = {s.node.key for s in plan.steps if isinstance(s, RunCpu)}
    memory = plan.memory
    return Report(
        device,
        dict(plan.binding),
        tuple(_row(plan, n, kernel_of.get(n.key), n.key in ran) for n in plan.graph.nodes),
        _kernels(plan),
        _transfers(plan),
        _weights_nbytes(plan),
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
        tuple(k.wgsl for k in plan.kernels),
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


def _kernels(plan: Plan) -> tuple[KernelRow, ...]:
    work = evaluate_all([n for d in plan.dispatches for n in (d.flops, d.nbytes)], plan.binding)
    rates = plan.profile
    rows = []
    for dispatch, flops, nbytes in zip(plan.dispatches, work[::2], work[1::2], strict=True):
        seconds = flops / rates.gpu_flops_per_s + nbytes / rates.gpu_bytes_per_s
        shaders = tuple(v.kernel for v in dispatch.variants)
        predicted_ms = rates.launch_ns / 1e6 + seconds * 1e3
        rows.append(KernelRow(dispatch.label, dispatch.origin, predicted_ms, shaders))
    return tuple(rows)


def _transfers(plan: Plan) -> tuple[TransferRow, ...]:
    moves: list[tuple[str, str]] = []
    sizes: list[Dim] = []
    for step in plan.steps:
        if isinstance(step, (Upload, Download)) and plan.graph.constant(step.value) is None:
            moves.append((step.value, "upload" if isinstance(step, Upload) else "download"))
            size = plan.tensor(step.value).size
            packing = plan.storages[step.value].packing
            sizes.append(0 if size is None else ceildiv(size, packing) * 4)
    found = zip(moves, evaluate_all(sizes, plan.binding), strict=True)
    return tuple(TransferRow(value, direction, nbytes) for (value, direction), nbytes in found)


def _weights_nbytes(plan: Plan) -> int:
    """Bytes of the constants that kernels read, each once; derived ones as large as theirs."""
    names = {
        plan.derived[n].source if n in plan.derived else n
        for d in plan.dispatches
        for v in d.variants
        for n in v.values
    }
    arrays = [plan.graph.constant(n) for n in names if n in plan.graph.values]
    return sum(int(np.size(a)) * 4 for a in arrays if a is not None)


def _switches(plan: Plan) -> int:
    """Changes of device in the order of the steps."""
    kinds = []
    for step in plan.steps:
        if isinstance(step, (Dispatch, RunCpu)):
            kinds.append(isinstance(step, Dispatch))
    return sum(a != b for a, b in pairwise(kinds))
