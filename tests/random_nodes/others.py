"""Blocks, triangles, selections whose size data decide, Einsum, PRelu."""

from __future__ import annotations

from tests.random_graphs import Candidate, RandomGraph
from tests.random_nodes.makers import axis_of, maker


@maker
def blocks(g: RandomGraph) -> Candidate:
    if g.chance(0.5):
        x = g.pick(
            "f", lambda a: a.ndim == 4 and a.shape[1] % 4 == 0 and a.size > 0, lambda: (1, 4, 2, 3)
        )
        mode = g.one_of(["DCR", "CRD"])
        return Candidate("DepthToSpace", [x], {"blocksize": 2, "mode": mode})
    x = g.pick(
        "f",
        lambda a: a.ndim == 4 and a.shape[2] % 2 == a.shape[3] % 2 == 0 and a.size > 0,
        lambda: (2, 3, 2, 4),
    )
    return Candidate("SpaceToDepth", [x], {"blocksize": 2})


@maker
def triangle(g: RandomGraph) -> Candidate:
    x = g.pick("fi", lambda a: a.ndim >= 2)
    names = [x, g.constant(g.int(-2, 2))] if g.chance(0.6) else [x]
    return Candidate("Trilu", names, {"upper": g.int(0, 1)})


@maker
def selected(g: RandomGraph) -> Candidate:
    if g.chance(0.5):
        return Candidate("NonZero", [g.pick("fib", lambda a: a.ndim > 0, exact=True)], steady=False)
    x = g.pick("fi", lambda a: a.ndim > 0)
    axis = axis_of(g, g.array(x).ndim)
    size = g.array(x).shape[axis]
    return Candidate("Compress", [x, g.new(g.content("bool", (size,)))], {"axis": axis})


@maker
def contraction(g: RandomGraph) -> Candidate:
    a = g.pick("f", lambda a: a.ndim == 2, lambda: g.shape(2))
    k = g.array(a).shape[1]
    b = g.new(g.content("float32", (k, g.int(1, 4))))
    return Candidate(
        "Einsum", [a, b], {"equation": g.one_of(["ij,jk->ik", "ij,jk->ki", "ij,jk->j"])}
    )


@maker
def prelu(g: RandomGraph) -> Candidate:
    x = g.pick("f", lambda a: a.ndim > 0)
    tail = g.array(x).shape[-g.int(1, g.array(x).ndim) :]
    return Candidate("PRelu", [x, g.new(g.content("float32", tail))])
