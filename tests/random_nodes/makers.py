"""What makers of nodes share: their list, and conditions on what they find in a graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.random_graphs import Array, Candidate, DroppedError, RandomGraph

Maker = Callable[[RandomGraph], Candidate]
MAKERS: list[Maker] = []


def maker(function: Maker) -> Maker:
    MAKERS.append(function)
    return function


def span(array: Array) -> float:
    return float(np.abs(array).max()) if array.size else 0.0


def least(array: Array) -> float:
    return float(np.abs(array).min()) if array.size else 1.0


def need(condition: bool) -> None:
    if not condition:
        raise DroppedError


def axis_of(g: RandomGraph, rank: int) -> int:
    need(rank > 0)
    return g.int(-rank, rank - 1)
