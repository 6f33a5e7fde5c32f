"""What the buffers of activations take in a call: as planned, or at the sizes of another call."""

from __future__ import annotations

from collections.abc import Mapping

from engine.costs import evaluate_all
from engine.plan import Dispatch, Plan
from engine.schedule import Download, Upload


def memory_at(plan: Plan, binding: Mapping[str, int]) -> dict[str, int]:
    """Bytes at `binding`: "peak" of all slots, "no_reuse", and "lower_bound", alive at once."""
    memory = plan.memory
    if dict(binding) == dict(plan.binding):
        return {
            "peak": memory.peak_nbytes,
            "no_reuse": memory.no_reuse_nbytes,
            "lower_bound": memory.lower_bound_nbytes,
        }
    names = list(memory.slot_of)
    dims = [plan.storages[n].nbytes(plan.shape(n)) for n in names]
    nbytes = dict(zip(names, evaluate_all(dims, binding), strict=True))
    largest = [0] * len(memory.slots)
    for name, slot in memory.slot_of.items():
        largest[slot] = max(largest[slot], nbytes[name])
    return {
        "peak": sum(largest),
        "no_reuse": sum(nbytes.values()),
        "lower_bound": _most_alive(plan, nbytes),
    }


def _most_alive(plan: Plan, nbytes: Mapping[str, int]) -> int:
    """Most bytes of values between their first step and their last, both included."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, step in enumerate(plan.steps):
        touched: set[str] = set()
        if isinstance(step, Dispatch):
            touched.update(name for v in step.variants for name in v.values)
        elif isinstance(step, (Upload, Download)):
            touched.add(step.value)
        for name in touched & nbytes.keys():
            first.setdefault(name, index)
            last[name] = index
    change = [0] * (len(plan.steps) + 1)
    for name, start in first.items():
        change[start] += nbytes[name]
        change[last[name] + 1] -= nbytes[name]
    alive = most = 0
    for step_change in change:
        alive += step_change
        most = max(most, alive)
    return most
