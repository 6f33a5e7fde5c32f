"""What several operator families share: element types, ranges, saturating casts, sums, erf."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from cpu_fallback.registry import Tensor

ELEMENT_TYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.uint8),
    3: np.dtype(np.int8),
    4: np.dtype(np.uint16),
    5: np.dtype(np.int16),
    6: np.dtype(np.int32),
    7: np.dtype(np.int64),
    8: np.dtype(object),
    9: np.dtype(np.bool_),
    10: np.dtype(np.float16),
    11: np.dtype(np.float64),
    12: np.dtype(np.uint32),
    13: np.dtype(np.uint64),
    14: np.dtype(np.complex64),
    15: np.dtype(np.complex128),
    16: np.dtype(ml_dtypes.bfloat16),
    17: np.dtype(ml_dtypes.float8_e4m3fn),
    18: np.dtype(ml_dtypes.float8_e4m3fnuz),
    19: np.dtype(ml_dtypes.float8_e5m2),
    20: np.dtype(ml_dtypes.float8_e5m2fnuz),
    21: np.dtype(ml_dtypes.uint4),
    22: np.dtype(ml_dtypes.int4),
    23: np.dtype(ml_dtypes.float4_e2m1fn),
    24: np.dtype(ml_dtypes.float8_e8m0fnu),
    25: np.dtype(ml_dtypes.uint2),
    26: np.dtype(ml_dtypes.int2),
    27: np.dtype(ml_dtypes.float6_e2m3fn),
    28: np.dtype(ml_dtypes.float6_e3m2fn),
}
"""NumPy type of each TensorProto.DataType number."""

_add: Any = np.add
_float_info: Any = ml_dtypes.finfo
_integer_info: Any = ml_dtypes.iinfo
_PACKED_INTEGERS = frozenset({"int4", "uint4", "int2", "uint2"})


def element_type(number: int) -> np.dtype[Any]:
    """The NumPy type of a TensorProto.DataType number. Raises: ValueError if there is none."""
    if number not in ELEMENT_TYPES:
        raise ValueError(f"{number} is not a TensorProto.DataType with a tensor type")
    return ELEMENT_TYPES[number]


def positive_axis(axis: int, rank: int) -> int:
    """`axis` counted from the front. Raises: ValueError outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is outside [-{rank}, {rank})")
    return axis % rank


def distinct_axes(axes: Iterable[int], rank: int) -> list[int]:
    """Axes counted from the front. Raises: ValueError if one is outside or given twice."""
    given = [int(a) for a in axes]
    found = [positive_axis(axis, rank) for axis in given]
    if len(set(found)) < len(found):
        raise ValueError(f"axes {given} name one axis twice")
    return found


@cache
def is_integer(dtype: np.dtype[Any]) -> bool:
    """Whether `dtype` is an integer type, 4-bit and 2-bit ones included; bool is not."""
    return dtype.kind in "iu" or dtype.name in _PACKED_INTEGERS


def integer_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Least and greatest value of an integer type, 4-bit and 2-bit ones included."""
    info = _integer_info(dtype) if dtype.name in _PACKED_INTEGERS else np.iinfo(dtype)
    return int(info.min), int(info.max)


@cache
def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The float type to compute in: float64 for float64, else float32."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def saturate(x: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """Cast to `dtype`, values outside its range to its nearest end; NaN stays NaN in floats,
    and becomes 0 in integers."""
    if x.dtype.kind not in "iufb":
        x = x.astype(np.float32)
    if is_integer(dtype):
        low, high = integer_range(dtype)
        if x.dtype.kind == "f":
            unknown = np.isnan(x)
            if unknown.any():
                x = np.where(unknown, x.dtype.type(0), x)
        if high < 2**24:
            return np.clip(x, low, high).astype(np.int32).astype(dtype)
        with np.errstate(invalid="ignore"):
            result = x.astype(dtype)
        result = np.where(x >= high, np.array(high, dtype), result)
        return np.where(x <= low, np.array(low, dtype), result)
    info = _float_info(dtype)
    return np.clip(x, float(info.min), float(info.max)).astype(dtype)


_MANY = 512
"""Additions one after the other from which on their errors are avoided."""


def sum_over(x: Tensor, axes: tuple[int, ...] | None, keepdims: bool = True) -> Any:
    """Sum of `x` over `axes` (None: all), in its own type.

    NumPy adds elements that are neighbours in pairs, all others one after the other: many of these
    are added in two steps, as errors grow with their number. Equal columns have equal sums, which a
    saturated softmax would tell apart; BLAS does not grant that.
    """
    if x.size >= _MANY:
        step, apart = x.itemsize, []
        for axis in reversed(range(x.ndim) if axes is None else [a % x.ndim for a in axes]):
            if x.strides[axis] == step:
                step *= x.shape[axis]
            else:
                apart.append(axis)
        if math.prod(x.shape[a] for a in apart) >= _MANY:
            for axis in reversed(apart):
                x = _sum_along(x, axis)
    return _add.reduce(x, axis=axes, keepdims=keepdims, dtype=x.dtype)


def _sum_along(x: Tensor, axis: int) -> Tensor:
    """The sum along one axis, which stays; in two steps if it is long."""
    lead, count = (slice(None),) * axis, x.shape[axis]
    if count >= _MANY:
        length = math.isqrt(count)
        whole = count // length * length
        shape = (*x.shape[:axis], whole // length, length, *x.shape[axis + 1 :])
        parts = x[(*lead, slice(whole))].reshape(shape)
        rest = x[(*lead, slice(whole, None))]
        x = _add.reduce(parts, axis=axis, dtype=x.dtype)
        x[(*lead, slice(count - whole))] += rest
    return np.asarray(_add.reduce(x, axis=axis, keepdims=True, dtype=x.dtype))


def mean_over(x: Tensor, axes: tuple[int, ...] | None, keepdims: bool = True) -> Any:
    """Mean of floats `x` over `axes` (None: all), in their own type; NaN of nothing."""
    total = sum_over(x, axes, keepdims)
    return total / x.dtype.type(x.size // total.size if total.size else 0)


_ERF_SMALL = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2,
     3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2,
     1.28261652607737228e3, 2.84423683343917062e3),
)  # fmt: skip
_ERFC_MIDDLE = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594,
     6.61191906371416295e1, 2.98635138197400131e2, 8.81952221241769090e2,
     1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2,
     1.62138957456669019e3, 3.29079923573345963e3, 4.36261909014324716e3,
     3.43936767414372164e3, 1.23033935480374942e3),
)  # fmt: skip
_ERFC_LARGE = (
    (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1,
     1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4),
    (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1,
     6.05183413124413191e-2, 2.33520497626869185e-3),
)  # fmt: skip


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Tensor) -> Tensor:
    top, bottom = coefficients
    numerator = np.full_like(x, top[0])
    for value in top[1:]:
        numerator = numerator * x + value
    denominator = np.full_like(x, bottom[0])
    for value in bottom[1:]:
        denominator = denominator * x + value
    return np.asarray(numerator / denominator)


def erf(x: Tensor) -> Tensor:
    """Error function, same shape and float type, to the precision of float64.

    Source: Cody, Rational Chebyshev approximation for the error function (1969).
    """
    values = np.asarray(x, dtype=np.float64).ravel()
    size = np.abs(values)
    result = np.where(np.isnan(values), np.nan, 1.0)
    small = size <= 0.46875
    result[small] = size[small] * _ratio(_ERF_SMALL, size[small] ** 2)
    middle = (size > 0.46875) & (size <= 4.0)
    y = size[middle]
    result[middle] = 1.0 - np.exp(-y * y) * _ratio(_ERFC_MIDDLE, y)
    large = (size > 4.0) & (size < 6.0)
    y = size[large]
    tail = 1.0 / (y * y)
    rest = (1.0 / np.sqrt(np.pi) - tail * _ratio(_ERFC_LARGE, tail)) / y
    result[large] = 1.0 - np.exp(-y * y) * rest
    return np.copysign(result, values).astype(x.dtype).reshape(x.shape)
