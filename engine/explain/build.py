"""The report of a plan: its rows, read off the plan and the costs that decided it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from engine.costs import evaluate_all
from engine.dims import Dim, evaluate, symbols_of
from engine.explain.memory import memory_at
from engine.explain.prices import prices
from engine.explain.report import (
    BodyRow,
    Changes,
    KernelRow,
    Measured,
    NodeRow,
    Report,
    SubgraphRow,
    TransferRow,
    ValueRow,
)
from engine.ir import Graph, Node, Value
from engine.ops import in_place
from engine.options import Options
from engine.partition import Partition
from engine.passes import PipelineResult
from engine.placement import CostModel
from engine.plan import Dispatch, Plan
from engine.schedule import Download, RunCpu, Upload
from engine.splits import Choices

WRITTEN = "needs no kernel: its operands are written where they belong in it"
READ = "needs no kernel: its outputs are read where they lie in its input"


def explain(
    plan: Plan,
    passed: PipelineResult,
    device: str,
    options: Options,
    measured: Measured | None = None,
    bodies: Sequence[BodyRow] = (),
    binding: Mapping[str, int] | None = None,
) -> Report:
    """The report of a plan.

    Args:
        plan: what is explained.
        passed: what the passes did to get to its graph.
        device: the adapter in a line.
        options: as the plan was made with.
        measured: times of calls, if they were measured.
        bodies: of the graph's control flow nodes, as far as the caller knows them.
        binding: the sizes of the call that the figures are for; those that decided the plan by
            default.
    """
    if binding is None or binding.items() <= plan.binding.items():
        binding = plan.binding
    choices = Choices(passed, options, plan.target, plan.profile, binding)
    builder = _Builder(plan, choices.model(), binding, placed_at(plan, choices), options, measured)
    found = builder.report(passed, device, choices)
    return replace(found, bodies=tuple(bodies))


def placed_at(plan: Plan, choices: Choices) -> Partition:
    """The plan's partition, with what it takes at the sizes of `choices`."""
    made = plan.partition
    if dict(choices.binding) == dict(plan.binding):
        return made
    on_gpu = [key for key, verdict in made.verdicts.items() if verdict.device == "gpu"]
    return replace(choices.kept(on_gpu), decision=made.decision)


def body_row(path: tuple[str, ...], body: Graph, plan: Plan | None) -> BodyRow:
    """The row of a body, with the plan that it last ran with, if it did."""
    if plan is None:
        return BodyRow(path, len(body.nodes), None, None)
    gpu = {key for d in plan.dispatches for key in d.nodes}
    cpu = sum(isinstance(step, RunCpu) for step in plan.steps)
    return BodyRow(path, len(plan.graph.nodes), len(gpu), cpu)


class _Builder:
    """Reads the rows of one plan."""

    def __init__(
        self,
        plan: Plan,
        model: CostModel,
        binding: Mapping[str, int],
        placed: Partition,
        options: Options,
        measured: Measured | None,
    ) -> None:
        self.plan = plan
        self.binding = binding
        self.placed = placed
        self.options = options
        self.measured = measured
        self.graph = plan.graph
        self.model = model
        self.cpu_ms = {n.key: ns / 1e6 for n, ns in zip(model.nodes, model.cpu_ns, strict=True)}
        self.nodes = {n.key: n for n in self.graph.nodes}
        self.subgraph_of: dict[str, int] = {}
        self.devices: list[str] = []
        self._walk()
        self.kernels = tuple(self._kernels())
        self.kernels_of: dict[str, tuple[int, ...]] = {}
        for i, kernel in enumerate(self.kernels):
            for key in kernel.nodes:
                self.kernels_of[key] = (*self.kernels_of.get(key, ()), i)

    def _walk(self) -> None:
        """Subgraphs: runs of steps on one device."""
        steps = [s for s in self.plan.steps if isinstance(s, (Dispatch, RunCpu))]
        for index, (gpu, run) in enumerate(groupby(steps, lambda s: isinstance(s, Dispatch))):
            self.devices.append("gpu" if gpu else "cpu")
            for step in run:
                keys = step.nodes if isinstance(step, Dispatch) else (step.node.key,)
                self.subgraph_of.update(dict.fromkeys(keys, index))

    def report(self, passed: PipelineResult, device: str, choices: Choices) -> Report:
        plan, placed = self.plan, self.placed
        rows = tuple(self._row(n) for n in self.graph.nodes)
        on_gpu = sum(self.cpu_ms.get(r.key, 0.0) for r in rows if r.device == "gpu")
        work = on_gpu + sum(self.cpu_ms.get(r.key, 0.0) for r in rows if r.device == "cpu")
        found = Report(
            device=device,
            mode="auto" if self.options.no_gpu else self.options.device,
            binding=dict(self.binding),
            decided_at=dict(plan.binding),
            nodes=rows,
            kernels=self.kernels,
            subgraphs=self._subgraphs(rows),
            transfers=tuple(self._transfers()),
            bodies=(),
            values=self._values(),
            inputs=self.graph.inputs,
            outputs=self.graph.outputs,
            weights_nbytes=_weights_nbytes(plan),
            predicted_ms=placed.predicted_ms,
            all_cpu_ms=placed.all_cpu_ms,
            all_gpu_ms=placed.all_gpu_ms,
            decision=placed.decision,
            gpu_work=on_gpu / work if work else 0.0,
            memory=memory_at(plan, self.binding),
            prices=(),
            changes={
                **{k: Changes(r.applied, r.near_misses) for k, r in passed.results.items()},
                "fusion": Changes(plan.fusion.applied, plan.fusion.near_misses),
            },
            measured=self.measured,
            shaders=tuple(k.wgsl for k in plan.kernels),
        )
        return replace(found, prices=tuple(prices(found.reasons(), placed, choices)))

    def _row(self, node: Node) -> NodeRow:
        verdict = self.placed.verdicts[node.key]
        where: str = verdict.device
        reason = verdict.reason
        if node.key not in self.subgraph_of:
            if node.key in self.plan.parts.copied:
                form = in_place(node)
                reason = WRITTEN if form is not None and form.joins else READ
            elif node.outputs[0] in self.plan.roots:
                where, reason = "view", "another shape of the same buffer"
            elif where in ("gpu", "cpu"):
                where, reason = "folded", "its result is known when planning"
        kernels = self.kernels_of.get(node.key, ())
        fused = self.kernels[kernels[0]] if kernels else None
        predicted, measured = self._times(node, kernels)
        return NodeRow(
            key=node.key,
            name=node.title,
            op_type=node.op_type,
            origin=node.origin,
            device=where,
            reason=reason,
            subgraph=self._subgraph(node),
            kernels=kernels,
            fused_into=fused.label if fused is not None and len(fused.nodes) > 1 else "",
            inputs=node.inputs,
            outputs=node.outputs,
            body_nodes=sum(1 for body in node.bodies.values() for _ in body.walk()),
            predicted_ms=predicted,
            measured_ms=measured,
        )

    def _times(self, node: Node, kernels: tuple[int, ...]) -> tuple[float | None, float | None]:
        if kernels:
            rows = [self.kernels[i] for i in kernels]
            return sum(r.predicted_ms for r in rows), _total(r.measured_ms for r in rows)
        if node.key in self.subgraph_of:
            measured = self.measured.nodes.get(node.key) if self.measured else None
            return self.cpu_ms.get(node.key, 0.0), measured
        return None, None

    def _subgraph(self, node: Node) -> int | None:
        """That of the node; a view is where the value is made whose buffer it shares, and what is
        in place without a kernel where its operands are made, or what it gives is read."""
        if node.key in self.plan.parts.copied and node.key not in self.subgraph_of:
            near = [self.graph.producer.get(self.plan.root(n)) for n in node.inputs if n]
            near += [r for n in node.writes for r in self.graph.consumers.get(n, ())]
            found = [self.subgraph_of[n.key] for n in near if n and n.key in self.subgraph_of]
            return found[0] if found else None
        root = self.plan.root(node.key)
        maker = self.graph.producer.get(root)
        return self.subgraph_of.get(node.key if maker is None else maker.key)

    def _kernels(self) -> Iterator[KernelRow]:
        dispatches = self.plan.dispatches
        stages = Counter(dispatch.nodes for dispatch in dispatches)
        for i, dispatch in enumerate(dispatches):
            group_ms = self.model.group_ns(dispatch.nodes) / 1e6
            shaders = tuple(v.kernel for v in dispatch.variants)
            yield KernelRow(
                label=dispatch.label,
                nodes=dispatch.nodes,
                origin=dispatch.origin,
                subgraph=self.subgraph_of[dispatch.nodes[0]],
                shader_names=tuple(self.plan.kernels[k].name for k in shaders),
                shaders=shaders,
                predicted_ms=group_ms / stages[dispatch.nodes],
                measured_ms=self.measured.kernels.get(i) if self.measured else None,
            )

    def _subgraphs(self, rows: tuple[NodeRow, ...]) -> tuple[SubgraphRow, ...]:
        found = []
        for index, device in enumerate(self.devices):
            nodes = [r for r in rows if r.subgraph == index and r.predicted_ms is not None]
            kernels = [k for k in self.kernels if k.subgraph == index]
            parts: list[KernelRow] | list[NodeRow] = kernels if device == "gpu" else nodes
            predicted = sum(p.predicted_ms or 0.0 for p in parts)
            measured = _total(p.measured_ms for p in parts)
            found.append(SubgraphRow(device, len(nodes), len(kernels), predicted, measured))
        return tuple(found)

    def _transfers(self) -> Iterator[TransferRow]:
        plan = self.plan
        moves: list[tuple[str, str, int]] = []
        sizes: list[Dim] = []
        index, last = -1, ""
        for step in plan.steps:
            if isinstance(step, (Dispatch, RunCpu)):
                device = "gpu" if isinstance(step, Dispatch) else "cpu"
                index, last = index + (device != last), device
            if isinstance(step, (Upload, Download)) and self.graph.constant(step.value) is None:
                up = isinstance(step, Upload)
                subgraph = index + (1 if up and last != "gpu" else 0)
                moves.append((step.value, "upload" if up else "download", subgraph))
                size = plan.tensor(step.value).size
                storage = plan.storages[step.value]
                sizes.append(0 if size is None else storage.content_nbytes(size))
        for move, nbytes in zip(moves, evaluate_all(sizes, self.binding), strict=True):
            value, direction, subgraph = move
            yield TransferRow(value, direction, nbytes, subgraph)

    def _values(self) -> dict[str, ValueRow]:
        names = dict.fromkeys(n for node in self.graph.nodes for n in (*node.reads, *node.writes))
        names.update(dict.fromkeys((*self.graph.inputs, *self.graph.outputs)))
        return {n: _value(self.graph.values[n], self.binding) for n in names}


def _value(value: Value, binding: Mapping[str, int]) -> ValueRow:
    tensor = value.tensor
    dtype = tensor.dtype.name if tensor is not None else ""
    shape = tensor.shape if tensor is not None else None
    known = value.constant is not None
    if shape is None:
        return ValueRow(dtype, None, None, known)
    sizes = None
    if all(symbols_of(d) <= binding.keys() for d in shape):
        sizes = tuple(evaluate(d, binding) for d in shape)
    return ValueRow(dtype, tuple(d if isinstance(d, int) else str(d) for d in shape), sizes, known)


def _total(parts: Iterator[float | None]) -> float | None:
    """The sum of what is known; None if nothing is."""
    known = [p for p in parts if p is not None]
    return sum(known) if known else None


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
