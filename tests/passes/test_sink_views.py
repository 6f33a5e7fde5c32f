"""Transposes and views move behind elementwise nodes that read nothing else in their order."""

from __future__ import annotations

import pytest

from engine.passes import run_passes
from engine.passes.sink_views import sink_views
from tests.passes.graphs import check_equal, check_rewrite, check_untouched, typed


def test_single_numbers_do_not_mind() -> None:
    result = check_rewrite(
        sink_views,
        """g (float[n, 3, 4] x) => (float[4, n, 3] y) <float h = {0.5}, float[1, 1] s = {3.0}> {
            t = Transpose<perm = [2, 0, 1]>(x)  a = Mul(t, h)  b = Relu(a)  y = Sub(s, b) }""",
        """g (float[n, 3, 4] x) => (float[4, n, 3] y) <float h = {0.5}, float[1, 1] s = {3.0}> {
            a = Mul(x, h)  b = Relu(a)  c = Sub(s, b)  y = Transpose<perm = [2, 0, 1]>(c) }""",
        n=2,
    )
    assert [n.origin for n in result.graph.nodes][-1] == ("Transpose(t)",)


def test_views_move_too() -> None:
    check_rewrite(
        sink_views,
        """g (float[n, 6] x) => (float[n, 2, 3] y)
            <float h = {0.5}, int64[3] r = {0, 2, 3}, int64[1] a = {1}> {
            v = Reshape(x, r)  m = Mul(v, h)  u = Unsqueeze(m, a)  e = Exp(u)
            y = Squeeze(e, a) }""",
        """g (float[n, 6] x) => (float[n, 2, 3] y)
            <float h = {0.5}, int64[3] r = {0, 2, 3}, int64[1] a = {1}> {
            m = Mul(x, h)  e = Exp(m)  v = Reshape(e, r)  u = Unsqueeze(v, a)
            y = Squeeze(u, a) }""",
        n=2,
    )


def test_two_equal_ones_become_one() -> None:
    check_rewrite(
        sink_views,
        """g (float[2, 3, 4] x, float[1, 3, 4] z) => (float[4, 2, 3] y) {
            t = Transpose<perm = [2, 0, 1]>(x)  e = Exp(z)
            u = Transpose<perm = [2, 0, 1]>(e)  y = Div(u, t) }""",
        """g (float[2, 3, 4] x, float[1, 3, 4] z) => (float[4, 2, 3] y) {
            e = Exp(z)  d = Div(e, x)  y = Transpose<perm = [2, 0, 1]>(d) }""",
    )


def test_two_equal_views_become_one() -> None:
    check_rewrite(
        sink_views,
        """g (float[n, 6] x, float[n, 6] z) => (float[n, 2, 3] y) <int64[3] r = {0, 2, 3}> {
            v = Reshape(x, r)  e = Exp(z)  u = Reshape(e, r)  y = Add(v, u) }""",
        """g (float[n, 6] x, float[n, 6] z) => (float[n, 2, 3] y) <int64[3] r = {0, 2, 3}> {
            e = Exp(z)  d = Add(x, e)  y = Reshape(d, r) }""",
        n=2,
    )


@pytest.mark.parametrize("other", ["float[1, 6] z", "float[n, 6, 1] z"])
def test_views_of_other_shapes_stay(other: str) -> None:
    text = f"""g (float[n, 6] x, {other}) => (float[n, 2, 3] y) <int64[3] r = {{-1, 2, 3}}> {{
        v = Reshape(x, r)  u = Reshape(z, r)  y = Add(v, u) }}"""
    check_untouched(sink_views, text)


def test_what_it_is_moved_to_cancels_it() -> None:
    text = """g (float[2, 3, 4] x) => (float[2, 3, 4] y) {
        t = Transpose<perm = [0, 2, 1]>(x)  r = Relu(t)  y = Transpose<perm = [0, 2, 1]>(r) }"""
    assert [n.op_type for n in run_passes(typed(text)).graph.nodes] == ["Relu"]


def test_constants_are_turned() -> None:
    check_rewrite(
        sink_views,
        """g (float[2, n, 3] x) => (float[3, 2, n] y)
            <float[3, 1, 1] s = {1, 2, 3}, float[2, 1] c = {4, 5}> {
            t = Transpose<perm = [2, 0, 1]>(x)  a = Div(s, t)  y = Sub(a, c) }""",
        """g (float[2, n, 3] x) => (float[3, 2, n] y)
            <float[1, 1, 3] s = {1, 2, 3}, float[2, 1, 1] c = {4, 5}> {
            a = Div(s, x)  b = Sub(a, c)  y = Transpose<perm = [2, 0, 1]>(b) }""",
        n=4,
    )


@pytest.mark.parametrize(
    ("keepdims", "axes", "shape", "turned", "perm"),
    [
        (1, "{0, -2}", "1, 2, 1, n", "{2, 3}", [3, 0, 2, 1]),
        (0, "{0, -2}", "2, n", "{2, 3}", [0, 1]),
        (0, "{1}", "5, 3, n", "{0}", [2, 1, 0]),
        (0, "{2, 1}", "5, n", "{0, 2}", [1, 0]),
    ],
)
def test_less_is_turned_behind_a_reduction(
    keepdims: int, axes: str, shape: str, turned: str, perm: list[int]
) -> None:
    count = axes.count(",") + 1
    check_rewrite(
        sink_views,
        f"""g (float[2, n, 3, 5] x) => (float[{shape}] y) <int64[{count}] a = {axes}> {{
            t = Transpose<perm = [3, 0, 2, 1]>(x)  y = ReduceMax<keepdims = {keepdims}>(t, a) }}""",
        f"""g (float[2, n, 3, 5] x) => (float[{shape}] y) <int64[{count}] a = {turned}> {{
            r = ReduceMax<keepdims = {keepdims}>(x, a)  y = Transpose<perm = {perm}>(r) }}""",
        n=4,
    )


@pytest.mark.parametrize(
    "body",
    [
        "t = Transpose(x)  y = Add(t, w)",
        "t = Transpose(x)  r = Relu(t)  y = Add(r, t)",
        "t = Transpose(x)  y = Softmax<axis = 0>(t)",
        "t = Transpose(x)  u = Transpose<perm = [0, 1]>(x)  y = Add(t, u)",
        "t = Transpose(x)  y = Relu(t)  z = Neg(t)",
    ],
)
def test_it_stays_where_order_matters(body: str) -> None:
    check_untouched(
        sink_views,
        f"g (float[3, 3] x, float[3] w) => (float[3, 3] y) {{ {body} }}".replace(
            "(float[3, 3] y)",
            "(float[3, 3] y, float[3, 3] z)" if "z =" in body else "(float[3, 3] y)",
        ),
    )


def test_what_it_would_not_turn_stays() -> None:
    """Axes that are not said, and constants that make more of what they meet."""
    start = "g (float[2, 3] x) => (float[p, q, r] y) <float[2, 1, 1] big = {1, 2}> {"
    check_untouched(sink_views, f"{start} t = Transpose(x)  y = Add(t, big) }}")
    check_untouched(
        sink_views, "g (float[2, 3] x) => (float[1, 1] y) { t = Transpose(x)  y = ReduceSum(t) }"
    )


QUANTISED = """g (uint8[2, 3, 4] x) => (float[4, 2, 3] y) <{scale}, {zero}> {{ {body} }}"""


def test_one_scale_for_all_does_not_mind() -> None:
    one = {"scale": "float s = {0.5}", "zero": "uint8 z = {7}"}
    before = "t = Transpose<perm = [2, 0, 1]>(x)  y = DequantizeLinear(t, s, z)"
    after = "d = DequantizeLinear(x, s, z)  y = Transpose<perm = [2, 0, 1]>(d)"
    check_equal(
        sink_views(typed(QUANTISED.format(**one, body=before))).graph,
        typed(QUANTISED.format(**one, body=after)),
    )


def test_scales_of_an_axis_do() -> None:
    check_untouched(
        sink_views,
        QUANTISED.format(
            scale="float[2] s = {0.5, 0.25}",
            zero="uint8[2] z = {7, 9}",
            body="t = Transpose<perm = [2, 0, 1]>(x)  y = DequantizeLinear<axis = 1>(t, s, z)",
        ),
    )
