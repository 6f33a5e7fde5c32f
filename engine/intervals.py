"""Interval arithmetic on integers: every result holds whatever its operands hold.

Nothing wraps here: the caller compares a result with the range of its type.
"""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int | None, int | None]
"""(lowest, highest); None where nothing is known on that side."""

INT32: Interval = (-(1 << 31), (1 << 31) - 1)
ANY: Interval = (None, None)


def hull(intervals: Iterable[Interval]) -> Interval:
    """The smallest interval around all; (0, 0) for none."""
    items = list(intervals)
    if not items:
        return 0, 0
    lows, highs = [lo for lo, _ in items], [hi for _, hi in items]
    lo = None if None in lows else min(x for x in lows if x is not None)
    hi = None if None in highs else max(x for x in highs if x is not None)
    return lo, hi


def inside(inner: Interval, outer: Interval) -> bool:
    """Whether `inner` lies in `outer`. 64 bits bound every interval, so these are checked too."""
    outer = (-(1 << 63) if outer[0] is None else outer[0]), outer[1]
    top = (1 << 63) - 1 if outer[1] is None else outer[1]
    lo, hi = inner
    return lo is not None and hi is not None and lo >= outer[0] and hi <= top


def meet(a: Interval, b: Interval) -> Interval:
    """The part that both hold."""
    lows = [x for x in (a[0], b[0]) if x is not None]
    highs = [x for x in (a[1], b[1]) if x is not None]
    return max(lows) if lows else None, min(highs) if highs else None


def add(a: Interval, b: Interval) -> Interval:
    """Sums."""
    lo = None if a[0] is None or b[0] is None else a[0] + b[0]
    hi = None if a[1] is None or b[1] is None else a[1] + b[1]
    return lo, hi


def neg(a: Interval) -> Interval:
    """Negatives."""
    return None if a[1] is None else -a[1], None if a[0] is None else -a[0]


def mul(a: Interval, b: Interval) -> Interval:
    """Products."""
    if (0, 0) in (a, b):
        return 0, 0
    if None in a or None in b:
        nonneg = all(x[0] is not None and x[0] >= 0 for x in (a, b))
        return (a[0] * b[0], None) if nonneg and a[0] is not None and b[0] is not None else ANY
    corners = [x * y for x in a for y in b if x is not None and y is not None]
    return min(corners), max(corners)


def div(a: Interval, b: Interval) -> Interval:
    """Quotients, rounded down or towards zero; division by zero may give the dividend or 0."""
    if b[0] is None or b[0] < 1:
        reach = magnitude(a)
        return (None, None) if reach is None else (-reach, reach)
    lo = None if a[0] is None else a[0] // b[0] if a[0] < 0 else 0
    return lo, None if a[1] is None else max(a[1] // b[0], 0)


def magnitude(a: Interval) -> int | None:
    """The largest absolute value; None if unbounded."""
    return None if a[0] is None or a[1] is None else max(abs(a[0]), abs(a[1]))


def minimum(a: Interval, b: Interval) -> Interval:
    """The smaller of two."""
    highs = [x for x in (a[1], b[1]) if x is not None]
    return hull((a, b))[0], min(highs) if highs else None


def maximum(a: Interval, b: Interval) -> Interval:
    """The larger of two."""
    return neg(minimum(neg(a), neg(b)))


def times_count(a: Interval, count: int | None) -> Interval:
    """Sums of up to `count` values in `a`."""
    return mul(hull((a, (0, 0))), (0, count))


def absolute(a: Interval) -> Interval:
    """Absolute values."""
    reach = magnitude(a)
    return ANY if reach is None else (0, reach)


def square(a: Interval) -> Interval:
    """Squares."""
    reach = magnitude(a)
    return ANY if reach is None else (0, reach * reach)
