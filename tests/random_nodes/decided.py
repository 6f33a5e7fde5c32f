"""Operators whose results have sizes that data decide, and what computes with such sizes."""

from __future__ import annotations

import numpy as np

from tests.random_graphs import Array, Candidate, RandomGraph
from tests.random_nodes.makers import axis_of, maker, need


@maker
def nonzero(g: RandomGraph) -> Candidate:
    return Candidate("NonZero", [g.pick("fib", lambda a: a.ndim > 0, exact=True)])


@maker
def compress(g: RandomGraph) -> Candidate:
    x = g.pick("fi", lambda a: a.ndim > 0)
    axis = axis_of(g, g.array(x).ndim)
    size = g.array(x).shape[axis]
    fits = [n for n, k in g.known.items() if k.array.dtype == bool and k.array.shape == (size,)]
    chosen = g.one_of(fits) if fits and g.chance(0.7) else g.new(g.content("bool", (size,)), False)
    return Candidate("Compress", [x, chosen], {"axis": axis})


@maker
def unique(g: RandomGraph) -> Candidate:
    x = g.pick("fi", lambda a: a.size > 0, exact=True)
    return Candidate("Unique", [x], {"sorted": 1}, outputs=g.int(1, 4))


@maker
def counting(g: RandomGraph) -> Candidate:
    """Range up to a number that is computed, or as many as there are elements."""
    scalars = [
        n for n, k in g.known.items() if k.array.dtype == np.int64 and k.array.shape in ((), (1,))
    ]
    ends = [n for n in scalars if g.array(n).shape == () and 0 <= int(g.array(n)) < 20]
    need(bool(ends))
    return Candidate("Range", [g.constant(0), g.one_of(ends), g.constant(1)])


@maker
def shape_as_number(g: RandomGraph) -> Candidate:
    """Sizes as numbers to compute with."""
    shapes = [n for n, k in g.known.items() if n.startswith("t") and k.array.dtype == np.int64]
    need(bool(shapes))
    return Candidate("Cast", [g.one_of(shapes)], {"to": g.one_of([1, 6])})


@maker
def cut_to_size(g: RandomGraph) -> Candidate:
    """Slice up to a computed size."""
    ends = [n for n, k in g.known.items() if k.array.dtype == np.int64 and k.array.shape == (1,)]
    need(bool(ends))

    def fits(a: Array) -> bool:
        return a.ndim > 0

    x = g.pick("fi", fits)
    axis = axis_of(g, g.array(x).ndim)
    return Candidate("Slice", [x, g.constant([0]), g.one_of(ends), g.constant([axis])])


DECIDED = [nonzero, compress, unique, counting, shape_as_number, cut_to_size]
