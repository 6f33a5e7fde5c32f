"""The quantised com.microsoft operators against ONNX Runtime, at most one level apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpu_fallback import registry
from tests.cpu_fallback.oracle import ort_node

MS = "com.microsoft"
RNG = np.random.default_rng(31)


def u8(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def q(scale: float, point: int, dtype: Any = np.uint8) -> list[Any]:
    return [np.array(scale, np.float32), np.array(point, dtype)]


POOL = {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}
CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("QLinearAdd", [u8(3, 1, 5), *q(0.02, 7), u8(4, 1), *q(0.03, 120), *q(0.05, 60)], {}),
    ("QLinearAdd", [i8(3, 5), *q(0.02, -7, np.int8), i8(3, 5), *q(0.03, 3, np.int8),
                    *q(0.043, 0, np.int8)], {}),
    ("QLinearMul", [u8(3, 5), *q(0.02, 7), u8(5), *q(0.03, 120), *q(0.03, 60)], {}),
    ("QLinearSigmoid", [u8(3, 40), *q(0.05, 120), *q(1 / 256, 0)], {}),
    ("QLinearLeakyRelu", [i8(3, 40), *q(0.05, 3, np.int8), *q(0.03, -20, np.int8)],
     {"alpha": 0.2}),
    ("QLinearSoftmax", [u8(3, 4, 5), *q(0.05, 120), *q(1 / 256, 0)], {"opset": 13, "axis": 1}),
    ("QLinearSoftmax", [u8(3, 4, 5), *q(0.05, 120), *q(1 / 256, 0)], {"opset": 11, "axis": 1}),
    ("QLinearGlobalAveragePool", [u8(2, 3, 5, 7), *q(0.05, 120), *q(0.01, 100)], {}),
    ("QLinearGlobalAveragePool", [u8(2, 5, 7, 3), *q(0.05, 120), *q(0.01, 100)],
     {"channels_last": 1}),
    ("QLinearAveragePool", [u8(2, 3, 7, 8), *q(0.05, 120), *q(0.04, 100)], POOL),
    ("QLinearAveragePool", [u8(2, 3, 7, 8), *q(0.05, 120), *q(0.04, 100)],
     POOL | {"count_include_pad": 1}),
    ("QLinearConcat", [*q(0.04, 100), u8(2, 3), *q(0.05, 120), u8(2, 4), *q(0.02, 10)],
     {"axis": 1}),
    ("QLinearConv", [u8(2, 4, 7, 8), *q(0.02, 120), u8(6, 4, 3, 3), *q(0.01, 110), *q(0.3, 100)],
     {"strides": [2, 1]}),
    ("QLinearConv", [u8(2, 7, 8, 4), *q(0.02, 120), i8(6, 2, 3, 3), *q(0.01, 0, np.int8),
                     *q(0.2, 100), RNG.integers(-900, 900, 6).astype(np.int32)],
     {"channels_last": 1, "group": 2, "pads": [1, 1, 1, 1]}),
    ("QLinearWhere", [RNG.random((3, 5)) < 0.5, u8(3, 5), *q(0.02, 7), u8(3, 5), *q(0.03, 99),
                      *q(0.03, 60)], {}),
    ("QGemm", [u8(4, 6), *q(0.02, 100), i8(6, 5), *q(0.03, 2, np.int8)], {"alpha": 0.5}),
    ("QGemm", [u8(4, 6), *q(0.02, 100), i8(5, 6), *q(0.03, 2, np.int8),
               RNG.integers(-900, 900, 5).astype(np.int32), *q(0.1, 128)], {"transB": 1}),
]  # fmt: skip


@pytest.mark.parametrize(
    "index", range(len(CASES)), ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)]
)
def test_agrees_with_ort(index: int) -> None:
    op_type, inputs, attributes = CASES[index]
    expected = ort_node(op_type, inputs, 1, domain=MS, **attributes)[0]
    got = registry.run(op_type, MS, 1, attributes, inputs, 1)[0]
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if got.dtype == np.float32:
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
        return
    difference = np.abs(got.astype(int) - expected.astype(int))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.1
    assert np.unique(got).size > 3


@pytest.mark.parametrize("dtype", [np.uint16, np.int16])
def test_sixteen_bit_quantisation_and_back(dtype: Any) -> None:
    x = RNG.standard_normal((3, 7)).astype(np.float32)
    point = np.array(1000, dtype)
    scale = np.array(0.001, np.float32)
    for op_type in ("QuantizeLinear", "DequantizeLinear"):
        inputs = [x, scale, point]
        expected = ort_node(op_type, inputs, 1, domain=MS)[0]
        x = registry.run(op_type, MS, 1, {}, inputs, 1)[0]
        np.testing.assert_array_equal(x, expected)
