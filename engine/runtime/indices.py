"""Indices that the host gives to kernels: NumPy refuses those out of range, kernels can't."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.dims import evaluate, symbols_of
from engine.errors import EngineError
from engine.ir import Array, Graph, Node
from engine.ops._index_ranges import Range, index_ranges
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
        for name in _sources(plan.graph, node.inputs[place]) if ranges else ():
            found[name] = (*found.get(name, ()), IndexRead(node, ranges))
    return found


def _sources(graph: Graph, name: str) -> Iterator[str]:
    """The value, and those that it has its elements from, in their order: any may be uploaded."""
    yield name
    producer = graph.producer.get(name)
    if producer is None or producer.domain or producer.op_type not in _SAME_ELEMENTS:
        return
    source = graph.tensor(producer.inputs[0])
    if source is not None and source.dtype.is_integer:
        yield from _sources(graph, producer.inputs[0])
