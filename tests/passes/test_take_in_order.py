"""GatherND with ids that count up becomes a view."""

from __future__ import annotations

import pytest

from engine.ir import Graph
from engine.passes.base import PassResult
from engine.passes.eliminate import eliminate
from engine.passes.take_in_order import take_in_order
from tests.passes.graphs import check_rewrite, check_untouched


def taken(graph: Graph) -> PassResult:
    """The pass, and what it left over taken out."""
    result = take_in_order(graph)
    kept = eliminate(result.graph).graph if result.applied else result.graph
    return PassResult(kept, result.applied, result.near_misses)


GRID = """g (float[b, s] x) => (float[b, 1, 1, s] y)
    <int64 zero = {0}, int64 one = {1}, int64[4] sb = {-1, 1, 1, 1}, int64[1] last = {-1}> {
    sizes = Shape(x)
    nb = Shape<start = 0, end = 1>(x)  n = Squeeze(nb)  i = Range(zero, n, one)
    ns = Shape<start = 1, end = 2>(x)  m = Squeeze(ns)  j = Range(zero, m, one)
    rows = Reshape(i, sb)
    both = Add(rows, j)  grid = Shape(both)
    rows_e = Expand(rows, grid)  columns_e = Expand(j, grid)
    p = Unsqueeze(rows_e, last)  q = Unsqueeze(columns_e, last)
    ids = Concat<axis = -1>(p, q)
    y = GatherND(x, ids) }"""


@pytest.mark.parametrize("sizes", [{"b": 3, "s": 4}, {"b": 1, "s": 1}, {"b": 4, "s": 4}])
def test_a_grid_of_all_ids(sizes: dict[str, int]) -> None:
    check_rewrite(
        taken,
        GRID,
        """g (float[b, s] x) => (float[b, 1, 1, s] y) <int64[2] a = {1, 2}> {
            y = Unsqueeze(x, a) }""",
        rtol=0,
        **sizes,
    )


def test_rows_in_order() -> None:
    check_rewrite(
        taken,
        """g (float[3, 5] x) => (float[3, 5] y) <int64[3, 1] ids = {0, 1, 2}> {
            y = GatherND(x, ids) }""",
        "g (float[3, 5] x) => (float[3, 5] y) { y = Identity(x) }",
        rtol=0,
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("zero = {0}", "zero = {1}", ""),
        ("one = {1}", "one = {2}", ""),
        ("(zero, m, one)", "(zero, n, one)", "to less or more"),
        ("axis = -1>(p, q)", "axis = -1>(q, p)", "to less or more"),
        ("columns_e = Expand(j, grid)", "t = Add(j, one) columns_e = Expand(t, grid)", ""),
        ("GatherND(x, ids)", "GatherND<batch_dims = 1>(x, z)", ""),
    ],
)
def test_other_ids(old: str, new: str, reason: str) -> None:
    text = GRID.replace(old, new)
    if "batch_dims" in new:
        text = text.replace("(float[b, s] x)", "(float[b, s] x, int64[b, s, 1] z)")
        text = text.replace("float[b, 1, 1, s] y", "float[b, s] y")
    assert text != GRID
    check_untouched(take_in_order, text, {}, reason)


@pytest.mark.parametrize(
    ("ids", "reason"),
    [("{0, 0, 0, 1, 1, 0, 1, 1}", ""), ("{0, 0, 1, 0, 0, 1, 1, 1}", "in another order")],
)
def test_constant_grids(ids: str, reason: str) -> None:
    text = f"""g (float[2, 2] x) => (float[2, 2] y) <int64[2, 2, 2] ids = {ids}> {{
        y = GatherND(x, ids) }}"""
    if reason:
        check_untouched(take_in_order, text, {}, reason)
    else:
        after = "g (float[2, 2] x) => (float[2, 2] y) { y = Identity(x) }"
        check_rewrite(taken, text, after, rtol=0)


def test_elements_that_are_taken_twice() -> None:
    text = """g (float[2] x) => (float[2, 3] y) <int64[2, 3, 1] ids = {0, 0, 0, 1, 1, 1}> {
        y = GatherND(x, ids) }"""
    check_untouched(take_in_order, text, {}, "more than once")
