"""Equal things are computed once; random ones, and those that only look alike, are not merged."""

from __future__ import annotations

import numpy as np

from engine.passes.cse import cse
from engine.passes.eliminate import eliminate
from tests.passes.graphs import check_rewrite, check_untouched, random_weights, typed


def test_equal_nodes() -> None:
    result = check_rewrite(
        cse,
        """g (float[3] a) => (float[3] b) {
            x = Exp(a)  y = Exp(a)  z = Neg(y)  w = Neg(x)  b = Add(z, w) }""",
        "g (float[3] a) => (float[3] b) { x = Exp(a)  z = Neg(x)  b = Add(z, z) }",
    )
    assert len(result.applied) == 2
    origins = {n.op_type: n.origin for n in result.graph.nodes}
    assert origins["Exp"] == ("Exp(x)", "Exp(y)")


def test_commutative_operands() -> None:
    check_rewrite(
        cse,
        """g (float[3] a, float[3] c) => (float[3] b) {
            x = Mul(a, c)  y = Mul(c, a)  b = Sub(x, y) }""",
        "g (float[3] a, float[3] c) => (float[3] b) { x = Mul(a, c)  b = Sub(x, x) }",
    )


def test_different_nodes() -> None:
    check_untouched(
        cse,
        """g (float[3] a, float[3] c) => (float[3] b) {
            x = Sub(a, c)  y = Sub(c, a)  p = LeakyRelu<alpha = 0.1>(x)
            q = LeakyRelu<alpha = 0.2>(x)  r = Sum(p, q, y)  b = Neg(r) }""",
    )


def test_random_operators() -> None:
    check_untouched(
        cse,
        """g () => (float[3] b) {
            x = RandomNormal<shape = [3]>()  y = RandomNormal<shape = [3]>()  b = Sub(x, y) }""",
    )


def test_random_like_and_bernoulli() -> None:
    check_untouched(
        cse,
        """g (float[3] a) => (float[3] b) {
            x = Bernoulli(a)  y = Bernoulli(a)  p = RandomUniformLike(a)
            q = RandomUniformLike(a)  b = Sum(x, y, p, q) }""",
    )


def test_equal_constants() -> None:
    result = check_rewrite(
        cse,
        """g (float[2] a) => (float[2] b) <float[2] u = {1, 2}, float[2] v = {1, 2}> {
            x = Mul(a, u)  y = Mul(a, v)  b = Sub(x, y) }""",
        "g (float[2] a) => (float[2] b) <float[2] u = {1, 2}> { x = Mul(a, u)  b = Sub(x, x) }",
    )
    assert "v" not in result.graph.values


def test_constants_that_differ() -> None:
    """In type, in shape, in the sign of zero, or past the part that is compared first."""
    big = np.zeros(10_000, np.float32)
    other = big.copy()
    other[-1] = 1
    check_untouched(
        cse,
        """g (float[1] a, float[10000] big, float[10000] other) => (float[1, 10000] b)
            <float[1] u = {0}, float[1] v = {-0.0}, float[1, 1] w = {0}> {
            b = Sum(a, u, v, w, big, other) }""",
        {"big": big, "other": other},
    )


def test_large_equal_constants() -> None:
    weights = random_weights(u=(10_000,))
    result = cse(
        typed(
            """g (float[1] a, float[10000] u, float[10000] v) => (float[10000] b) {
                x = Add(a, u)  y = Mul(x, v)  b = Neg(y) }""",
            {**weights, "v": weights["u"].copy()},
        )
    )
    assert result.applied == ("constants of the same content as 'u' merged into it: 'v'",)


def test_input_with_default_stays_one() -> None:
    """Its constant holds where it is not fed; the name must stay in any case."""
    check_untouched(
        cse,
        """g (float[2] a, float[2] u = {1, 2}) => (float[2] b) <float[2] v = {1, 2}> {
            x = Mul(a, u)  y = Mul(a, v)  b = Sub(x, y) }""",
    )


def test_output_takes_over_its_name() -> None:
    check_rewrite(
        cse,
        "g (float[2] a) => (float[2] b, float[2] y) { x = Exp(a)  y = Exp(a)  b = Neg(x) }",
        "g (float[2] a) => (float[2] b, float[2] y) { y = Exp(a)  b = Neg(y) }",
    )


def test_two_outputs() -> None:
    check_rewrite(
        cse,
        "g (float[2] a) => (float[2] x, float[2] y) { x = Exp(a)  y = Exp(a) }",
        "g (float[2] a) => (float[2] x, float[2] y) { x = Exp(a)  y = Identity(x) }",
    )


def test_several_outputs() -> None:
    check_rewrite(
        cse,
        """g (float[4] a) => (float[2] b, float[2] c) <int64[1] k = {2}> {
            v, i = TopK(a, k)  w, j = TopK(a, k)  b = Sub(v, w)  c = Neg(w) }""",
        """g (float[4] a) => (float[2] b, float[2] c) <int64[1] k = {2}> {
            v, i = TopK(a, k)  b = Sub(v, v)  c = Neg(v) }""",
    )


IF = """g (bool c, float[2] a) => (float[2] b) {{
    {before}
    b = If(c) <
        then_branch = t () => (float[2] p) {{ {inside} }},
        else_branch = e () => (float[2] q) {{ q = Sin({other}) }}
    > }}"""


def test_captured_value_is_merged() -> None:
    result = check_rewrite(
        cse,
        IF.format(before="x = Exp(a)  y = Exp(a)", inside="p = Sub(x, y)", other="y"),
        IF.format(before="x = Exp(a)", inside="p = Sub(x, x)", other="x"),
    )
    (node,) = (n for n in result.graph.nodes if n.op_type == "If")
    assert node.captures == ("x",)
    assert all(body.captures == ("x",) for body in node.bodies.values())


def test_inside_a_body() -> None:
    check_rewrite(
        cse,
        IF.format(before="", inside="x = Exp(a)  y = Exp(a)  p = Sub(x, y)", other="a"),
        IF.format(before="", inside="x = Exp(a)  p = Sub(x, x)", other="a"),
    )


def test_value_captured_two_levels_down() -> None:
    text = """g (bool c, float[2] a) => (float[2] b) {{
        {before}
        b = If(c) <
            then_branch = t () => (float[2] p) {{
                p = If(c) <
                    then_branch = i () => (float[2] r) {{ {inside} }},
                    else_branch = j () => (float[2] s) {{ s = Neg(a) }}
                > }},
            else_branch = e () => (float[2] q) {{ q = Sin(a) }}
        > }}"""
    result = check_rewrite(
        cse,
        text.format(before="x = Exp(a)  y = Exp(a)", inside="z = Mul(x, y)  r = Add(z, y)"),
        text.format(before="x = Exp(a)", inside="z = Mul(x, x)  r = Add(z, x)"),
    )
    captures = {n.key: set(n.captures) for _, n in result.graph.walk() if n.bodies}
    assert captures == {"b": {"x", "a", "c"}, "p": {"x", "a"}}


def test_same_node_in_two_branches_stays() -> None:
    check_untouched(cse, IF.format(before="", inside="p = Sin(a)", other="a"))


def test_result_has_no_dead_rest() -> None:
    text = "g (float[2] a) => (float[2] b) { x = Exp(a)  y = Exp(a)  b = Add(x, y) }"
    merged = cse(typed(text)).graph
    assert eliminate(merged).graph is merged
