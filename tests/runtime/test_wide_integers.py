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


def test_there_is_room_for_arithmetic_on_inputs_that_are_not_large() -> None:
    body = "two = Constant<value_int = 2>() a = Add(x, two) y = Sub(a, x)"
    with session(body, "int64[n] y, int64[n] a") as s:
        for value, device in (
            (2**28, "gpu"),
            (2**28 + 1, "cpu"),
            (2**31, "cpu"),
            (-(2**28), "gpu"),
        ):
            x = np.array([value, 0], np.int64)
            y, a = s.run(None, {"x": x})
            np.testing.assert_array_equal(a, x + 2)
            np.testing.assert_array_equal(y, [2, 2])
            assert {place for _, place in s.executed()} == {device}
        assert s.plans_made == 2


def test_an_input_that_only_the_host_reads_is_scanned_too() -> None:
    """Half of it fits, and twice that does not."""
    body = "two = Constant<value_int = 2>() h = Div(x, two) y = Add(h, h)"
    with session(body, "int64[n] y") as s:
        for value in (6, 2**31 + 2**30):
            x = np.array([value], np.int64)
            np.testing.assert_array_equal(s.run(None, {"x": x})[0], x)


def test_a_value_on_the_device_is_not_taken_to_be_small() -> None:
    with session("y = Neg(x)", "int64[n] y") as s:
        x = np.array([2**28], np.int64)
        (first,) = s.run(None, {"x": x}, outputs_on_device=["y"])
        assert isinstance(first, engine.DeviceValue)
        for fed in (first, first):
            (again,) = s.run(None, {"x": fed})
            np.testing.assert_array_equal(again, x)
