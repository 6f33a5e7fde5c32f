"""Decomposed normalisations become LayerNormalization and RMSNormalization, in all common forms."""

from __future__ import annotations

import numpy as np
import pytest

from engine.ir import Graph
from engine.passes.base import PassResult
from engine.passes.cse import cse
from engine.passes.fuse_layernorm import fuse_layernorm
from tests.passes.graphs import (
    Array,
    Weights,
    check_equal,
    check_rewrite,
    check_same_results,
    check_untouched,
    parse,
    typed,
)

CONSTANTS = (
    "<int64[1] a = {-1}, float e = {0.00001}, float two = {2}, float one = {1}, "
    "float half = {0.5}, float minus = {-0.5}>"
)


def affine(*shape: int, dtype: str = "float32") -> dict[str, Array]:
    chance = np.random.default_rng(3)
    draw = {k: chance.standard_normal(shape).astype(dtype) for k in ("g", "b")}
    return {**draw, "g": draw["g"] + 2}


def text(body: str, kind: str = "float", extra: str = "", shape: str = "[n, 5, 8]") -> str:
    inputs = f"{kind}{shape} x, {kind}[8] g, {kind}[8] b{extra}"
    return f"h ({inputs}) => ({kind}{shape} y) {CONSTANTS} {{ {body} }}"


def fused(body: str, **more: str) -> str:
    return text(body, **more).replace(CONSTANTS, "")


MEAN = "m = ReduceMean(x, a)  d = Sub(x, m)"
SQUARES = {"pow": "q = Pow(d, two)", "mul": "q = Mul(d, d)"}
ROOTS = {
    "div": "s = Sqrt(w)  n = Div(d, s)",
    "reciprocal": "s = Sqrt(w)  r = Reciprocal(s)  n = Mul(d, r)",
    "one over": "s = Sqrt(w)  r = Div(one, s)  n = Mul(r, d)",
    "pow 0.5": "s = Pow(w, half)  n = Div(d, s)",
    "pow -0.5": "r = Pow(w, minus)  n = Mul(d, r)",
}
ENDS = {
    "mul, add": "t = Mul(n, g)  y = Add(t, b)",
    "reversed": "t = Mul(g, n)  y = Add(b, t)",
}
LAYER = "y = LayerNormalization<axis = -1, epsilon = 1e-05, stash_type = 1>(x, g, b)"
RMS = "y = RMSNormalization<axis = -1, epsilon = 1e-05, stash_type = 1>(x, g)"


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("root", ROOTS.values(), ids=ROOTS)
@pytest.mark.parametrize("square", SQUARES.values(), ids=SQUARES)
def test_layer_norm(square: str, root: str, end: str) -> None:
    body = f"{MEAN}  {square}  v = ReduceMean(q, a)  w = Add(v, e)  {root}  {end}"
    weights = affine(8)
    result = check_rewrite(fuse_layernorm, text(body), fused(LAYER), weights, weights)
    assert len(result.applied) == 1
    (node,) = result.graph.nodes
    assert node.origin[0] == "ReduceMean(m)" and node.origin[-1] == "Add(y)"


@pytest.mark.parametrize("root", ROOTS.values(), ids=ROOTS)
@pytest.mark.parametrize("square", SQUARES.values(), ids=SQUARES)
def test_rms_norm(square: str, root: str) -> None:
    steps = f"{square}  v = ReduceMean(q, a)  w = Add(e, v)  {root}".replace("d", "x")
    steps = steps.replace("Axx", "Add").replace("Rexuce", "Reduce").replace("Xiv", "Div")
    body = f"{steps}  y = Mul(n, g)"
    weights = affine(8)
    check_rewrite(fuse_layernorm, text(body), fused(RMS), weights, weights)


def test_scale_in_front_of_the_product() -> None:
    body = """q = Mul(x, x)  v = ReduceMean(q, a)  w = Add(v, e)  s = Sqrt(w)  r = Reciprocal(s)
        t = Mul(r, g)  y = Mul(x, t)"""
    weights = affine(8)
    check_rewrite(fuse_layernorm, text(body), fused(RMS), weights, weights)


TENSORFLOW = """m = ReduceMean(x, a)  d = Sub(x, m)  q = Mul(d, d)  v = ReduceMean(q, a)
    w = Add(v, e)  s = Sqrt(w)  r = Reciprocal(s)  """


def test_tensorflow() -> None:
    body = TENSORFLOW + "t = Mul(r, g)  p = Mul(x, t)  o = Mul(m, t)  u = Sub(b, o)  y = Add(p, u)"
    weights = affine(8)
    check_rewrite(fuse_layernorm, text(body), fused(LAYER), weights, weights)


def test_tensorflow_without_scale() -> None:
    body = TENSORFLOW + "p = Mul(x, r)  o = Mul(m, r)  y = Sub(p, o)"
    ones = {"g": np.ones(8, np.float32), "b": np.zeros(8, np.float32)}
    check_rewrite(fuse_layernorm, text(body), fused(LAYER.replace(", b)", ")")), ones, ones)


@pytest.mark.parametrize("end", ["y = Mul(k, g)", "y = Add(k, g)"])
def test_what_follows_a_bias_stays_behind(end: str) -> None:
    """`(n + b) * g` is not `n * g + b`."""
    body = TENSORFLOW + f"p = Mul(x, r)  o = Mul(m, r)  u = Sub(b, o)  k = Add(p, u)  {end}"
    start = typed(text(body), affine(8))
    result = fuse_layernorm(start)
    assert [n.op_type for n in result.graph.nodes] == ["LayerNormalization", end[4:7]]
    check_same_results(start, result.graph)


CORE = f"{MEAN}  q = Mul(d, d)  v = ReduceMean(q, a)  w = Add(v, e)  s = Sqrt(w)  "


def test_no_affine_part() -> None:
    ones = {"g": np.ones(8, np.float32), "b": np.zeros(8, np.float32)}
    check_rewrite(
        fuse_layernorm,
        text(CORE + "y = Div(d, s)"),
        fused(LAYER.replace(", b)", ")")),
        ones,
        ones,
    )


def test_scale_that_varies() -> None:
    """A scale need not be constant, if it has the right shape."""
    check_rewrite(
        fuse_layernorm, text(CORE + "n = Div(d, s)  t = Mul(n, g)  y = Add(t, b)"), fused(LAYER)
    )


def test_scale_of_more_dims() -> None:
    weights = affine(1, 1, 8)
    body = text(CORE + "n = Div(d, s)  t = Mul(n, g)  y = Add(t, b)").replace("[8]", "[1, 1, 8]")
    flat = {k: w.reshape(8) for k, w in weights.items()}
    check_rewrite(fuse_layernorm, body, fused(LAYER), weights, flat)


def test_scalar_scale() -> None:
    body = text(CORE + "n = Div(d, s)  y = Mul(n, two)")
    ones = {"g": np.full(8, 2, np.float32), "b": np.zeros(8, np.float32)}
    check_rewrite(fuse_layernorm, body, fused(LAYER.replace(", b)", ")")), ones, ones)


def test_scale_of_another_shape_stays_behind() -> None:
    """[5, 1] scales rows, which are not normalised."""
    weights = affine(5, 1)
    body = text(CORE + "n = Div(d, s)  t = Mul(n, g)  y = Add(t, b)").replace("[8]", "[5, 1]")
    result = fuse_layernorm(typed(body, weights))
    assert [n.op_type for n in result.graph.nodes] == ["LayerNormalization", "Mul", "Add"]
    check_same_results(typed(body, weights), result.graph)


def test_scale_that_adds_an_axis_stays_behind() -> None:
    """Of [5, 8] and [1, 1, 8] the product is [1, 5, 8], which no normalisation of [5, 8] is."""
    weights = affine(1, 1, 8)
    for body, left in (
        ("n = Div(d, s)  t = Mul(n, g)  y = Add(t, b)", ["LayerNormalization", "Mul", "Add"]),
        ("n = Div(d, s)  y = Add(n, b)", ["LayerNormalization", "Add"]),
    ):
        start = text(CORE + body).replace("[8]", "[1, 1, 8]").replace("[n, 5, 8] x", "[5, 8] x")
        start = start.replace("[n, 5, 8] y", "[1, 5, 8] y")
        result = fuse_layernorm(typed(start, weights))
        assert [n.op_type for n in result.graph.nodes] == left
        check_same_results(typed(start, weights), result.graph)


def test_casts_that_narrow_stay() -> None:
    """They round, and overflow."""
    body = "f = Cast<to = 10>(x)  small = Cast<to = 10>(e)  "
    body += CORE.replace("x", "f").replace("(v, e)", "(v, small)")
    body += "n = Div(d, s)  y = Cast<to = 1>(n)"
    result = fuse_layernorm(typed(text(body), affine(8)))
    assert [n.op_type for n in result.graph.nodes] == ["Cast", "LayerNormalization", "Cast"]


def test_two_trailing_axes() -> None:
    weights = affine(5, 8)
    body = text(CORE + "n = Div(d, s)  t = Mul(n, g)  y = Add(t, b)")
    body = body.replace("int64[1] a = {-1}", "int64[2] a = {1, -1}").replace("[8]", "[5, 8]")
    after = fused(LAYER.replace("axis = -1", "axis = -2")).replace("[8]", "[5, 8]")
    check_rewrite(fuse_layernorm, body, after, weights, weights)


def test_deviation_computed_twice() -> None:
    """PyTorch's var and x - mean share nothing; cse comes first."""
    body = """m = ReduceMean(x, a)  d = Sub(x, m)  k = ReduceMean(x, a)  c = Sub(x, k)
        q = Mul(c, c)  v = ReduceMean(q, a)  w = Add(v, e)  s = Sqrt(w)  n = Div(d, s)
        t = Mul(n, g)  y = Add(t, b)"""

    def both(graph: Graph) -> PassResult:
        return fuse_layernorm(cse(graph).graph)

    weights = affine(8)
    check_rewrite(both, text(body), fused(LAYER), weights, weights)


HALF = affine(8, dtype="float16")


def check_half(body: str, after: str, weights: Weights = HALF) -> None:
    """float16 inside and out: fusing is more exact, so the results agree only to about 1e-3."""
    start = typed(text(body, "float16"), weights)
    result = fuse_layernorm(start)
    check_equal(result.graph, parse(fused(after, kind="float16"), weights))
    check_same_results(start, result.graph, 5e-3)


def test_casts_around_the_square() -> None:
    check_half(
        f"""{MEAN}  f = Cast<to = 1>(d)  q = Mul(f, f)  v = ReduceMean(q, a)  w = Add(v, e)
        s = Sqrt(w)  r = Cast<to = 10>(s)  n = Div(d, r)  t = Mul(n, g)  y = Add(t, b)""",
        LAYER,
    )


def test_casts_around_everything() -> None:
    check_half(
        """f = Cast<to = 1>(x)  q = Mul(f, f)  v = ReduceMean(q, a)  w = Add(v, e)  s = Sqrt(w)
        r = Reciprocal(s)  n = Mul(f, r)  c = Cast<to = 10>(n)  y = Mul(g, c)""",
        RMS,
    )


def test_casts_around_layer_norm() -> None:
    check_half(
        """f = Cast<to = 1>(x)  m = ReduceMean(f, a)  d = Sub(f, m)  q = Mul(d, d)
        v = ReduceMean(q, a)  w = Add(v, e)  s = Sqrt(w)  n = Div(d, s)  c = Cast<to = 10>(n)
        t = Mul(c, g)  y = Add(t, b)""",
        LAYER,
    )


def test_middle_axis_stays() -> None:
    body = text(CORE + "y = Div(d, s)").replace("int64[1] a = {-1}", "int64[1] a = {1}")
    check_untouched(fuse_layernorm, body, affine(8), "which are not the last ones")


def test_root_read_elsewhere() -> None:
    body = text(CORE + "n = Div(d, s)  z = Mul(n, g)  y = Add(z, s)")
    check_untouched(fuse_layernorm, body, affine(8), "'s' inside of it is needed as it is: Add 'y'")


def test_mean_is_an_output() -> None:
    body = text(CORE + "y = Div(d, s)").replace("8] y)", "8] y, float[n, 5, 1] m)")
    check_untouched(fuse_layernorm, body, affine(8), "'m' inside of it is needed as it is")


def test_deviation_read_elsewhere() -> None:
    body = text(CORE + "n = Div(d, s)  t = Mul(n, g)  y = Add(t, d)")
    check_untouched(fuse_layernorm, body, affine(8), "'d' inside of it is needed as it is: Add 'y'")


def test_mean_over_other_axes_is_no_layer_norm() -> None:
    """What is left is the root mean square of some other difference."""
    body = text(
        """i = Identity(x)  m = ReduceMean(x, z)  d = Sub(x, m)  q = Mul(d, d)
        v = ReduceMean(q, a)  w = Add(v, e)  s = Sqrt(w)  n = Div(d, s)  y = Mul(n, g)""",
    ).replace("<int64[1] a", "<int64[1] z = {1}, int64[1] a")
    result = fuse_layernorm(typed(body, affine(8)))
    assert "RMSNormalization" in [n.op_type for n in result.graph.nodes]
    check_same_results(typed(body, affine(8)), result.graph)


def test_float64_stays() -> None:
    body = text(CORE + "y = Div(d, s)", "double").replace("float e", "double e")
    check_untouched(fuse_layernorm, body, affine(8, dtype="float64"), "computed in float32")


@pytest.mark.parametrize(
    "body",
    [
        CORE.replace("Add(v, e)", "Add(v, g)") + "y = Div(d, s)",
        CORE.replace("Mul(d, d)", "Mul(d, x)") + "y = Div(d, s)",
        CORE.replace("Pow", "Abs") + "y = Div(x, s)",
        CORE.replace("ReduceMean(q, a)", "ReduceSum(q, a)") + "y = Div(d, s)",
        CORE + "y = Div(s, d)",
        CORE + "y = Mul(d, s)",
    ],
    ids=["epsilon", "square", "numerator", "sum", "upside down", "product"],
)
def test_something_else(body: str) -> None:
    check_untouched(fuse_layernorm, text(body), affine(8))
