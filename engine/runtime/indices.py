"""Indices that the host gives to kernels: NumPy refuses those outside the axis, kernels can't."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.dims import Dim, evaluate, symbols_of
from engine.errors import EngineError
from engine.ir import Array, Graph, Node
from engine.plan import Plan

_ALONG_AXIS = frozenset({"Gather", "GatherElements", "ScatterElements"})
_FIRST_AXIS: Mapping[str, tuple[int, int]] = {"RoiAlign": (0, 2), "RotaryEmbedding": (1, 3)}
"""The input whose first axis is addressed, and that of the indices; for all others 0 and 1."""
_BY_COORDINATES = frozenset({"GatherND", "ScatterND"})
_SAME_ELEMENTS = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})


@dataclass(frozen=True)
class IndexRead:
    """A node on the GPU that reads indices which come from the host.

    Attributes:
        node: for messages.
        sizes: that of the axis, or of each axis that the last axis of the indices addresses.
    """

    node: Node
    sizes: tuple[Dim, ...]

    def check(self, indices: Array, binding: Mapping[str, int]) -> None:
        """Raises: EngineError for an index outside its axis, as far as sizes are bound."""
        if not indices.size:
            return
        rows = indices.reshape(-1, len(self.sizes))
        for column, dim in enumerate(self.sizes):
            if not symbols_of(dim) <= binding.keys():
                continue
            size = evaluate(dim, binding)
            lowest, highest = int(rows[:, column].min()), int(rows[:, column].max())
            if lowest < -size or highest >= size:
                wrong = lowest if lowest < -size else highest
                raise EngineError(
                    f"{self.node.op_type} {self.node.name or self.node.key!r}: index {wrong} is "
                    f"outside [{-size}, {size})"
                )


def index_reads(plan: Plan) -> dict[str, tuple[IndexRead, ...]]:
    """What to check of each value when it is uploaded."""
    found: dict[str, tuple[IndexRead, ...]] = {}
    for node in plan.graph.nodes:
        if node.domain or not plan.partition.on_gpu(node):
            continue
        sizes = _sizes(plan.graph, node)
        if sizes:
            indices = node.inputs[_FIRST_AXIS.get(node.op_type, (0, 1))[1]]
            name = _source(plan.graph, indices, node.op_type not in _BY_COORDINATES)
            found[name] = (*found.get(name, ()), IndexRead(node, sizes))
    return found


def _sizes(graph: Graph, node: Node) -> tuple[Dim, ...]:
    if node.op_type not in _ALONG_AXIS | _BY_COORDINATES | _FIRST_AXIS.keys():
        return ()
    places = _FIRST_AXIS.get(node.op_type, (0, 1))
    data, indices = (graph.tensor(node.input(p)) if node.input(p) else None for p in places)
    if data is None or indices is None or not data.shape or indices.shape is None:
        return ()
    if node.op_type in _FIRST_AXIS:
        return data.shape[:1]
    if node.op_type in _ALONG_AXIS:
        return (data.shape[int(node.attrs.get("axis", 0))],)
    depth = indices.shape[-1] if indices.shape else 0
    batch = int(node.attrs.get("batch_dims", 0))
    return data.shape[batch : batch + depth] if isinstance(depth, int) else ()


def _source(graph: Graph, name: str, reshaped: bool) -> str:
    """The value that `name` has its elements from, if only their order matters (`reshaped`)."""
    producer = graph.producer.get(name)
    while reshaped and producer is not None and producer.op_type in _SAME_ELEMENTS:
        source = graph.tensor(producer.inputs[0])
        if producer.domain or source is None or not source.dtype.is_integer:
            break
        name = producer.inputs[0]
        producer = graph.producer.get(name)
    return name
