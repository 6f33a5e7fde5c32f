"""erf, saturating casts and long sums against values known from elsewhere."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import onnx
import pytest

from cpu_fallback import numeric


def test_erf_has_the_precision_of_float64() -> None:
    x = np.concatenate([np.linspace(-7, 7, 4001), [1e-300, 0.46875, 4.0, 5.999, 30.0]])
    expected = np.array([math.erf(value) for value in x])
    np.testing.assert_allclose(numeric.erf(x), expected, rtol=1e-15)


def test_erf_of_special_values_keeps_type_and_shape() -> None:
    x = np.array([[np.inf, -np.inf, np.nan, -0.0]], np.float32)
    got = numeric.erf(x)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, [[1, -1, np.nan, 0]])
    assert np.signbit(got[0, 3])


def as_left_by_a_convolution(x: np.ndarray) -> np.ndarray:
    """`x` [N, C, ...] with its channels side by side in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((300001, 3), (0,)),
        ((2, 300001, 3), (1,)),
        ((30000, 2, 3, 2), (0, 2, 3)),
        ((1, 600, 500, 2), (-2, -3)),
        ((1, 2, 600, 500), (2, 3)),
        ((300001,), None),
    ],
)
@pytest.mark.parametrize("keepdims", [True, False])
def test_long_sums_are_precise(
    shape: tuple[int, ...], axes: tuple[int, ...] | None, keepdims: bool
) -> None:
    # one after the other, these add up to one thousandth more
    x = np.full(shape, 0.1, np.float32)
    want = x.astype(np.float64).sum(axis=axes, keepdims=keepdims)
    for laid in (x, as_left_by_a_convolution(x)) if x.ndim > 2 else (x,):
        got = numeric.sum_over(laid, axes, keepdims)
        assert got.dtype == np.float32 and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=2e-5)


@pytest.mark.parametrize("shape", [(0, 600), (600, 0), (600, 1), (1, 600), (512, 2), (515, 2)])
def test_sums_of_any_length(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape)).reshape(shape).astype(np.int32)
    for axes in ((0,), (1,), (0, 1), ()):
        for laid in (x, x[::-1], np.asfortranarray(x)):
            got = numeric.sum_over(laid, axes, False)
            np.testing.assert_array_equal(got, laid.sum(axis=axes))
            assert got.dtype == np.int32


def test_element_types_are_those_of_onnx() -> None:
    for number, dtype in numeric.ELEMENT_TYPES.items():
        assert onnx.helper.tensor_dtype_to_np_dtype(number) == dtype
    known = set(onnx.TensorProto.DataType.values())
    assert known - {0} == set(numeric.ELEMENT_TYPES)


def test_saturation_stops_at_the_ends_of_each_type() -> None:
    x = np.array([1e9, -1e9, 2.0, np.nan], np.float32)
    int4 = numeric.saturate(x, np.dtype(ml_dtypes.int4))
    assert int4.astype(int).tolist() == [7, -8, 2, 0]
    e5m2 = numeric.saturate(x, np.dtype(ml_dtypes.float8_e5m2)).astype(np.float32)
    np.testing.assert_array_equal(e5m2, [57344, -57344, 2, np.nan])
    int32 = numeric.saturate(np.array([1e12, -1e12], np.float32), np.dtype(np.int32))
    assert int32.tolist() == [2**31 - 1, -(2**31)]
