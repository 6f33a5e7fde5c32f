"""Canonical forms: what the version converter leaves becomes one form per operator."""

from __future__ import annotations

from engine.ir import Graph
from engine.passes.base import PassResult


def canonicalize(graph: Graph) -> PassResult:
    """One form per operator."""
    return PassResult(graph)
