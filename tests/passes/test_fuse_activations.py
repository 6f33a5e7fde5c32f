"""Swish, HardSwish and Mish are told from their parts, and nothing else is taken for them."""

from __future__ import annotations

import pytest

from engine.passes.base import PassResult
from engine.passes.fuse_activations import fuse_activations
from tests.passes.graphs import check_rewrite, check_untouched, numbers

NUMBERS = {"zero": 0.0, "three": 3.0, "six": 6.0, "sixth": 1 / 6, "quick": 1.702}


def text(body: str, kind: str = "float", outputs: str = "") -> str:
    declared, _ = numbers(kind, NUMBERS)
    return f"f ({kind}[n, 3] x{declared}) => ({kind}[n, 3] y{outputs}) {{ {body} }}"


def rewrite(body: str, after: str, kind: str = "float", rtol: float = 1e-5) -> PassResult:
    _, arrays = numbers(kind, NUMBERS)
    return check_rewrite(
        fuse_activations, text(body, kind), text(after, kind), arrays, arrays, rtol
    )


def untouched(body: str, reason: str = "", outputs: str = "") -> None:
    _, arrays = numbers("float", NUMBERS)
    check_untouched(fuse_activations, text(body, outputs=outputs), arrays, reason)


FORMS = {
    "swish": ("t = Sigmoid(x)  y = Mul(x, t)", "Swish<alpha = 1.0>"),
    "swish reversed": ("t = Sigmoid(x)  y = Mul(t, x)", "Swish<alpha = 1.0>"),
    "hard sigmoid": (
        "t = HardSigmoid<alpha = 0.16666667, beta = 0.5>(x)  y = Mul(x, t)",
        "HardSwish",
    ),
    "clip, mul, div": (
        "u = Add(x, three)  t = Clip(u, zero, six)  p = Mul(x, t)  y = Div(p, six)",
        "HardSwish",
    ),
    "clip, div, mul": (
        "u = Add(three, x)  t = Clip(u, zero, six)  p = Div(t, six)  y = Mul(p, x)",
        "HardSwish",
    ),
    "clip, mul, mul": (
        "u = Add(x, three)  t = Clip(u, zero, six)  p = Mul(t, sixth)  y = Mul(x, p)",
        "HardSwish",
    ),
    "mish": ("s = Softplus(x)  t = Tanh(s)  y = Mul(x, t)", "Mish"),
}


@pytest.mark.parametrize(("body", "op"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("kind", ["float", "float16"])
def test_form(body: str, op: str, kind: str) -> None:
    rewrite(body, f"y = {op}(x)", kind, 1e-5 if kind == "float" else 5e-3)


def test_inside_a_body() -> None:
    branch = """h (bool c, float[3] x) => (float[3] b) {{
        b = If(c) <
            then_branch = u () => (float[3] y) {{ {} }},
            else_branch = e () => (float[3] q) {{ q = Neg(x) }}
        > }}"""
    check_rewrite(
        fuse_activations,
        branch.format("t = Sigmoid(x)  y = Mul(x, t)"),
        branch.format("y = Swish<alpha = 1.0>(x)"),
    )


OTHERS = {
    "gate": "g = Neg(x)  t = Sigmoid(g)  y = Mul(x, t)",
    "quick gelu": "u = Mul(x, quick)  t = Sigmoid(u)  y = Mul(x, t)",
    "plain sigmoid": "y = Sigmoid(x)",
    "default hard sigmoid": "t = HardSigmoid(x)  y = Mul(x, t)",
    "tanh": "t = Tanh(x)  y = Mul(x, t)",
    "mish of another x": "n = Neg(x)  s = Softplus(n)  t = Tanh(s)  y = Mul(x, t)",
    "relu6": "t = Clip(x, zero, six)  y = Mul(x, t)",
    "one bound": "u = Add(x, three)  t = Clip(u, zero)  p = Mul(x, t)  y = Div(p, six)",
}


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_something_else(body: str) -> None:
    untouched(body)


def test_no_division() -> None:
    untouched(
        "u = Add(x, three)  t = Clip(u, zero, six)  y = Mul(x, t)",
        "what follows is not 0.1666667*x*t alone",
    )


def test_value_inside_is_an_output() -> None:
    untouched(
        "s = Softplus(x)  t = Tanh(s)  y = Mul(x, t)", "Mish not recognised", ", float[n, 3] s"
    )
    untouched("t = Sigmoid(x)  y = Mul(x, t)", "", ", float[n, 3] t")
