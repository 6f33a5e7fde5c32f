"""What a reason costs: the graph is placed again as if the GPU could run the nodes it names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.dtypes import STRING
from engine.explain.report import Price
from engine.ir import Graph, Node, is_control_flow
from engine.partition import Partition
from engine.progress import tell
from engine.reasons import ReasonGroup, pattern
from engine.splits import Choices

MOST = 12
"""Reasons that are priced, those with the most nodes first: each takes a placement."""


def prices(groups: Sequence[ReasonGroup], placed: Partition, choices: Choices) -> Iterator[Price]:
    """The price of each reason in `groups` that a kernel could take away.

    Args:
        groups: the nodes on the CPU by reason.
        placed: the partition as it is.
        choices: what it could be.
    """
    if choices.options.device == "cpu":
        return
    nodes = {node.key: node for node in choices.graph.nodes}
    left = MOST
    for group in groups:
        keys = [e.key for e in group.entries if _could_run(choices.graph, nodes[e.key])]
        if group.faster or not keys or not left:
            continue
        left -= 1
        tell(f"pricing what runs on the CPU: reason {MOST - left}")
        lifted = choices.lifted(keys)
        yield Price(
            reason=pattern(group.entries[0].reason),
            saved_ms=placed.predicted_ms - lifted.predicted_ms,
            transfers=len(placed.crossings) - len(lifted.crossings),
            nbytes=_nbytes(placed) - _nbytes(lifted),
            moved=_on_gpu(lifted) - _on_gpu(placed),
        )


def _could_run(graph: Graph, node: Node) -> bool:
    """Whether a kernel is thinkable: for control flow, strings and sequences there is none."""
    if is_control_flow(node):
        return False
    tensors = [graph.tensor(name) for name in (*node.reads, *node.writes)]
    return all(t is not None and t.shape is not None and t.dtype is not STRING for t in tensors)


def _nbytes(placed: Partition) -> int:
    return placed.nbytes("upload") + placed.nbytes("download")


def _on_gpu(placed: Partition) -> int:
    return sum(verdict.device == "gpu" for verdict in placed.verdicts.values())
