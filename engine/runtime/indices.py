"""Indices that the host gives to kernels: NumPy refuses those out of range, kernels can't."""

from __future__ import annotations

from collections.abc import Mapping

from engine.dims import evaluate, symbols_of
from engine.errors import EngineError
from engine.ir import Array, Graph, Node
from engine.ops._index_ranges import BY_COORDINATES, Range, index_ranges
from engine.plan import Plan
from engine.records import dataclass

_SAME_ELEMENTS = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})


@dataclass(frozen=True)
class IndexRead:
    """A node on the GPU that reads indices which come from the host.

    Attributes:
        node: for messages.
        ranges: that of all indices, or of each column of their last axis.
    """

    node: Node
    ranges: tuple[Range, ...]

    def check(self, indices: Array, binding: Mapping[str, int]) -> None:
        """Raises: EngineError for an index out of range, as far as sizes are bound."""
        if not indices.size:
            return
        rows = indices.reshape(-1, len(self.ranges))
        for column, (first, end) in enumerate(self.ranges):
            if not symbols_of(first) | symbols_of(end) <= binding.keys():
                continue
            start, stop = evaluate(first, binding), evaluate(end, binding)
            lowest, highest = int(rows[:, column].min()), int(rows[:, column].max())
            if lowest < start or highest >= stop:
                wrong = lowest if lowest < start else highest
                raise EngineError(
                    f"{self.node.op_type} {self.node.name or self.node.key!r}: index {wrong} is "
                    f"outside [{start}, {stop})"
                )


def index_reads(plan: Plan) -> dict[str, tuple[IndexRead, ...]]:
    """What to check of each value when it is uploaded."""
    found: dict[str, tuple[IndexRead, ...]] = {}
    for node in plan.graph.nodes:
        if node.domain or not plan.partition.on_gpu(node):
            continue
        place, ranges = index_ranges(plan.graph, node)
        if ranges:
            name = _source(plan.graph, node.inputs[place], node.op_type not in BY_COORDINATES)
            found[name] = (*found.get(name, ()), IndexRead(node, ranges))
    return found


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
