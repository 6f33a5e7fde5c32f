"""Quantisation and integer products: the node suite, NumPy integers, and what it leaves out."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cpu_fallback import registry
from cpu_fallback.quant import exact_matmul
from tests.cpu_fallback.node_cases import cases_of, failures
from tests.cpu_fallback.oracle import ort_node

OPS = (
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "ConvInteger",
    "QLinearMatMul",
    "QLinearConv",
)
RNG = np.random.default_rng(7)


def u8(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.integers(-128, 128, shape).astype(np.int8)


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.slow
def test_node_suite(op_type: str) -> None:
    assert failures(cases_of(op_type)) == {}


@pytest.mark.parametrize("peak", [3, 300, 40_000, 3_000_000])
def test_integer_products_are_exact_at_every_size(peak: int) -> None:
    a = RNG.integers(-peak, peak + 1, (2, 5, 37)).astype(np.int32)
    b = RNG.integers(-peak, peak + 1, (37, 3)).astype(np.int32)
    expected = (a.astype(object) @ b.astype(object)).astype(object)
    wrapped = np.vectorize(lambda v: (v + 2**31) % 2**32 - 2**31)(expected)
    np.testing.assert_array_equal(exact_matmul(a, b), wrapped.astype(np.int64))


def test_round_half_to_even_and_saturation() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e9, -1e9, np.inf, -np.inf], np.float32)
    scale, point = np.array(1.0, np.float32), np.array(10, np.int8)
    got = registry.run("QuantizeLinear", "", 28, {}, [x, scale, point], 1)[0]
    np.testing.assert_array_equal(got, np.array([10, 12, 12, 10, 8, 127, -128, 127, -128], np.int8))


def test_last_block_may_be_short_and_the_axis_negative() -> None:
    x = RNG.standard_normal((3, 7)).astype(np.float32)
    scale = RNG.uniform(0.1, 1, (3, 3)).astype(np.float32)
    attributes = {"axis": -1, "block_size": 3, "output_dtype": 22}
    got = registry.run("QuantizeLinear", "", 28, attributes, [x, scale], 1)[0]
    wide_scale = np.repeat(scale, 3, axis=1)[:, :7]
    assert got.dtype == ml_dtypes.int4
    expected = np.clip(np.rint(x / wide_scale), -8, 7)
    np.testing.assert_array_equal(got.astype(np.int32), expected)
    back = registry.run("DequantizeLinear", "", 28, {"axis": -1, "block_size": 3}, [got, scale], 1)[
        0
    ]
    np.testing.assert_allclose(back, expected.astype(np.float32) * wide_scale, rtol=1e-6)


def test_float8_saturates_only_when_asked() -> None:
    x, scale = np.array([1e6, -1e6, 1.0], np.float32), np.array(1.0, np.float32)
    point = np.zeros((), ml_dtypes.float8_e4m3fn)
    kept = registry.run("QuantizeLinear", "", 28, {"saturate": 0}, [x, scale, point], 1)[0]
    clipped = registry.run("QuantizeLinear", "", 28, {}, [x, scale, point], 1)[0]
    assert np.isnan(kept[:2].astype(np.float32)).all()
    np.testing.assert_array_equal(clipped.astype(np.float32), [448, -448, 1])


def test_int32_dequantises_without_wrapping() -> None:
    x = np.array([2**31 - 1, -(2**31)], np.int32)
    inputs = [x, np.array(1.0, np.float32), np.array(-5, np.int32)]
    got = registry.run("DequantizeLinear", "", 28, {}, inputs, 1)[0]
    np.testing.assert_allclose(got, [2147483652.0, -2147483643.0], rtol=1e-7)


def test_dynamic_quantize_of_zeros_has_scale_one() -> None:
    x = np.zeros((3, 4), np.float32)
    got = registry.run("DynamicQuantizeLinear", "", 11, {}, [x], 3)
    for mine, theirs in zip(got, ort_node("DynamicQuantizeLinear", [x], 3), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_zero_points_per_row_and_per_column() -> None:
    a, b, rows, columns = u8(4, 5), i8(5, 3), u8(4), i8(3)
    expected = (a.astype(int) - rows[:, None]) @ (b.astype(int) - columns)
    got = registry.run("MatMulInteger", "", 10, {}, [a, b, rows, columns], 1)[0]
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, expected)


CONV_ATTRIBUTES: list[dict[str, Any]] = [
    {},
    {"pads": [1, 0, 2, 1], "strides": [2, 1]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER"},
    {"dilations": [2, 1], "pads": [2, 2, 2, 2]},
]


@pytest.mark.parametrize("attributes", CONV_ATTRIBUTES)
def test_conv_integer_agrees_with_ort(attributes: dict[str, Any]) -> None:
    inputs = [u8(2, 4, 7, 8), u8(6, 2, 3, 2), np.array(100, np.uint8)]
    expected = ort_node("ConvInteger", inputs, 1, group=2, **attributes)[0]
    got = registry.run("ConvInteger", "", 10, {"group": 2, **attributes}, inputs, 1)[0]
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, expected)


def test_qlinear_conv_agrees_with_ort() -> None:
    scales = RNG.uniform(0.01, 0.02, 6).astype(np.float32)
    inputs = [
        u8(2, 4, 7, 8),
        np.array(0.02, np.float32),
        np.array(120, np.uint8),
        i8(6, 4, 3, 3),
        scales,
        np.zeros(6, np.int8),
        np.array(0.3, np.float32),
        np.array(128, np.uint8),
        RNG.integers(-500, 500, 6).astype(np.int32),
    ]
    expected = ort_node("QLinearConv", inputs, 1, pads=[1, 1, 1, 1])[0]
    got = registry.run("QLinearConv", "", 10, {"pads": [1, 1, 1, 1]}, inputs, 1)[0]
    difference = np.abs(got.astype(int) - expected.astype(int))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.01


@pytest.mark.parametrize(
    ("scale", "attributes", "reason"),
    [
        (np.ones(3, np.float32), {}, "scale of shape"),
        (np.ones((2, 3), np.float32), {"block_size": 3}, "blocks of 3"),
        (np.ones(4, np.float32), {"axis": 5}, "out of range"),
    ],
)
def test_scales_that_do_not_fit_are_refused(
    scale: np.ndarray[Any, Any], attributes: dict[str, int], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        registry.run("QuantizeLinear", "", 28, attributes, [np.ones((2, 4), np.float32), scale], 1)
