"""Softmax and its logarithm are told where they are written out, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from engine.passes.fuse_softmax import fuse_softmax
from tests.passes.graphs import Array, check_rewrite, check_untouched, run, typed

WEIGHTS: dict[str, Array] = {
    "last": np.array([-1]),
    "first": np.array([1]),
    "column": np.array([0, -1, 1]),
    "low": np.float32(-np.inf),
    "zero": np.float32(0),
}
DECLARED = ", int64[1] last, int64[1] first, int64[3] column, float low, float zero"


def text(body: str, shape: str = "n, 4, 5", declared: str = DECLARED, more: str = "") -> str:
    return f"f (float[{shape}] x{declared}) => (float[{shape}] y{more}) {{ {body} }}"


def rewrite(body: str, after: str, shape: str = "n, 4, 5") -> None:
    check_rewrite(fuse_softmax, text(body, shape), text(after, shape, ""), WEIGHTS)


def untouched(body: str, reason: str = "", more: str = "") -> None:
    check_untouched(fuse_softmax, text(body, more=more), WEIGHTS, reason)


TOP = "m = ReduceMax(x, {0})  d = Sub(x, m)  e = Exp(d)"


@pytest.mark.parametrize(("axes", "axis"), [("last", 2), ("first", 1)])
def test_softmax(axes: str, axis: int) -> None:
    body = f"{TOP.format(axes)}  s = ReduceSum(e, {axes})  y = Div(e, s)"
    rewrite(body, f"y = Softmax<axis = {axis}>(x)")


def test_its_logarithm() -> None:
    body = f"{TOP.format('last')}  s = ReduceSum(e, last)  l = Log(s)  y = Sub(d, l)"
    rewrite(body, "y = LogSoftmax<axis = 2>(x)")


def test_views_and_a_maximum_with_minus_infinity() -> None:
    body = """a = ReduceMax<keepdims = 0>(x, first)  b = Max(low, a)  m = Unsqueeze(b, first)
        d = Sub(x, m)  e = Exp(d)  r = ReduceSum<keepdims = 0>(e, first)  s = Unsqueeze(r, first)
        y = Div(e, s)"""
    rewrite(body, "y = Softmax<axis = 1>(x)", "n, 7")


def test_rows_of_minus_infinity_are_nan_in_both() -> None:
    body = f"{TOP.format('last')}  s = ReduceSum(e, last)  y = Div(e, s)"
    before = typed(text(body), WEIGHTS)
    x = np.array([[[-np.inf] * 5] * 3 + [[1, -np.inf, 2, 3, 4]]], np.float32)
    outputs = [run(g, {"x": x})[0] for g in (before, fuse_softmax(before).graph)]
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-6)
    assert np.isnan(outputs[1][0, 0]).all()


REST = "e = Exp(d)  s = ReduceSum(e, last)  y = Div(e, s)"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (f"m = ReduceMax(x, first)  d = Sub(x, m)  {REST}", ""),
        (f"m = ReduceMin(x, last)  d = Sub(x, m)  {REST}", ""),
        (f"m = ReduceMax(x, last)  d = Sub(m, x)  {REST}", ""),
        (f"a = ReduceMax(x, last)  m = Max(a, zero)  d = Sub(x, m)  {REST}", ""),
        (f"{TOP.format('last')}  s = ReduceSum(e, last)  y = Div(d, s)", "its sum divides nothing"),
        (f"{TOP.format('last')}  s = ReduceSum(e, last)  y = Mul(e, s)", "its sum divides nothing"),
    ],
)
def test_what_is_something_else(body: str, reason: str) -> None:
    untouched(body, reason)


def test_what_is_needed_besides() -> None:
    body = f"{TOP.format('last')}  s = ReduceSum(e, last)  y = Div(e, s)"
    untouched(body, "'e': it is an output of the graph", ", float[n, 4, 5] e")
