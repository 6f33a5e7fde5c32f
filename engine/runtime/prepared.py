"""Prepared: a plan with its executor, and the sizes that it was decided for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from math import log2
from typing import TYPE_CHECKING, Any

from engine.options import Options
from engine.plan import Plan
from engine.records import dataclass
from engine.runtime.executor import Executor

if TYPE_CHECKING:
    from engine.passes import PipelineResult

MAX_DECIDED = 16
"""At how many sizes a split may be compared with the best one, before it is kept for all."""


@dataclass(frozen=True)
class StoredPlan:
    """A plan that an earlier process made; attributes as those of `Prepared`."""

    plan: Plan
    key: tuple[Any, ...]
    make_passed: Callable[[], PipelineResult]
    options: Options
    decided: list[Mapping[str, int]]


@dataclass(eq=False)
class Prepared:
    """A plan with its executor.

    Attributes:
        key: the kind of call that it is for.
        make_passed: returns what the passes did to get to its graph.
        options: as it was planned with.
        decided: sizes at which its split was found to be the best, or nearly.
        binding: sizes of the last call that it was for.
    """

    plan: Plan
    executor: Executor
    key: tuple[Any, ...]
    make_passed: Callable[[], PipelineResult]
    options: Options
    decided: list[Mapping[str, int]] = field(default_factory=list)
    binding: Mapping[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> PipelineResult:
        """What the passes did to get to its graph."""
        return self.make_passed()

    @property
    def on_gpu(self) -> frozenset[str]:
        """Keys of the nodes that its split puts on the GPU."""
        verdicts = self.plan.partition.verdicts
        return frozenset(key for key, verdict in verdicts.items() if verdict.device == "gpu")

    def distance(self, binding: Mapping[str, int]) -> float:
        """How far sizes are from those that decided: of the size that differs most, the factor's
        logarithm to base 2."""
        return min((_distance(d, binding) for d in self.decided), default=0.0)


def _distance(a: Mapping[str, int], b: Mapping[str, int]) -> float:
    return max((abs(log2((b[s] + 1) / (a[s] + 1))) for s in a.keys() & b.keys()), default=0.0)
