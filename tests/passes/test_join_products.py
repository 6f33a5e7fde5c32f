"""Products of rows of one value with the same constant become one."""

from __future__ import annotations

from engine.ir import Graph
from engine.passes.base import PassResult
from engine.passes.eliminate import eliminate
from engine.passes.join_products import join_products
from tests.passes.graphs import check_rewrite, check_untouched, random_weights


def joined(graph: Graph) -> PassResult:
    """The pass, and what it left over taken out."""
    result = join_products(graph)
    kept = eliminate(result.graph).graph if result.applied else result.graph
    return PassResult(kept, result.applied, result.near_misses)


GEMMS = """g (float[3, b, 4] x, float[5, 4] w, float[5] c)
    => (float[b, 5] p, float[b, 5] q, float[b, 5] r)
    <int64 i = {0}, int64 j = {2}, int64 k = {-2}> {
    xi = Gather(x, i)  xj = Gather(x, j)  xk = Gather(x, k)
    p = Gemm<transB = 1>(xi, w, c)  q = Gemm<transB = 1>(xj, w, c)
    r = Gemm<transB = 1>(xk, w, c) }"""


def test_steps_of_a_sequence() -> None:
    weights = random_weights(w=(5, 4), c=(5,))
    result = check_rewrite(
        joined,
        GEMMS,
        """g (float[3, b, 4] x, float[5, 4] w, float[5] c)
            => (float[b, 5] p, float[b, 5] q, float[b, 5] r)
            <int64[2] m = {-1, 4}, int64[3] s = {3, -1, 5},
             int64 i = {0}, int64 j = {2}, int64 k = {-2}> {
            f = Reshape(x, m)  g = Gemm<transB = 1>(f, w, c)  y = Reshape(g, s)
            p = Gather<axis = 0>(y, i)  q = Gather<axis = 0>(y, j)  r = Gather<axis = 0>(y, k) }""",
        weights,
        weights,
        b=2,
    )
    assert result.applied == ("3 products such as Gemm 'p' joined: they share 'w'",)
    product = next(n for n in result.graph.nodes if n.op_type == "Gemm")
    assert product.origin == ("Gemm(p)", "Gemm(q)", "Gemm(r)")


def test_any_axis_but_the_inner_one() -> None:
    text = """g (float[2, 3, 4] x, float[4, 5] w) => (float[2, 5] p, float[2, 2, 5] q)
        <int64 i = {0}, int64[2] j = {2, 1}> {
        xi = Gather<axis = AXIS>(x, i)  xj = Gather<axis = AXIS>(x, j)
        p = MatMul(xi, w)  q = MatMul(xj, w) }"""
    weights = random_weights(w=(4, 5))
    check_rewrite(
        joined,
        text.replace("AXIS", "-2"),
        """g (float[2, 3, 4] x, float[4, 5] w) => (float[2, 5] p, float[2, 2, 5] q)
            <int64 i = {0}, int64[2] j = {2, 1}> {
            y = MatMul(x, w)  p = Gather<axis = 1>(y, i)  q = Gather<axis = 1>(y, j) }""",
        weights,
        weights,
    )
    inner = """g (float[2, 4, 4] x, float[2, 5] w) => (float[2, 4, 5] p, float[2, 4, 5] q)
        <int64[2] i = {0, 1}, int64[2] j = {2, 3}> {
        xi = Gather<axis = 2>(x, i)  xj = Gather<axis = 2>(x, j)
        p = MatMul(xi, w)  q = MatMul(xj, w) }"""
    check_untouched(join_products, inner, random_weights(w=(2, 5)))


def test_rows_that_nobody_needs_are_not_multiplied() -> None:
    few = GEMMS.replace("float[3, b, 4]", "float[4, b, 4]").replace("{2}", "{3}")
    weights = random_weights(w=(5, 4), c=(5,))
    check_untouched(join_products, few, weights, "not joined: they use 3 of 4 rows")


def test_what_differs_from_row_to_row() -> None:
    """Other weights, a bias of more than one row, a turned operand."""
    for old, new, weights in (
        ("r = Gemm<transB = 1>(xk, w, c)", "r = Gemm<transB = 1>(xk, v, c)", {}),
        ("float[5] c", "float[2, 5] c", {"c": (2, 5)}),
        ("<transB = 1>", "<transA = 1, transB = 1>", {}),
    ):
        text = GEMMS.replace("float[5, 4] w,", "float[5, 4] w, float[5, 4] v,").replace(old, new)
        text = text.replace("[3, b, 4] x", "[3, 4, 4] x") if "transA" in new else text
        shapes = {"w": (5, 4), "v": (5, 4), "c": (5,), **weights}
        reason = "they use 2 of 3 rows" if "v, c" in new else ""
        check_untouched(join_products, text, random_weights(**shapes), reason)
