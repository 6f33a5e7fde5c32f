"""The report as data: rows of nodes, kernels, subgraphs, transfers, prices and changes."""

from __future__ import annotations

from collections.abc import Mapping

from engine.explain import data, text
from engine.explain.sizes import count_text
from engine.reasons import Entry, ReasonGroup, group_reasons
from engine.records import dataclass


@dataclass(frozen=True)
class NodeRow:
    """One node of the optimised graph.

    Attributes:
        key: its first output, which no other node has.
        name: how to call it: its name in the model or, where that says nothing, its output's.
        op_type: its operator.
        origin: names of the model's nodes that it computes.
        device: "gpu", "cpu", "folded", "host-shape", or "view" (no work, on either side).
        reason: why it is not on the GPU; "" where it is.
        subgraph: index of the subgraph that it is part of; None if it is never run.
        kernels: indices of the dispatches that compute it.
        fused_into: operators of the kernel, if it computes other nodes too; else "".
        inputs, outputs: names of values; "" for an omitted one.
        body_nodes: nodes inside of it, if it is control flow; see `Report.bodies`.
        predicted_ms, measured_ms: of its kernels, or of it on the CPU; nodes that are fused share
            one figure. None where nothing runs, or was measured.
    """

    key: str
    name: str
    op_type: str
    origin: tuple[str, ...]
    device: str
    reason: str
    subgraph: int | None
    kernels: tuple[int, ...]
    fused_into: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body_nodes: int
    predicted_ms: float | None
    measured_ms: float | None


@dataclass(frozen=True)
class KernelRow:
    """One dispatch.

    Attributes:
        label: operators of its nodes.
        nodes: keys of the nodes that it computes.
        origin: names of the model's nodes that it computes.
        subgraph: index of its subgraph.
        shader_names: WGSL files of its alternatives.
        shaders: indices of its alternatives in `Report.shaders`.
        predicted_ms: at `Report.binding`.
        measured_ms: None unless it was measured.
    """

    label: str
    nodes: tuple[str, ...]
    origin: tuple[str, ...]
    subgraph: int
    shader_names: tuple[str, ...]
    shaders: tuple[int, ...]
    predicted_ms: float
    measured_ms: float | None


@dataclass(frozen=True)
class SubgraphRow:
    """What runs on one device in a row, in the order of the plan.

    Attributes:
        device: "gpu" or "cpu".
        nodes: how many nodes are computed.
        kernels: how many dispatches; 0 on the CPU.
        predicted_ms, measured_ms: of its nodes, without transfers.
    """

    device: str
    nodes: int
    kernels: int
    predicted_ms: float
    measured_ms: float | None


@dataclass(frozen=True)
class TransferRow:
    """A value that crosses once per call; bytes at `Report.binding`.

    Attributes:
        value: its name.
        direction: "upload" or "download".
        nbytes: what is moved.
        subgraph: index of the subgraph on the GPU that reads it or makes it.
    """

    value: str
    direction: str
    nbytes: int
    subgraph: int


@dataclass(frozen=True)
class BodyRow:
    """A body of a control flow node: a graph of its own, planned when it first runs.

    Attributes:
        path: keys of the nodes around it, each with the attribute that has the body.
        nodes: how many it has, without those of bodies inside of it.
        gpu_nodes, cpu_nodes: how many of them a call computes there; None before it ran.
    """

    path: tuple[str, ...]
    nodes: int
    gpu_nodes: int | None
    cpu_nodes: int | None


@dataclass(frozen=True)
class ValueRow:
    """A tensor between nodes.

    Attributes:
        dtype: ONNX's name; "" if it is not a tensor.
        shape: as the plan knows it, sizes that calls bind by name; None if the rank is unknown.
        sizes: the shape at `Report.binding`; None where data decide.
        constant: whether it is known when planning (weights).
    """

    dtype: str
    shape: tuple[int | str, ...] | None
    sizes: tuple[int, ...] | None
    constant: bool

    @property
    def text(self) -> str:
        """Such as "float32[n, 3]"."""
        dims = "?" if self.shape is None else ", ".join(map(str, self.shape))
        return f"{self.dtype or 'not a tensor'}[{dims}]" if self.dtype else "not a tensor"


@dataclass(frozen=True)
class Price:
    """What it would change if the GPU could run the nodes that it refuses for one reason.

    Attributes:
        reason: the pattern of the reason; see `Report.reasons`.
        saved_ms: predicted milliseconds that a call would take less (negative: more).
        transfers: how many transfers would fall away (negative: come on top).
        nbytes: how many bytes less would cross.
        moved: how many nodes would move to the GPU.
    """

    reason: str
    saved_ms: float
    transfers: int
    nbytes: int
    moved: int


@dataclass(frozen=True)
class Changes:
    """What a pass, or fusion, did and what it nearly did; a line each."""

    applied: tuple[str, ...]
    near_misses: tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """Medians of measured calls.

    Attributes:
        calls: how many.
        clock: of kernels: "timestamps" (the device's), "host", or "" where none ran.
        total_ms: a call that is not measured in detail.
        kernels: milliseconds by index of the dispatch.
        nodes: milliseconds by key of the node, on the CPU.
    """

    calls: int
    clock: str
    total_ms: float
    kernels: Mapping[int, float]
    nodes: Mapping[str, float]


@dataclass(frozen=True)
class Report:
    """What `explain` says; `to_text` for people, `to_json` for programs.

    Attributes:
        device: adapter, or "CPU (NumPy)".
        mode: what was asked for: "auto", "gpu" or "cpu".
        binding: the sizes of the call that the figures are for.
        decided_at: the sizes that decided the plan; others, if an earlier call made it.
        nodes: of the optimised graph, in order.
        kernels: dispatches, in order.
        subgraphs: in the order in which they run.
        transfers: what crosses in each call.
        bodies: of control flow nodes, outer ones first.
        values: by name, all that nodes read and write.
        inputs, outputs: names of the graph's.
        weights_nbytes: constants on the device, uploaded once.
        predicted_ms, all_cpu_ms, all_gpu_ms: estimates of this split and of the extremes.
        decision: what was chosen and why, in words.
        gpu_work: share of the work that is on the GPU, by what each node would take on the CPU.
        memory: bytes of activation buffers: peak, without reuse, and most alive at once.
        prices: what reasons cost.
        changes: name of a pass, or "fusion", to what it changed and what it nearly changed.
        measured: medians of measured calls, or None.
        shaders: WGSL of every kernel.
    """

    device: str
    mode: str
    binding: dict[str, int]
    decided_at: dict[str, int]
    nodes: tuple[NodeRow, ...]
    kernels: tuple[KernelRow, ...]
    subgraphs: tuple[SubgraphRow, ...]
    transfers: tuple[TransferRow, ...]
    bodies: tuple[BodyRow, ...]
    values: dict[str, ValueRow]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights_nbytes: int
    predicted_ms: float
    all_cpu_ms: float
    all_gpu_ms: float
    decision: str
    gpu_work: float
    memory: dict[str, int]
    prices: tuple[Price, ...]
    changes: dict[str, Changes]
    measured: Measured | None
    shaders: tuple[str, ...]

    @property
    def switches(self) -> int:
        """How often a call changes from one device to the other."""
        return max(len(self.subgraphs) - 1, 0)

    def count(self, device: str) -> int:
        """How many nodes run there."""
        return sum(node.device == device for node in self.nodes)

    def moved(self, direction: str) -> tuple[int, int]:
        """How many values cross in a direction in a call, and their bytes."""
        sizes = [t.nbytes for t in self.transfers if t.direction == direction]
        return len(sizes), sum(sizes)

    def reasons(self) -> list[ReasonGroup]:
        """The nodes on the CPU by what keeps them there."""
        on_cpu = (n for n in self.nodes if n.device == "cpu")
        return group_reasons(Entry(n.key, n.op_type, n.name, n.reason) for n in on_cpu)

    def summary(self) -> str:
        """What a person reads in ten seconds."""
        return text.summary(self)

    def to_text(self, passes: bool = False) -> str:
        """The summary, the nodes by subgraph, and a line for each pass, or all that they did.

        What is longer than a page ends with the summary once more.
        """
        return text.report_text(self, passes)

    def to_json(self, shaders: bool = False) -> str:
        """The report as JSON, with the shaders if asked; docs/explain.md has the schema."""
        return data.to_json(self, shaders)

    def wgsl(self) -> str:
        """Every shader of the plan, each once, under the dispatches that it is for."""
        return text.shaders_text(self)

    __str__ = to_text

    def __repr__(self) -> str:
        """A line: a prompt of Python shows it, and all fields may be a megabyte."""
        nodes = f"{count_text(len(self.nodes), 'node')}: {text.where_text(self)}"
        return f"<Report on {nodes}; print its summary() or to_text()>"
