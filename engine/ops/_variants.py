"""What choices among kernels for a dispatch share: limits, and alternatives that sizes prune."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from engine.ops import KernelCall, Stage
from engine.target import Target

MAX_TRIPS = 59000
"""Loop iterations that an invocation is planned for: a few less than `Target.max_loop_trips`."""
SHARED_BY = 8
"""The subgroup size that kernels with shared loads are written for."""
MUCH = 1 << 26
"""Multiply-adds from which larger tiles are worth it in software: a driver takes a tenth of a
second longer to compile one, and a call milliseconds less."""


def shares_loads(target: Target) -> bool:
    """Whether invocations of a subgroup may load what all of them need together."""
    return "subgroups" in target.features and target.subgroup_size == SHARED_BY


def choose(alternatives: Sequence[KernelCall]) -> Stage:
    """The alternatives that sizes leave open, in order; the last one loses its guards."""
    open_ones: list[KernelCall] = []
    for call in alternatives:
        known = [guard.known for guard in call.when]
        if False in known:
            continue
        unknown = tuple(g for g, k in zip(call.when, known, strict=True) if k is None)
        open_ones.append(dataclasses.replace(call, when=unknown))
        if not unknown:
            break
    last = dataclasses.replace(open_ones[-1] if open_ones else alternatives[-1], when=())
    return (*open_ones[:-1], last)
