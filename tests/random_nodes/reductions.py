"""Reductions, selections along an axis, normalisations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.random_graphs import Array, Candidate, RandomGraph
from tests.random_nodes.makers import axis_of, maker, span

REDUCTIONS = (
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare "
    "ReduceLogSumExp"
).split()


@maker
def reduce(g: RandomGraph) -> Candidate:
    op = g.one_of(REDUCTIONS)
    kinds = "ffi" if op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd") else "f"
    x = g.pick(kinds, lambda a: a.size > 0 and (op != "ReduceLogSumExp" or span(a) < 20))
    rank = g.array(x).ndim
    keep = {"keepdims": g.int(0, 1)}
    if g.chance(0.2) or rank == 0:
        return Candidate(op, [x], {**keep, "noop_with_empty_axes": g.int(0, 1)})
    axes = g.rng.permutation(rank)[: g.int(1, rank)]
    axes = [int(a) - (rank if g.chance(0.3) else 0) for a in axes]
    names = [x, g.constant(axes)]
    return Candidate(op, names, keep, keeps=op in ("ReduceSum", "ReduceMax", "ReduceMin"))


@maker
def arg(g: RandomGraph) -> Candidate:
    x = g.pick("fi", lambda a: a.ndim > 0 and a.size > 0, exact=True)
    attrs = {"axis": axis_of(g, g.array(x).ndim), "keepdims": g.int(0, 1)}
    attrs["select_last_index"] = g.int(0, 1)
    return Candidate(g.one_of(["ArgMax", "ArgMin"]), [x], attrs, steady=False)


@maker
def top_k(g: RandomGraph) -> Candidate:
    x = g.pick("f", lambda a: a.ndim > 0 and a.size > 0, exact=True)
    axis = axis_of(g, g.array(x).ndim)
    count = g.constant([g.int(1, g.array(x).shape[axis])])
    return Candidate("TopK", [x, count], {"axis": axis, "largest": g.int(0, 1)}, 2, steady=False)


@maker
def cumulative(g: RandomGraph) -> Candidate:
    x = g.pick("ffi", lambda a: a.ndim > 0)
    axis = g.constant(axis_of(g, g.array(x).ndim))
    return Candidate("CumSum", [x, axis], {"exclusive": g.int(0, 1), "reverse": g.int(0, 1)})


@maker
def softmax(g: RandomGraph) -> Candidate:
    x = g.pick("f", lambda a: a.ndim > 0 and span(a) < 30)
    op = g.one_of(["Softmax", "LogSoftmax"])
    return Candidate(op, [x], {"axis": axis_of(g, g.array(x).ndim)}, keeps=False)


def _varies(axes: tuple[int, ...]) -> Callable[[Array], bool]:
    def fits(a: Array) -> bool:
        if a.ndim <= max(axes) or a.size == 0:
            return False
        return bool(np.var(a, axis=axes).min() > 0.05)

    return fits


@maker
def normalise(g: RandomGraph) -> Candidate:
    if g.chance(0.5):
        x = g.pick("f", lambda a: a.ndim > 0 and _varies((a.ndim - 1,))(a))
        size = g.array(x).shape[-1]
        scale = g.new(g.content("float32", (size,)))
        names = [x, scale, *([g.new(g.content("float32", (size,)))] if g.chance(0.6) else [])]
        return Candidate("LayerNormalization", names, {"axis": -1}, keeps=False)
    x = g.pick("f", lambda a: a.ndim in (3, 4) and _varies(tuple(range(2, a.ndim)))(a))
    channels = (g.array(x).shape[1],)
    pair = [g.new(g.content("float32", channels)) for _ in range(2)]
    if g.chance(0.5):
        return Candidate("InstanceNormalization", [x, *pair], keeps=False)
    mean = g.new(g.content("float32", channels), True)
    variance = g.new(np.abs(g.content("float32", channels)) + np.float32(0.5), True)
    return Candidate("BatchNormalization", [x, *pair, mean, variance], keeps=False)
