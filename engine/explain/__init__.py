"""Explain: a plan as a report: where each node runs, why, what moves, and what that costs.

`build` makes a `Report` of a plan, `prices` says what a missing kernel costs, `text` writes it for
people and `data` for programs (docs/explain.md has the schema).
"""

from engine.explain.build import explain
from engine.explain.report import (
    BodyRow,
    Changes,
    KernelRow,
    Measured,
    NodeRow,
    Price,
    Report,
    SubgraphRow,
    TransferRow,
    ValueRow,
)
from engine.explain.sizes import size_text

__all__ = [
    "BodyRow",
    "Changes",
    "KernelRow",
    "Measured",
    "NodeRow",
    "Price",
    "Report",
    "SubgraphRow",
    "TransferRow",
    "ValueRow",
    "explain",
    "size_text",
]
