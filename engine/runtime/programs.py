"""Programs: the commands of a run of dispatches for one binding, for all calls with these sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.bind import Bound, Chosen
from engine.plan import Dispatch, Plan, turns
from engine.records import dataclass
from engine.runtime.native import Command

Batch = tuple[tuple[int, ...], ...]
"""Indices in `Plan.dispatches`; those that take turns are together."""


@dataclass(frozen=True)
class Timed:
    """A command with what it is of.

    Attributes:
        index: in `Plan.dispatches`.
        predicted_ns: how long it is expected to take.
    """

    index: int
    predicted_ns: int
    command: Command


@dataclass(frozen=True)
class Program:
    """The commands of a batch for one binding.

    Attributes:
        generation: that of the slots which they use.
        external: the buffers of the call they were made for that are not the plan's.
        bound: the sizes.
        commands: one by one.
        most_ns: most predicted time of a submit.
        chunks: the same in groups that fit one submit, with the predicted nanoseconds of each.
        places: keys of the nodes that they compute, each with "gpu".
    """

    generation: int
    external: Mapping[str, Any]
    bound: tuple[Bound, ...]
    commands: tuple[Timed, ...]
    most_ns: int
    chunks: tuple[tuple[tuple[Command, ...], int], ...]
    places: Mapping[str, str]


def chunked(commands: Sequence[Timed], most_ns: int) -> tuple[tuple[tuple[Command, ...], int], ...]:
    """Commands in groups of at most `most_ns` of predicted time, or of one, with that time."""
    chunks: list[tuple[list[Command], int]] = []
    for timed in commands:
        if not chunks or chunks[-1][1] + timed.predicted_ns > most_ns:
            chunks.append(([], 0))
        members, total_ns = chunks[-1]
        members.append(timed.command)
        chunks[-1] = (members, total_ns + timed.predicted_ns)
    return tuple((tuple(members), total_ns) for members, total_ns in chunks)


def batches(plan: Plan) -> tuple[Batch, ...]:
    """Runs of dispatches between other steps, and in these what takes turns."""
    found: list[list[tuple[int, ...]]] = []
    begun, within = 0, False
    for run in turns(plan.steps, plan.kernels):
        if not isinstance(plan.steps[run[0]], Dispatch):
            within = False
            continue
        if not within:
            found.append([])
        found[-1].append(tuple(range(begun, begun + len(run))))
        begun, within = begun + len(run), True
    return tuple(map(tuple, found))


def in_turn(chosen: Mapping[int, Chosen], batch: Batch) -> Iterator[tuple[int, int]]:
    """Index and repetition of each dispatch that a call needs, in order."""
    for together in batch:
        choices = [chosen[index] for index in together]
        for repetition in range(max(c.repeats for c in choices)):
            for index, choice in zip(together, choices, strict=True):
                if choice.grid is not None and repetition < choice.repeats:
                    yield index, repetition
