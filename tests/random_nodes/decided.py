"""Operators whose results have sizes that data decide, and what computes with such sizes."""

from __future__ import annotations

import numpy as np

from tests.random_graphs import Candidate, RandomGraph
from tests.random_nodes.elementwise import arithmetic, smooth
from tests.random_nodes.makers import Maker, axis_of, need
from tests.random_nodes.movement import concat, gather, shape_of, split, transpose
from tests.random_nodes.others import selected


def unique(g: RandomGraph) -> Candidate:
    x = g.pick("fi", lambda a: a.size > 0, exact=True)
    return Candidate("Unique", [x], {"sorted": 1}, outputs=g.int(1, 4))


def counting(g: RandomGraph) -> Candidate:
    """Range up to a number that is computed."""
    scalars = [n for n, k in g.known.items() if k.array.dtype == np.int64 and k.array.shape == ()]
    ends = [n for n in scalars if 0 <= int(g.array(n)) < 20]
    need(bool(ends))
    return Candidate("Range", [g.constant(0), g.one_of(ends), g.constant(1)])


def shape_as_number(g: RandomGraph) -> Candidate:
    """Sizes as numbers to compute with."""
    shapes = [n for n, k in g.known.items() if n.startswith("t") and k.array.dtype == np.int64]
    need(bool(shapes))
    return Candidate("Cast", [g.one_of(shapes)], {"to": g.one_of([1, 6])})


def cut_to_size(g: RandomGraph) -> Candidate:
    """Slice up to a computed size."""
    ends = [n for n, k in g.known.items() if k.array.dtype == np.int64 and k.array.shape == (1,)]
    need(bool(ends))
    x = g.pick("fi", lambda a: a.ndim > 0)
    axis = axis_of(g, g.array(x).ndim)
    return Candidate("Slice", [x, g.constant([0]), g.one_of(ends), g.constant([axis])])


DECIDED: list[Maker] = [
    *(selected, selected, selected, unique, counting, shape_as_number, cut_to_size),
    *(shape_of, shape_of, gather, split, concat, transpose),
    *(smooth, smooth, arithmetic, arithmetic),
]
