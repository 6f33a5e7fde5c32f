"""Tune: measures the styles of each operator's kernels in a model, and says which are fastest."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.errors import DeviceError
from engine.ops import definition
from engine.plan import Plan
from engine.records import dataclass
from engine.runtime.recording import Event
from engine.runtime.session import InferenceSession
from engine.tuning import DEFAULT, Trial, Tuning

GAIN = 0.95
"""A style is taken if its time is at most this share of the default's, twice measured."""

Times = dict[str, float]
"""Least milliseconds in a call of all dispatches that are tuned as one; see `tuned_as`."""

Measure = Callable[[Trial, str], tuple[Times, Plan]]
"""Measures calls in a tuning; the text says which. Returns: the times, and the plan that ran."""


@dataclass(frozen=True)
class Choice:
    """What was found for one operator with its attributes, types and sizes.

    Attributes:
        tuned_as: see `engine.tuning.tuned_as`.
        count: how many nodes of the model have it.
        style: the fastest.
        default_ms, style_ms: all of them in one call, in the default style and in that one.
        measured: styles that were measured, with their times.
    """

    tuned_as: str
    count: int
    style: str
    default_ms: float
    style_ms: float
    measured: Mapping[str, float]


@dataclass(frozen=True)
class Tuned:
    """What `tune` found.

    Attributes:
        tuning: the styles that are faster than the default, and the default where none of its
            operator's is, all of which were measured: what was found earlier gives way to that too.
        choices: all that was measured, the longest first.
        rounds, all_rounds: how many styles of every operator were measured; more than the first
            number did not fit the budget.
        default_ms, tuned_ms: time on the GPU of one call.
    """

    tuning: Tuning
    choices: tuple[Choice, ...]
    rounds: int
    all_rounds: int
    default_ms: float
    tuned_ms: float


def tune(
    model: str | Path,
    feeds_of: Callable[[InferenceSession], Mapping[str, Any]],
    *,
    budget_s: float = 60.0,
    repeats: int = 5,
    progress: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Tuned:
    """Measures whole calls of a model, one style of all operators after the other.

    Args:
        model: path of the file.
        feeds_of: the inputs for a session; their sizes are what is tuned for.
        budget_s: no style is begun after so many seconds.
        repeats: calls of each style; the fastest counts.
        progress: is told what is being done.
        options: for `InferenceSession`, such as `adapter` and `target`.

    Raises: DeviceError if no kernel runs on the GPU; else as `InferenceSession` and its `run`.
    """
    deadline = time.perf_counter() + budget_s

    def measured(tuning: Trial, what: str) -> tuple[Times, Plan]:
        progress(f"{what}: compiling")
        with InferenceSession(model, device="gpu", tuning=tuning, **options) as session:
            feeds = feeds_of(session)
            times, plan = _call_times(session, feeds)
            for repeat in range(repeats):
                progress(f"{what}: call {repeat + 1} of {repeats}")
                times = _least(times, _call_times(session, feeds)[0])
        return times, plan

    default, plan = measured(Trial(), "default style")
    offered = {s: found for s, found in _offered(plan).items() if s in default}
    all_rounds = max((len(styles) for styles, _ in offered.values()), default=0)
    found, rounds = _measure_styles(measured, plan, offered, all_rounds, deadline)
    better, again, tuned = _fastest(measured, default, found)
    choices = [
        Choice(
            s,
            count,
            better.get(s, DEFAULT),
            again[s],
            tuned[s] if s in better else again[s],
            found[s],
        )
        for s, (_, count) in offered.items()
    ]
    choices.sort(key=lambda c: -c.default_ms)
    default_ms = sum(again.values())
    saved_ms = sum(c.default_ms - c.style_ms for c in choices)
    settled = [s for s, (styles, _) in offered.items() if len(styles) <= rounds]
    tuning = Tuning({**dict.fromkeys(settled, DEFAULT), **better})
    return Tuned(tuning, tuple(choices), rounds, all_rounds, default_ms, default_ms - saved_ms)


def _fastest(
    measured: Measure, default: Times, found: Mapping[str, Times]
) -> tuple[dict[str, str], Times, Times]:
    """The styles that are faster than the default, measured alone and all together.

    Returns: them, and the times in a call of the default style and of the fastest ones.
    """
    better = {
        s: min(styles, key=styles.__getitem__)
        for s, styles in found.items()
        if styles and min(styles.values()) <= GAIN * default[s]
    }
    if not better:
        return better, default, default
    tuned, _ = measured(Trial(better), "the fastest styles")
    again = _least(default, measured(Trial(), "default style again")[0])
    better = {s: style for s, style in better.items() if tuned[s] <= GAIN * again[s]}
    return better, again, tuned


def _measure_styles(
    measured: Measure,
    plan: Plan,
    offered: Mapping[str, tuple[tuple[str, ...], int]],
    all_rounds: int,
    deadline: float,
) -> tuple[dict[str, dict[str, float]], int]:
    """Milliseconds by what is tuned as one and by style, and how many rounds there was time for.

    In a round every operator has its next style; kernels that were measured already are not again.
    """
    made = {s: {kernels} for s, kernels in _kernels(plan).items()}
    found: dict[str, dict[str, float]] = {s: {} for s in offered}
    for place in range(all_rounds):
        if time.perf_counter() > deadline:
            return found, place
        times, plan = measured(Trial(place=place), f"style {place + 1} of {all_rounds}")
        for tuned_as, kernels in _kernels(plan).items():
            styles, _ = offered.get(tuned_as, ((), 0))
            if place < len(styles) and kernels not in made[tuned_as]:
                made[tuned_as].add(kernels)
                found[tuned_as][styles[place]] = times[tuned_as]
    return found, all_rounds


def _call_times(session: InferenceSession, feeds: Mapping[str, Any]) -> tuple[Times, Plan]:
    """Milliseconds of one call by what is tuned as one, "" for the rest, and the plan that ran."""
    with session.recording() as recording:
        session.run(None, feeds)
    kernels: list[Event] = [e for e in recording.events if e.kind == "kernel"]
    if not kernels:
        raise DeviceError("no kernel of this model runs on the GPU, so there is nothing to tune")
    times: Times = defaultdict(float)
    for event in kernels:
        times[event.plan.dispatches[event.dispatch].tuned_as] += event.elapsed_ns / 1e6
    return dict(times), session.plan(feeds)


def _kernels(plan: Plan) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Hashes of kernels by what is tuned as one: equal ones need no measuring twice."""
    found: dict[str, tuple[tuple[str, ...], ...]] = defaultdict(tuple)
    for dispatch in plan.dispatches:
        keys = tuple(plan.kernels[v.kernel].key for v in dispatch.variants)
        found[dispatch.tuned_as] += (keys,)
    return found


def _least(one: Times, other: Times) -> Times:
    return {s: min(ms, other.get(s, ms)) for s, ms in one.items()}


def _offered(plan: Plan) -> dict[str, tuple[tuple[str, ...], int]]:
    """Styles and number of nodes by what is tuned as one."""
    found: dict[str, tuple[tuple[str, ...], int]] = {}
    seen = set()
    for dispatch in plan.dispatches:
        if not dispatch.tuned_as or dispatch.nodes in seen:
            continue
        seen.add(dispatch.nodes)
        definitions = (definition(plan.graph.producer[key]) for key in dispatch.nodes)
        styles = next(op.styles for op in definitions if op is not None and op.styles)
        _, count = found.get(dispatch.tuned_as, ((), 0))
        found[dispatch.tuned_as] = (styles, count + 1)
    return found
