"""Casts to the type of another value become casts to that type."""

from __future__ import annotations

from engine.passes.cast_like import cast_like
from tests.passes.graphs import check_rewrite, check_untouched, typed


def test_like_an_input() -> None:
    result = check_rewrite(
        cast_like,
        "g (float[3] a, int32[2] b) => (int32[3] c) { x = Neg(a)  c = CastLike(x, b) }",
        "g (float[3] a, int32[2] b) => (int32[3] c) { x = Neg(a)  c = Cast<to = 6>(x) }",
    )
    assert "Cast to int32" in result.applied[0]


def test_like_a_computed_value_in_a_body() -> None:
    text = """g (bool c, float[2] a, float[2] d) => (float[2] b) {{
        x = Less(a, d)
        b = If(c) <
            then_branch = t () => (float[2] p) {{ {inside} }},
            else_branch = e () => (float[2] q) {{ q = Exp(a) }}
        > }}"""
    check_rewrite(
        cast_like,
        text.format(inside="y = Sqrt(a)  p = CastLike(x, y)"),
        text.format(inside="y = Sqrt(a)  p = Cast<to = 1>(x)"),
    )


def test_saturation_is_kept_for_float8_only() -> None:
    text = "g (float[3] a, {0}[2] b) => ({0}[3] c) {{ c = CastLike<saturate = 0>(a, b) }}"
    (cast,) = cast_like(typed(text.format("float8e4m3fn"))).graph.nodes
    assert cast.attrs == {"to": 17, "saturate": 0}
    (cast,) = cast_like(typed(text.format("double"))).graph.nodes
    assert cast.attrs == {"to": 11}


def test_other_nodes_stay() -> None:
    check_untouched(cast_like, "g (float[3] a) => (float[3] c) { c = Cast<to = 1>(a) }")
