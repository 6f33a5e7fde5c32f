"""Types of all values, and folding of constants: one pass, node by node."""

from __future__ import annotations

from collections.abc import Mapping

from engine.ir import Graph
from engine.passes.base import PassResult


def infer(graph: Graph, binding: Mapping[str, int] | None = None) -> PassResult:
    """Types and constants of every value."""
    return PassResult(graph)
