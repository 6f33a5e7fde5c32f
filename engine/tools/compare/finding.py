"""Finding: what a comparison found to be wrong, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine.ir import Node
from engine.records import dataclass
from engine.tools.compare.tolerance import Difference

KINDS = {
    "kernel": "the GPU kernel",
    "fusion": "the fusion rule",
    "pass": "the pass",
    "memory": "a value changed between where it was written and where it was read",
    "cache": "a plan that was kept from an earlier start, in",
    "numpy": "the NumPy function, or the import, of",
    "reference": "onnx.reference, in",
    "rounding": "no single node: errors add up",
    "nan": "where this begins:",
}


@dataclass(frozen=True)
class Finding:
    """What is wrong first, in the order of execution.

    Attributes:
        kind: one of `KINDS`.
        blame: names of shaders, of the rule or pass, or of the value that changed.
        node: the node in words, with the control flow nodes around it.
        op_types: of the node, or of all nodes of the fused group.
        origin: names of the model's nodes.
        device: "gpu" or "cpu".
        differences: of what it wrote, worst first.
        notes: what else is known, a line each.
        model: the file that was written, if one was; alone: whether it shows the same by itself.
        command: what runs that file again.
    """

    kind: str
    blame: str
    node: str = ""
    op_types: tuple[str, ...] = ()
    origin: tuple[str, ...] = ()
    device: str = "gpu"
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    model: Path | None = None
    alone: bool = False
    command: str = ""

    def note(self, *lines: str) -> Finding:
        """The finding with more notes."""
        return replace(self, notes=(*self.notes, *lines))


def describe(nodes: Sequence[Node], path: Sequence[str], turn: int = 0) -> str:
    """Nodes in words: operators and names, in which bodies, and in which turn if not the first."""
    names = [f"{n.op_type} {n.name or n.key!r}" for n in nodes[:4]]
    text = " + ".join(names) + (f" + {len(nodes) - 4} more" if len(nodes) > 4 else "")
    inside = f" inside {' / '.join(path)}" if path else ""
    return text + inside + (f", turn {turn + 1}" if turn else "")


def origin_of(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Names of the model's own nodes."""
    return tuple(dict.fromkeys(o for n in nodes for o in (n.origin or (n.name or n.key,))))
