"""Measured times for `explain`: kernels by the device's clock, nodes on the CPU by the host's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from engine.explain import Measured
from engine.runtime.recording import Event
from engine.runtime.session import InferenceSession


def measure(
    session: InferenceSession,
    feeds: Mapping[str, Any],
    calls: int = 5,
    progress: Callable[[str], None] = lambda text: None,
) -> Measured:
    """Medians over warm calls, each once as it is and once recorded.

    Control flow counts with all that its bodies do.

    Args:
        session: whose last plan is then the one that was measured.
        feeds: inputs by name.
        calls: how many of each kind, after one that compiles.
        progress: is told what is being done.
    """
    progress("first call")
    session.run(None, feeds)
    totals: list[float] = []
    kernels: dict[int, list[float]] = defaultdict(list)
    nodes: dict[str, list[float]] = defaultdict(list)
    with session.recording() as recording:
        for call in range(calls):
            progress(f"measuring call {call + 1} of {calls}")
            session.run(None, feeds)
            plan = session.plan()
            own = [e for e in recording.events if e.plan is plan and not e.path]
            for index, ms in _kernels(own).items():
                kernels[index].append(ms)
            for event in own:
                if event.kind in ("node", "bodies"):
                    nodes[event.nodes[0]].append(event.elapsed_ns / 1e6)
        clock = recording.clock_used
    for call in range(calls):
        progress(f"timing call {call + 1} of {calls}")
        session.run(None, feeds)
        totals.append(session.times.total * 1e3)
    return Measured(
        calls,
        clock,
        median(totals),
        {index: median(found) for index, found in kernels.items()},
        {key: median(found) for key, found in nodes.items()},
    )


def _kernels(events: list[Event]) -> dict[int, float]:
    """Milliseconds by dispatch; one that repeats counts as often as it does."""
    found: dict[int, float] = defaultdict(float)
    for event in events:
        if event.kind == "kernel":
            found[event.dispatch] += event.elapsed_ns / 1e6
    return found
