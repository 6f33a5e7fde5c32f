"""Reach: how a kernel finds the elements of a part, and when the quicker way is right."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from engine.dims import Dim, Guard, at_least, divisible
from engine.indexing import Place
from engine.records import dataclass
from engine.shader import Placed, Tensor


@dataclass(frozen=True)
class Reach:
    """One way of reaching the elements of a part.

    Attributes:
        place: where they lie, as far as this way looks.
        size: how many there are.
        placed: what accessors are written for; None: those of any value will do.
        when: guards under which it is right.
    """

    place: Place
    size: Dim
    placed: Placed | None
    when: tuple[Guard, ...] = ()

    def words(self, tensor: Tensor) -> Mapping[str, Dim]:
        """The words of Params that the accessors of a tensor read."""
        known = {"begin": self.place.begin, "size": self.size}
        for k, (row, gap) in enumerate(self.place.runs):
            known[f"row{k}"], known[f"gap{k}"] = row, gap
        return {name: known[name.rpartition("_")[2]] for name, _ in tensor.params}


@lru_cache(maxsize=1 << 10)
def reach(place: Place, size: Dim, guarded: bool) -> Reach:
    """How to reach a part.

    Args:
        place, size: of the part.
        guarded: whether it need only be right under guards: where the part is in one piece, and
            four neighbours are always together. Without, it is right at all sizes.
    """
    when: list[Guard] = []

    def holds(guard: Guard) -> bool:
        if guard.known is None and guarded:
            when.append(guard)
            return True
        return guard.known is True

    runs = tuple(run for run in place.runs if not holds(at_least(run[0], size)))
    by_four = [divisible(d, 4) for d in (place.begin, size, *(d for run in runs for d in run))]
    fours = all(g.known is not False for g in by_four) and all(map(holds, by_four))
    if fours and place.begin == 0 and not runs:
        return Reach(Place(), size, None, tuple(when))
    placed = Placed(place.begin != 0, len(runs), fours)
    return Reach(Place(place.begin, runs), size, placed, tuple(when))
