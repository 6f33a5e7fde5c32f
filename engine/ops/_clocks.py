"""Estimated clocks of a small GPU, by which kernels choose their tiles and parts of long sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNITS = 32
"""Waves that run at once on the GPU which tiles are chosen for: eight compute units of four."""
CLOCKS = 4
"""Of an instruction of one wave, which has 64 invocations."""
LATENCY = 350
"""Clocks of a load that only other waves can hide."""
CLEARLY = 1.3
"""How much faster another tile than the usual one must seem: units differ from GPU to GPU."""
LAUNCH = 6000
"""Clocks that one more dispatch takes which waits for the one before it."""


def parts_clocks(size: int, parts: int) -> int:
    """Estimated clocks of writing `parts` of the sums of `size` elements and adding them up.

    At 64 bytes a clock: what was just written is still in a cache.
    """
    return 0 if parts == 1 else LAUNCH + size * parts // 8


def loop_clocks(trips: int, waves: int, instructions: int, words: int) -> int:
    """Estimated clocks of the loop of a kernel on a small GPU.

    Waves take turns on a unit. One alone waits for each of its loads. Four units share a vector
    cache of 64 bytes a clock.

    Args:
        trips: of the loop. waves: of all workgroups.
        instructions: for the arithmetic of a trip. words: that an invocation loads in a trip.
    """
    turns, arithmetic = -(-waves // UNITS), CLOCKS * instructions
    return trips * max(turns * max(arithmetic, 16 * words), arithmetic + LATENCY)


def clearly_fastest(parts: Sequence[int], clocks: Callable[[int], int]) -> int:
    """The number of parts that take the fewest clocks; 1 unless they are clearly fewer."""
    best = min(parts, key=clocks)
    return best if CLEARLY * clocks(best) < clocks(1) else 1
