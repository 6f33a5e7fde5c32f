"""int64 values that int32 does not hold: the nodes concerned run on the CPU, and stay right."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import engine

pytestmark = pytest.mark.gpu


def session(body: str, outputs: str) -> engine.InferenceSession:
    text = f'<ir_version: 10, opset_import: ["" : 21]> f (int64[n] x) => ({outputs}) {{ {body} }}'
    return engine.InferenceSession(onnx.parser.parse_model(text), device="gpu")


def test_a_wide_input_makes_another_plan_and_the_narrow_one_is_kept() -> None:
    body = "lo = Constant<value_int = 0>() m = Max(x, lo) y = Min(m, x)"
    with session(body, "int64[n] y") as s:
        for values in ([3, -4], [2**40, -(2**50)], [7, 8], [2**35, 1]):
            x = np.array(values, np.int64)
            (y,) = s.run(None, {"x": x})
            np.testing.assert_array_equal(y, np.minimum(np.maximum(x, 0), x))
        assert s.plans_made == 2


def test_what_could_overflow_is_refused_with_the_reason() -> None:
    with session("y = Mul(x, x)", "int64[n] y") as s:
        x = np.array([2**20, -5], np.int64)
        np.testing.assert_array_equal(s.run(None, {"x": x})[0], x * x)
        (row,) = s.explain().nodes
        assert row.device == "cpu" and "exceed the int32 range" in row.reason


def test_a_value_made_on_the_host_is_checked_when_it_is_uploaded() -> None:
    body = "k = Unique(x) y = Neg(k)"
    with session(body, "int64[m] y") as s:
        for values in ([5, 5, -1], [2**33, 2, 2]):
            x = np.array(values, np.int64)
            np.testing.assert_array_equal(s.run(None, {"x": x})[0], -np.unique(x))
