"""Both forms of GELU are told in every order of their products and sums."""

from __future__ import annotations

import math

import pytest

from engine.passes.base import PassResult
from engine.passes.fuse_gelu import fuse_gelu
from tests.passes.graphs import check_rewrite, check_untouched, numbers

ROOT, SLOPE = math.sqrt(2), math.sqrt(2 / math.pi)
CONSTANTS = {
    "h": 0.5,
    "one": 1.0,
    "two": 2.0,
    "three": 3.0,
    "root": ROOT,
    "inv": 1 / ROOT,
    "k": 0.044715,
    "slope": SLOPE,
    "quick": 1.702,
}


def text(body: str, kind: str = "float", outputs: str = "") -> str:
    declared, _ = numbers(kind, CONSTANTS)
    return f"f ({kind}[n, 3] x{declared}) => ({kind}[n, 3] y{outputs}) {{ {body} }}"


def rewrite(body: str, after: str, kind: str = "float", rtol: float = 1e-5) -> PassResult:
    _, arrays = numbers(kind, CONSTANTS)
    return check_rewrite(fuse_gelu, text(body, kind), text(after, kind), arrays, arrays, rtol)


def untouched(body: str, reason: str = "", outputs: str = "") -> None:
    _, arrays = numbers("float", CONSTANTS)
    check_untouched(fuse_gelu, text(body, outputs=outputs), arrays, reason)


ARGUMENTS = {"div": "u = Div(x, root)", "mul": "u = Mul(inv, x)"}
PRODUCTS = {
    "(x*(1+t))*h": "p = Mul(x, s)  y = Mul(p, h)",
    "h*(x*(1+t))": "p = Mul(s, x)  y = Mul(h, p)",
    "(x*h)*(1+t)": "p = Mul(x, h)  y = Mul(p, s)",
    "x*((1+t)*h)": "p = Mul(s, h)  y = Mul(x, p)",
    "x*(1+t)/2": "p = Mul(x, s)  y = Div(p, two)",
    "x/2*(1+t)": "p = Div(x, two)  y = Mul(p, s)",
}
GELU = 'y = Gelu<approximate = "none">(x)'
ERF = "u = Div(x, root)  t = Erf(u)  s = Add(t, one)  "
WHOLE = ERF + "p = Mul(x, s)  y = Mul(p, h)"


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("argument", ARGUMENTS.values(), ids=ARGUMENTS)
def test_erf(argument: str, product: str) -> None:
    result = rewrite(f"{argument}  t = Erf(u)  s = Add(t, one)  {product}", GELU)
    assert len(result.graph.nodes[0].origin) == 5


def test_normal_distribution() -> None:
    """x * (0.5 + 0.5 * erf), and 0.5 * x + 0.5 * x * erf."""
    start = "u = Div(x, root)  t = Erf(u)  "
    rewrite(start + "p = Mul(h, t)  s = Add(h, p)  y = Mul(s, x)", GELU)
    rewrite(start + "q = Mul(x, h)  p = Mul(q, t)  y = Add(p, q)", GELU)


CUBES = {
    "pow": "c = Pow(x, three)  v = Mul(k, c)  u = Add(x, v)  w = Mul(u, slope)",
    "x*x*x": "q = Mul(x, x)  c = Mul(q, x)  v = Mul(c, k)  u = Add(v, x)  w = Mul(slope, u)",
    "factored": "q = Pow(x, two)  v = Mul(q, k)  i = Add(v, one)  c = Mul(x, slope)  w = Mul(c, i)",
}


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("cube", CUBES.values(), ids=CUBES)
def test_tanh(cube: str, product: str) -> None:
    rewrite(
        f"{cube}  t = Tanh(w)  s = Add(one, t)  {product}",
        'y = Gelu<approximate = "tanh">(x)',
    )


def test_float16_constants() -> None:
    rewrite(WHOLE, GELU, "float16", 5e-3)


def test_computed_x() -> None:
    """x may itself be a sum or a product."""
    start = "i = Mul(x, two)  z = Add(i, x)  "
    rewrite(start + WHOLE.replace("(x, ", "(z, "), start + 'y = Gelu<approximate = "none">(z)')


def test_more_factors_stay_outside() -> None:
    rewrite(
        ERF + "p = Mul(x, s)  i = Mul(p, h)  y = Mul(i, x)",
        'i = Gelu<approximate = "none">(x)  y = Mul(i, x)',
    )


def test_inside_value_is_an_output() -> None:
    untouched(WHOLE, "'u' inside of it is needed as it is: it is an output", ", float[n, 3] u")


def test_inside_value_is_read_elsewhere() -> None:
    untouched(
        ERF + "p = Mul(x, s)  z = Mul(p, h)  y = Add(z, u)",
        "'u' inside of it is needed as it is: Add 'y' reads it too",
    )


@pytest.mark.parametrize(
    "body",
    [
        ERF + "y = Mul(x, s)",
        ERF + "p = Mul(s, h)  y = Mul(p, p)",
        ERF + "w = Neg(x)  p = Mul(w, s)  y = Mul(p, h)",
        ERF + "y = Neg(s)",
    ],
    ids=["no half", "squared", "negated", "nothing"],
)
def test_erf_in_something_else(body: str) -> None:
    untouched(body, "what follows is not 0.5*x + 0.5*x*t alone")


def test_constants_that_are_off() -> None:
    _, arrays = numbers("float", {**CONSTANTS, "root": 1.414})
    check_untouched(fuse_gelu, text(WHOLE), arrays, "its argument is 0.7072136*x, not 0.7071068*x")


def test_constant_that_broadcasts() -> None:
    """[1, 1, 1] makes the result of three dims."""
    _, arrays = numbers("float", CONSTANTS)
    grown = text(WHOLE).replace("float h", "float[1, 1, 1] h").replace("[n, 3] y", "[1, n, 3] y")
    check_untouched(
        fuse_gelu, grown, {**arrays, "h": arrays["h"].reshape(1, 1, 1)}, "what follows is not"
    )


def test_factor_that_varies() -> None:
    declared, arrays = numbers("float", {k: v for k, v in CONSTANTS.items() if k != "h"})
    fed = f"f (float[n, 3] x{declared}, float h) => (float[n, 3] y) {{ {WHOLE} }}"
    check_untouched(fuse_gelu, fed, arrays, "what follows is not")


def test_quick_gelu_stays() -> None:
    untouched("u = Mul(x, quick)  t = Sigmoid(u)  y = Mul(x, t)")
