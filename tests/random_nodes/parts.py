"""Nodes for graphs full of what is joined and cut: most of it lies within other values' buffers."""

from __future__ import annotations

from tests.random_graphs import Candidate, RandomGraph
from tests.random_nodes.elementwise import arithmetic, smooth
from tests.random_nodes.makers import Maker, axis_of, need
from tests.random_nodes.movement import gather, reshape, slicing, split, transpose


def convolved(g: RandomGraph) -> Candidate:
    """A Conv that keeps the map's sizes, so that maps can be joined."""
    x = g.pick("f", lambda a: a.ndim in (3, 4) and a.size > 0)
    shape = g.array(x).shape
    kernel = [g.one_of([1, 3]) for _ in shape[2:]]
    weights = (g.one_of([1, 3, 4, 8]), shape[1], *kernel)
    names = [x, g.new(g.content("float32", weights), constant=True)]
    return Candidate("Conv", names, {"pads": [k // 2 for k in kernel] * 2})


def sliced(g: RandomGraph) -> Candidate:
    """A Slice of step 1 that leaves something."""
    x = g.pick("fib", lambda a: a.size > 0)
    shape = g.array(x).shape
    axis = axis_of(g, len(shape)) % len(shape)
    start = g.int(0, shape[axis] - 1)
    bounds = ([start], [g.int(start + 1, shape[axis])], [axis])
    return Candidate("Slice", [x, *(g.constant(b) for b in bounds)])


def picked(g: RandomGraph) -> Candidate:
    """A Gather of one index that is known."""
    x = g.pick("fib", lambda a: a.size > 0)
    shape = g.array(x).shape
    axis = axis_of(g, len(shape))
    index = g.int(-shape[axis], shape[axis] - 1)
    index = [index] if g.chance(0.5) else index
    return Candidate("Gather", [x, g.constant(index)], {"axis": axis})


def joined(g: RandomGraph) -> Candidate:
    """A Concat of what nodes made, now and then of one value twice, or with a new one."""
    names = [n for n in g.made if g.array(n).ndim]
    need(bool(names))
    first = g.one_of(names[-6:])
    array = g.array(first)
    axis = axis_of(g, array.ndim)
    at = axis % array.ndim

    def rest(name: str) -> tuple[object, ...]:
        found = g.array(name)
        return found.dtype, found.ndim, found.shape[:at], found.shape[at + 1 :]

    others = [n for n in names if rest(n) == rest(first) and (n != first or g.chance(0.1))]
    g.rng.shuffle(others)
    chosen = [first, *others[: g.int(0, 4)]]
    if len(chosen) < 2 or g.chance(0.15):
        shape = tuple(g.size() if i == at else s for i, s in enumerate(array.shape))
        chosen.append(g.new(g.content(str(array.dtype), shape)))
    g.rng.shuffle(chosen)
    return Candidate("Concat", chosen, {"axis": axis})


PARTS: list[Maker] = [
    *(joined, joined, joined, split, sliced, sliced, picked, slicing),
    *(smooth, smooth, arithmetic, arithmetic, convolved, convolved, transpose, reshape, gather),
]
