"""Resize in NumPy: one axis after the other, each by gathering taps and weighing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from cpu_fallback.numeric import distinct_axes, integer_range, is_integer, wide
from cpu_fallback.registry import Tensor, cpu_op
from cpu_fallback.sweeps import taken

_MATRIX_SIZE = 512
COORDINATE_MODES = frozenset(
    {
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_crop_and_resize",
    }
)


@dataclass(frozen=True)
class Axis:
    """One resized axis: `size` elements become `out`, by a factor of `scale`.

    `width` is the output size before rounding; `roi` the part of the input, from 0 to 1.
    """

    axis: int
    size: int
    out: int
    scale: Fraction
    width: Fraction
    roi: tuple[float, float] = (0.0, 1.0)


@cpu_op("Resize", since=11)
def resize(
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    """`x` (any rank and type; numbers unless nearest) sampled at other sizes, linear or cubic in
    every resized axis, or by its nearest element.

    Integers are computed in float32, rounded half to even and saturated.
    Raises: ValueError for attributes or sizes outside the specification. Source: ONNX Resize-19.
    """
    if coordinate_transformation_mode not in COORDINATE_MODES:
        raise ValueError(f"unknown coordinate mode {coordinate_transformation_mode!r}")
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    plan = resized_axes(
        x.shape, roi if crop else None, scales, sizes, axes, keep_aspect_ratio_policy
    )
    if not crop:
        plan = [a for a in plan if a.size != a.out or a.scale != 1]
    if any(a.size == 0 and a.out for a in plan):
        raise ValueError(f"cannot resize the empty axes of {x.shape}")
    outside = []
    y = x if mode == "nearest" else x.astype(wide(x.dtype), copy=False)
    for axis in sorted(plan, key=lambda a: (Fraction(a.out, max(a.size, 1)), -a.axis)):
        at = coordinates(axis, coordinate_transformation_mode)
        if crop:
            outside.append((axis.axis, (at < 0) | (at > axis.size - 1)))
        if mode == "nearest":
            index = np.clip(nearest(at, nearest_mode), 0, max(axis.size - 1, 0))
            y = taken(y, index.astype(np.int64), axis.axis)
        else:
            y = _interpolate(y, axis, at, mode, cubic_coeff_a, bool(antialias), exclude_outside)
    y = _rounded(y, x.dtype)
    for number, mask in outside:
        if mask.any():
            y = y.copy() if y is x else y
            y[(slice(None),) * number + (mask,)] = extrapolation_value
    return y


def resized_axes(
    shape: Sequence[int],
    roi: Tensor | None,
    scales: Tensor | None,
    sizes: Tensor | None,
    axes: Sequence[int] | None,
    policy: str,
) -> list[Axis]:
    """What happens to each axis. Raises: ValueError if the inputs do not fit the shape."""
    rank = len(shape)
    numbers = distinct_axes(axes, rank) if axes is not None else list(range(rank))
    given = [v for v in (scales, sizes) if v is not None and v.size]
    if len(given) != 1 or given[0].size != len(numbers):
        raise ValueError("exactly one of scales and sizes is needed, an element for each axis")
    regions = [(0.0, 1.0)] * len(numbers)
    if roi is not None and roi.size:
        if roi.shape != (2 * len(numbers),):
            raise ValueError(f"a roi of shape {roi.shape} for {len(numbers)} axes")
        flat = [float(v) for v in roi]
        regions = list(zip(flat[: len(numbers)], flat[len(numbers) :], strict=True))
    extents = [int(shape[a]) for a in numbers]
    found = []
    if given[0] is sizes:
        wanted = [int(v) for v in sizes]
        common = _common_scale(extents, wanted, policy)
        for a, n, size, region in zip(numbers, extents, wanted, regions, strict=True):
            if common is None:
                scale = Fraction(size, n) if n else Fraction(1)
                found.append(Axis(a, n, size, scale or Fraction(1), Fraction(size), region))
            else:
                width = common * n
                out = (2 * width.numerator + width.denominator) // (2 * width.denominator)
                found.append(Axis(a, n, out, common, width, region))
        return found
    for a, n, value, region in zip(numbers, extents, given[0], regions, strict=True):
        factor = exact_scale(float(value))
        if factor <= 0:
            raise ValueError(f"scale {value} is not positive")
        width = factor * n
        found.append(Axis(a, n, width.numerator // width.denominator, factor, width, region))
    return found


def exact_scale(value: float) -> Fraction:
    """The fraction with a small denominator that `value` is the float32 of, else its own value."""
    simple = Fraction(value).limit_denominator(1000)
    return simple if np.float32(simple) == np.float32(value) else Fraction(value)


def _common_scale(extents: list[int], wanted: list[int], policy: str) -> Fraction | None:
    if policy == "stretch":
        return None
    if policy not in ("not_larger", "not_smaller"):
        raise ValueError(f"keep_aspect_ratio_policy {policy!r} is unknown")
    ratios = [Fraction(size, n) for size, n in zip(wanted, extents, strict=True) if n]
    return min(ratios) if policy == "not_larger" else max(ratios)


def coordinates(axis: Axis, mode: str) -> Tensor:
    """Where each output element lies in the input: [out] float64."""
    at = np.arange(axis.out, dtype=np.float64)
    p, q = float(axis.scale.numerator), float(axis.scale.denominator)
    last = axis.size - 1
    if mode == "asymmetric":
        return at * q / p
    if mode == "align_corners":
        num, den = float(axis.width.numerator), float(axis.width.denominator)
        return at * last * den / (num - den) if num != den else at * 0
    if mode == "tf_crop_and_resize":
        start, end = axis.roi
        if axis.out > 1:
            return start * last + at * (end - start) * last / (axis.out - 1)
        return at + 0.5 * (start + end) * last
    if mode == "pytorch_half_pixel" and axis.out == 1:
        return at * 0
    centre = axis.size * p - axis.out * q if mode == "half_pixel_symmetric" else 0.0
    return (centre + (2 * at + 1) * q - p) / (2 * p)


def nearest(at: Tensor, mode: str) -> Tensor:
    """The element that each coordinate is rounded to, before clamping to the axis."""
    if mode == "round_prefer_floor":
        return np.ceil(at - 0.5)
    if mode == "round_prefer_ceil":
        return np.floor(at + 0.5)
    if mode in ("floor", "ceil"):
        return np.floor(at) if mode == "floor" else np.ceil(at)
    raise ValueError(f"nearest_mode {mode!r} is unknown")


def _interpolate(
    x: Tensor,
    axis: Axis,
    at: Tensor,
    mode: str,
    a: float,
    antialias: bool,
    exclude_outside: int,
) -> Tensor:
    if mode not in ("linear", "cubic"):
        raise ValueError(f"mode {mode!r} is unknown")
    shrink = min(float(axis.scale), 1.0) if antialias else 1.0
    support = 1 if mode == "linear" else 2
    first = int(np.floor(-support / shrink)) + 1
    base = np.ceil(at) - 1 if antialias else np.floor(at)
    steps = np.arange(first, 2 - first)
    distance = np.abs(steps - (at - base)[:, None]) * shrink
    weights = np.clip(1 - distance, 0, 1) if mode == "linear" else _cubic(distance, a)
    index = base[:, None].astype(np.int64) + steps
    if exclude_outside:
        weights = np.where((index < 0) | (index >= axis.size), 0.0, weights)
    if antialias or exclude_outside:
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    index = np.clip(index, 0, max(axis.size - 1, 0))
    weights = weights.astype(x.dtype)
    if axis.axis == x.ndim - 1 and axis.size <= _MATRIX_SIZE and np.isfinite(x).all():
        matrix = np.zeros((axis.size, axis.out), x.dtype)
        np.add.at(matrix, (index, np.arange(axis.out)[:, None]), weights)
        return np.asarray(x @ matrix)
    trail = (1,) * (x.ndim - axis.axis - 1)
    shape = (*x.shape[: axis.axis], axis.out, *x.shape[axis.axis + 1 :])
    y = np.zeros_like(x, shape=shape)
    for tap in range(len(steps)):
        y += taken(x, index[:, tap], axis.axis) * weights[:, tap].reshape(-1, *trail)
    return y


def _cubic(distance: Tensor, a: float) -> Tensor:
    """The cubic convolution kernel. Source: Keys 1981, equation (4)."""
    d = distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _rounded(y: Tensor, dtype: np.dtype[Any]) -> Tensor:
    if y.dtype == dtype:
        return y
    if is_integer(dtype):
        low, high = integer_range(dtype)
        return np.clip(np.rint(y), low, high).astype(dtype)
    return y.astype(dtype)
