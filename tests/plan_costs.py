"""What a plan costs, and what its model would cost at best, counted without the planner's help.

The best is counted on the model's file: ONNX Runtime runs it without optimisations and gives every
value, so that all sizes are real ones. The plan's side reads dispatches, values and slots only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto

from engine.bind import Binder, Chosen
from engine.costs import DeviceProfile
from engine.dims import evaluate
from engine.importer import load_model
from engine.ir import Array
from engine.options import Options
from engine.plan import Dispatch, Plan
from engine.runtime.feeds import bind_inputs
from engine.runtime.runner import Runner

HEAVY = frozenset(
    {
        *("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv"),
        *("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "Einsum", "DynamicQuantizeMatMul"),
        *("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM", "Attention", "MultiHeadAttention"),
        *("MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool"),
        *("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1"),
        *("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "ArgMax", "ArgMin"),
        *("CumSum", "TopK"),
        *("LayerNormalization", "InstanceNormalization", "GroupNormalization", "LRN"),
        *("RMSNormalization", "LpNormalization", "MeanVarianceNormalization"),
        *("Softmax", "LogSoftmax", "Hardmax", "Resize", "Upsample", "GridSample"),
        *("Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND"),
        *("DynamicQuantizeLinear",),
    }
)
"""Operators that need a kernel of their own; what is elementwise or only moves data does not."""


@dataclass(frozen=True)
class Ideal:
    """A model at its best: nodes of `HEAVY` that compute something, and the bytes they move."""

    kernels: int
    nbytes: int


def ideal(model: ModelProto, feeds: Mapping[str, Array]) -> Ideal:
    """Counts the heavy nodes, and the bytes of their inputs and outputs, each once a node.

    Left out are nodes that depend on no input, and those that only compute shapes: what they read
    is integers of at most 64 elements.
    """
    values = every_value(model, feeds)
    moving = depending(model, feeds)
    nbytes = count = 0
    for node in model.graph.node:
        if node.op_type not in HEAVY or not moving.intersection(node.input):
            continue
        data = [values[n] for n in (*node.input, *node.output) if n in values]
        if all(a.size <= 64 and a.dtype.kind in "iub" for a in data):
            continue
        count += 1
        nbytes += sum(stored_nbytes(a) for a in data)
    return Ideal(count, nbytes)


def stored_nbytes(array: Array) -> int:
    """Bytes on the GPU, where integers of 64 bits take 32."""
    return array.size * min(array.itemsize, 4)


def every_value(model: ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All tensors of a call, initializers and inputs among them."""
    whole = ModelProto()
    whole.CopyFrom(model)
    known = {o.name for o in whole.graph.output}
    for name in (n for node in whole.graph.node for n in node.output):
        if name and name not in known:
            whole.graph.output.add().name = name
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        whole.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    found = dict(zip(names, session.run(None, dict(feeds)), strict=True))
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    arrays = {**weights, **feeds, **found}
    return {n: np.asarray(a) for n, a in arrays.items() if isinstance(a, np.ndarray)}


def depending(model: ModelProto, feeds: Mapping[str, Array]) -> set[str]:
    """The values that the contents of the inputs decide (their shapes do not count)."""
    found = set(feeds)
    for node in model.graph.node:
        if node.op_type not in ("Shape", "Size") and found.intersection(node.input):
            found.update(node.output)
    return found


@dataclass(frozen=True)
class Planned:
    """A plan for the baseline with all that it can on the GPU, bound to the sizes of feeds."""

    plan: Plan
    binding: Mapping[str, int]

    @cached_property
    def chosen(self) -> list[tuple[Dispatch, Chosen]]:
        """The dispatches that run, and in which variant."""
        binder = Binder(self.plan)
        found = {}
        for number in range(len(binder.epochs)):
            found.update(binder.bind(number, self.binding).chosen)
        pairs = sorted(found.items())
        return [(self.plan.dispatches[i], c) for i, c in pairs if c.grid is not None]

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """Operators of each group that runs; one of several dispatches counts once."""
        nodes = {n.key: n.op_type for n in self.plan.graph.nodes}
        keys = dict.fromkeys(d.nodes for d, _ in self.chosen)
        return [tuple(nodes[k] for k in group) for group in keys]

    def moved(self) -> list[tuple[str, int]]:
        """Label of each dispatch, and the bytes of the values it reads and writes, each once.

        A dispatch that repeats, step by step of a sequence, counts once. Of the values that are
        joined or cut in place, what is copied all the same counts as read and written.
        """
        nodes, found = {n.key: n for n in self.plan.graph.nodes}, []
        for dispatch, choice in self.chosen:
            copied = self.plan.parts.copied_values(nodes[dispatch.nodes[0]])
            moved = (*copied, *copied) if copied else set(dispatch.variants[choice.variant].touches)
            found.append((dispatch.label, sum(map(self.nbytes, moved))))
        return found

    def nbytes(self, name: str) -> int:
        """Bytes of a value, of a constant's own array if it has one."""
        plan = self.plan
        source = plan.derived[name].source if name in plan.derived else name
        constant = plan.graph.constant(source)
        if constant is not None:
            return stored_nbytes(constant)
        return evaluate(plan.storages[name].nbytes(plan.shape(name)), self.binding)

    @property
    def cpu_nodes(self) -> list[str]:
        """Operators that the GPU refused."""
        verdicts = self.plan.partition.verdicts
        return [n.op_type for n in self.plan.graph.nodes if verdicts[n.key].device == "cpu"]


def planned(path: Path | bytes, feeds: Mapping[str, Any]) -> Planned:
    """The plan of a model for a call; no device is opened."""
    graph = load_model(path if isinstance(path, bytes) else str(path), for_gpu=True).graph
    runner = Runner(graph, Options("gpu"), None, DeviceProfile.builtin(), None)
    plan = runner.plan(feeds)
    return Planned(plan, {**plan.binding, **bind_inputs(plan.graph, feeds, {})})


def bodies(model: ModelProto) -> list[NodeProto]:
    """Nodes with graphs inside."""
    return [n for n in model.graph.node if any(a.HasField("g") for a in n.attribute)]
