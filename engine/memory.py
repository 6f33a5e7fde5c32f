"""Buffer slots for values, by lifetime.

A slot is a whole buffer. Values share one if they are never alive at the same step; a value that is
read at a step and one that is written at it both are, for a dispatch may not bind one buffer for
reading and for writing. The sharing is chosen at one binding and right at every other: only how
much it saves depends on the sizes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence

from engine import dims
from engine.costs import evaluate_all
from engine.dims import Dim
from engine.errors import PlanError
from engine.records import dataclass


@dataclass(frozen=True)
class Lifetime:
    """The life of one value.

    Attributes:
        first, last: the steps that write it first and touch it last, both included.
        nbytes: its size.
    """

    name: str
    first: int
    last: int
    nbytes: Dim


@dataclass(frozen=True)
class Slot:
    """One buffer; it must hold the largest of `nbytes`."""

    index: int
    nbytes: tuple[Dim, ...]
    values: tuple[str, ...]

    def size(self, binding: Mapping[str, int]) -> int:
        """Bytes it needs at `binding`. Raises: KeyError for an unbound symbol."""
        return max(dims.evaluate(n, binding) for n in self.nbytes)


@dataclass(frozen=True)
class MemoryPlan:
    """The slot of each value.

    Attributes:
        slot_of: value name to index in `slots`.
        peak_nbytes: bytes of all slots at the binding that decided.
        no_reuse_nbytes: what a buffer for each value would take.
        lower_bound_nbytes: most bytes alive at one step; no plan takes less.
    """

    slot_of: Mapping[str, int]
    slots: tuple[Slot, ...]
    peak_nbytes: int
    no_reuse_nbytes: int
    lower_bound_nbytes: int


def assign(lifetimes: Sequence[Lifetime], binding: Mapping[str, int] | None = None) -> MemoryPlan:
    """Gives every value a slot, aiming at few bytes at `binding`.

    Greedy orders are tried, by size with the first or the longest of equal ones in front, and by
    time, and the one that takes the fewest bytes is kept.

    Raises: PlanError if a name comes twice, a life ends before it begins, or a size is negative.
    """
    nbytes = evaluate_all([v.nbytes for v in lifetimes], binding)
    _check(lifetimes, nbytes)
    items = range(len(lifetimes))
    longest = sorted(items, key=lambda i: lifetimes[i].first - lifetimes[i].last)
    groups = min(
        (
            _by_size(lifetimes, nbytes, sorted(items, key=lambda i: lifetimes[i].first)),
            _by_size(lifetimes, nbytes, longest),
            _by_time(lifetimes, nbytes, items),
        ),
        key=lambda found: (_total(found, nbytes), len(found)),
    )
    slots = tuple(
        Slot(
            index,
            _largest(lifetimes[i].nbytes for i in group),
            tuple(lifetimes[i].name for i in group),
        )
        for index, group in enumerate(groups)
    )
    return MemoryPlan(
        slot_of={name: slot.index for slot in slots for name in slot.values},
        slots=slots,
        peak_nbytes=_total(groups, nbytes),
        no_reuse_nbytes=sum(nbytes),
        lower_bound_nbytes=_most_alive(lifetimes, nbytes),
    )


def _check(lifetimes: Sequence[Lifetime], nbytes: Sequence[int]) -> None:
    seen = set()
    for value, size in zip(lifetimes, nbytes, strict=True):
        if value.name in seen:
            raise PlanError(f"value {value.name!r} has two lifetimes")
        if value.last < value.first:
            raise PlanError(
                f"value {value.name!r} is last touched at step {value.last}, before step "
                f"{value.first} writes it"
            )
        if size < 0:
            raise PlanError(f"value {value.name!r} has a size of {size} bytes ({value.nbytes})")
        seen.add(value.name)


def _by_size(
    lifetimes: Sequence[Lifetime], nbytes: Sequence[int], items: Iterable[int]
) -> list[list[int]]:
    """Largest first, each into the smallest slot (all are large enough) that is free then.

    Of equal ones, in the order given.
    """
    groups: list[list[int]] = []
    lives: list[list[tuple[int, int]]] = []
    for i in sorted(items, key=lambda i: -nbytes[i]):
        life = (lifetimes[i].first, lifetimes[i].last)
        for group, taken in zip(reversed(groups), reversed(lives), strict=True):
            place = bisect_left(taken, life)
            if place and taken[place - 1][1] >= life[0]:
                continue
            if place < len(taken) and taken[place][0] <= life[1]:
                continue
            group.append(i)
            insort(taken, life)
            break
        else:
            groups.append([i])
            lives.append([life])
    return groups


def _by_time(
    lifetimes: Sequence[Lifetime], nbytes: Sequence[int], items: Iterable[int]
) -> list[list[int]]:
    """In order of writing, each into the free slot that fits best, else that grows least."""
    groups: list[list[int]] = []
    sizes: list[int] = []
    ends: list[int] = []
    for i in sorted(items, key=lambda i: (lifetimes[i].first, -nbytes[i], i)):
        free = [g for g in range(len(groups)) if ends[g] < lifetimes[i].first]
        if free:
            best = min(free, key=lambda g: (sizes[g] < nbytes[i], abs(sizes[g] - nbytes[i])))
            groups[best].append(i)
        else:
            best = len(groups)
            groups.append([i])
            sizes.append(0)
            ends.append(0)
        sizes[best] = max(sizes[best], nbytes[i])
        ends[best] = lifetimes[i].last
    return groups


def _total(groups: Iterable[Sequence[int]], nbytes: Sequence[int]) -> int:
    return sum(max(nbytes[i] for i in group) for group in groups)


def _most_alive(lifetimes: Sequence[Lifetime], nbytes: Sequence[int]) -> int:
    change: dict[int, int] = {}
    for value, size in zip(lifetimes, nbytes, strict=True):
        change[value.first] = change.get(value.first, 0) + size
        change[value.last + 1] = change.get(value.last + 1, 0) - size
    alive = most = 0
    for step in sorted(change):
        alive += change[step]
        most = max(most, alive)
    return most


def _largest(sizes: Iterable[Dim]) -> tuple[Dim, ...]:
    """The sizes that may be the largest: those that no other is known to reach."""
    kept: list[Dim] = []
    for size in dict.fromkeys(sizes):
        if any(_reaches(other, size) for other in kept):
            continue
        kept = [other for other in kept if not _reaches(size, other)]
        kept.append(size)
    return tuple(kept)


def _reaches(a: Dim, b: Dim) -> bool:
    """Whether a >= b whatever the symbols."""
    lo, _ = dims.bounds(a - b)
    return lo is not None and lo >= 0
