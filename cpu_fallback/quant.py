"""Quantisation and integer products, exact through BLAS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from cpu_fallback.conv import check_bias
from cpu_fallback.elementwise import fitting
from cpu_fallback.numeric import element_type, is_integer, saturate, wide
from cpu_fallback.registry import NO_MEMO, Memo, Tensor, cpu_op
from cpu_fallback.windows import WindowAttributes, windows


def spread(values: Tensor, shape: tuple[int, ...], axis: int, block_size: int) -> Tensor:
    """Scales or zero points in a shape that broadcasts to `shape`.

    Per tensor: one element; per axis: [shape[axis]]; blocked: rank of `shape`, one per block.

    Raises: ValueError if `values` fits none of the three.
    """
    if values.size == 1 and values.ndim <= 1:
        return values.reshape(())
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis {axis} is out of range for shape {shape}")
    axis %= len(shape)
    if block_size == 0:
        if values.shape != (shape[axis],):
            raise ValueError(f"scale of shape {values.shape} for axis {axis} of shape {shape}")
        return values.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    blocks = list(shape)
    blocks[axis] = -(-shape[axis] // block_size)
    if list(values.shape) != blocks:
        raise ValueError(
            f"scale of shape {values.shape} for blocks of {block_size} along axis {axis} of {shape}"
        )
    repeated = np.repeat(values, block_size, axis=axis)
    return repeated[tuple(slice(0, size) for size in shape)]


def _to_levels(scaled: Tensor, zero_point: Tensor | None, dtype: np.dtype[Any]) -> Tensor:
    """Round half to even, add the zero point and saturate to the integer type."""
    levels = np.asarray(np.rint(scaled))
    if zero_point is not None:
        points = zero_point.astype(levels.dtype)
        levels = np.add(levels, points, out=fitting(levels, points))
    return saturate(levels, dtype)


@cpu_op("QuantizeLinear", since=10)
def quantize_linear(
    x: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Tensor:
    """`x` / y_scale, rounded half to even, plus the zero point, saturated; shape of `x`.

    The result has the type of the zero point, else `output_dtype`, else uint8. The division is
    done in `precision`, else in the type of the scale.

    Raises: ValueError if output_dtype contradicts the zero point or the scale does not fit.
    Source: ONNX QuantizeLinear-28.
    """
    dtype = np.dtype(np.uint8) if not output_dtype else element_type(output_dtype)
    zero_point = None
    if y_zero_point is not None:
        if output_dtype and dtype != y_zero_point.dtype:
            raise ValueError(f"output_dtype is {dtype}, the zero point {y_zero_point.dtype}")
        dtype = y_zero_point.dtype
        zero_point = spread(y_zero_point, x.shape, axis, block_size)
    scale = spread(y_scale, x.shape, axis, block_size)
    work = element_type(precision) if precision else y_scale.dtype
    if work.name == "float8_e8m0fnu" or is_integer(work):
        work = np.dtype(np.float32)
    scaled = (x.astype(work) / scale.astype(work)).astype(wide(work))
    if is_integer(dtype):
        return _to_levels(scaled, zero_point, dtype)
    if zero_point is not None:
        scaled = scaled + zero_point.astype(scaled.dtype)
    return _to_float(scaled, dtype, bool(saturate))


def _to_float(x: Tensor, dtype: np.dtype[Any], saturating: bool) -> Tensor:
    return saturate(x, dtype) if saturating else x.astype(dtype)


@cpu_op("DequantizeLinear", since=10)
def dequantize_linear(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    """(`x` - zero point) * scale; shape of `x`, type `output_dtype` or that of the scale.

    Raises: ValueError if the zero point has another type than `x` or the scale does not fit.
    Source: ONNX DequantizeLinear-28.
    """
    scale = spread(x_scale, x.shape, axis, block_size)
    dtype = element_type(output_dtype) if output_dtype else x_scale.dtype
    work = wide(x_scale.dtype)
    if x_zero_point is not None:
        if x_zero_point.dtype != x.dtype:
            raise ValueError(f"x is {x.dtype}, its zero point {x_zero_point.dtype}")
        zero_point = spread(x_zero_point, x.shape, axis, block_size)
        if x.dtype.itemsize >= 4:
            difference = (x.astype(np.int64) - zero_point.astype(np.int64)).astype(work)
        else:
            difference = x.astype(work) - zero_point.astype(work)
    else:
        difference = x.astype(work)
    return np.asarray((difference * scale.astype(work)).astype(dtype))


def dynamic_range(x: Tensor) -> tuple[np.float32, np.uint8]:
    """uint8 scale and zero point that cover `x` and 0; scale 1 if all of `x` is 0."""
    low = np.float32(np.minimum.reduce(x, axis=None, initial=0.0))
    high = np.float32(np.maximum.reduce(x, axis=None, initial=0.0))
    scale = np.float32(1.0) if low == high else (high - low) / np.float32(255)
    zero_point = np.minimum(np.rint(-low / scale), np.float32(255))
    return np.float32(scale), zero_point.astype(np.uint8)


@cpu_op("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """uint8 levels of `x` (float32) with the scale and zero point of its own range.

    Source: ONNX DynamicQuantizeLinear-11.
    """
    scale, zero_point = dynamic_range(x)
    levels = _to_levels(x / scale, np.asarray(zero_point), np.dtype(np.uint8))
    return levels, np.asarray(scale), np.asarray(zero_point)


def exact_matmul(
    a: Tensor, b: Tensor, peak_a: int | None = None, peak_b: int | None = None
) -> Tensor:
    """Product of matrices of integers, as int32; wraps like int32 on overflow.

    Runs in float32 or float64 BLAS where no sum can be rounded, else in int64.

    Args:
        a, b: int32, or float32 that holds integers.
        peak_a, peak_b: what their absolute values don't exceed, if that is known.
    """
    inner = a.shape[-1]
    peak_b = peak(b) if peak_b is None else peak_b
    if peak_a is None or inner * peak_a * peak_b >= 2**24:
        peak_a = peak(a)
    bound = inner * peak_a * peak_b
    work: type[np.generic] = np.int64
    if bound < 2**24:
        work = np.float32
    elif bound < 2**53:
        work = np.float64
    product = np.matmul(a.astype(work, copy=False), b.astype(work, copy=False))
    if work is not np.float32:
        product = product.astype(np.int64)
    return np.asarray(product).astype(np.int32)


def peak(x: Tensor) -> int:
    """The largest absolute value of integers; 0 of none."""
    return max(int(x.max(initial=0)), -int(x.min(initial=0)))


_PEAK = 255
"""What the difference of two 8-bit integers of one type does not exceed."""


def _shifted(x: Tensor, zero_point: Tensor | None, per_row: bool) -> Tensor:
    """8-bit `x` minus its zero point (scalar, per row or per column), in float32."""
    values = x.astype(np.float32)
    if zero_point is None:
        return values
    points = zero_point.astype(np.float32)
    if points.size == 1:
        points = points.reshape(())
    elif points.ndim == 1 and per_row:
        points = points[:, None]
    return np.asarray(np.subtract(values, points, out=fitting(values, points)))


@cpu_op("MatMulInteger", since=10)
def matmul_integer(
    a: Tensor,
    b: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
    *,
    memo: Memo = NO_MEMO,
) -> Tensor:
    """(a - a_zero_point) @ (b - b_zero_point) of 8-bit integers, int32, as numpy.matmul.

    Zero points: scalar, per row of `a` ([M] or [..., M, 1]), per column of `b` ([N] or
    [..., 1, N]). Source: ONNX MatMulInteger-10.
    """

    def weights() -> tuple[Tensor, int]:
        shifted = _shifted(b, b_zero_point, per_row=False)
        return shifted, peak(shifted)

    left = _shifted(a, a_zero_point, per_row=a.ndim > 1)
    right, most = memo.of((1,) if b_zero_point is None else (1, 3), "weights", weights)
    return exact_matmul(left, right, _PEAK, most)


def integer_conv(
    x: Tensor,
    w: Tensor,
    *,
    group: int = 1,
    **window: Unpack[WindowAttributes],
) -> Tensor:
    """Exact convolution of int32 `x` [N, C, ...] with `w` [M, C / group, ...] -> int32."""
    win = windows(x.shape[2:], w.shape[2:], **window)
    rank = x.ndim - 2
    span = tuple((k - 1) * d + 1 for k, d in zip(win.kernel, win.dilations, strict=True))
    spatial = tuple(range(2, 2 + rank))
    views = np.lib.stride_tricks.sliding_window_view(win.padded(x, 0), span, axis=spatial)
    starts = tuple(slice(None, None, s) for s in win.strides)
    taps = tuple(slice(None, None, d) for d in win.dilations)
    views = views[(slice(None), slice(None), *starts, *taps)]
    batch = x.shape[0]
    order = (0, *spatial, 1, *range(2 + rank, 2 + 2 * rank))
    depth = int(np.prod(w.shape[1:]))
    columns = views.transpose(order).reshape(batch, int(np.prod(win.out)), group, depth)
    columns = columns.transpose(0, 2, 1, 3)
    kernels = w.reshape(group, w.shape[0] // group, depth).transpose(0, 2, 1)
    product = exact_matmul(columns, kernels[None])
    return product.transpose(0, 1, 3, 2).reshape(batch, w.shape[0], *win.out)


def _kernel_points(zero_point: Tensor | None, rank: int) -> Tensor | None:
    """Zero points or scales of a kernel, one per output channel, against [M, C, ...]."""
    if zero_point is None or zero_point.size == 1:
        return zero_point
    return zero_point.reshape(-1, *[1] * (rank - 1))


@cpu_op("ConvInteger", since=10)
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None = None,
    w_zero_point: Tensor | None = None,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    **window: Unpack[WindowAttributes],
) -> Tensor:
    """Convolution of 8-bit integers `x` [N, C, ...], `w` [M, C / group, ...]; int32.

    Padding counts as the zero point. Source: ONNX ConvInteger-10.
    """
    return integer_conv(
        _shifted(x, x_zero_point, per_row=False),
        _shifted(w, _kernel_points(w_zero_point, w.ndim), per_row=False),
        group=group,
        **window,
    )


@cpu_op("QLinearMatMul", since=10)
def qlinear_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Tensor:
    """Product of quantised matrices, requantised with y_scale and y_zero_point.

    Scales and zero points: scalar, per row of `a`, per column of `b`. 8-bit integers or float8.
    Source: ONNX QLinearMatMul-21.
    """
    row = _row_scale if b.ndim > 1 else _column_scale
    multiplier = row(a_scale) * _column_scale(b_scale) / row(y_scale)
    if is_integer(a.dtype) and is_integer(b.dtype):
        left = _shifted(a, a_zero_point, per_row=a.ndim > 1)
        product = exact_matmul(left, _shifted(b, b_zero_point, per_row=False))
    else:
        product = np.matmul(a.astype(np.float32), b.astype(np.float32))
    scaled = product.astype(np.float32) * multiplier
    points = (
        y_zero_point[:, None]
        if y_zero_point.ndim == 1 and y_zero_point.size > 1 and b.ndim > 1
        else (y_zero_point.reshape(()) if y_zero_point.size == 1 else y_zero_point)
    )
    if is_integer(y_zero_point.dtype):
        return _to_levels(scaled, points, y_zero_point.dtype)
    return saturate(scaled + points.astype(np.float32), y_zero_point.dtype)


def _row_scale(scale: Tensor) -> Tensor:
    values = scale.astype(np.float32)
    if values.size == 1:
        return values.reshape(())
    return values[:, None] if values.ndim == 1 else values


def _column_scale(scale: Tensor) -> Tensor:
    values = scale.astype(np.float32)
    return values.reshape(()) if values.size == 1 else values


@cpu_op("QLinearConv", since=10)
def qlinear_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    bias: Tensor | None = None,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    **window: Unpack[WindowAttributes],
) -> Tensor:
    """Convolution of quantised `x` [N, C, ...] and `w`, requantised; bias: [M] int32.

    w_scale and w_zero_point: scalar or [M]. Source: ONNX QLinearConv-10.
    """
    sums = integer_conv(
        _shifted(x, x_zero_point, per_row=False),
        _shifted(w, _kernel_points(w_zero_point, w.ndim), per_row=False),
        group=group,
        **window,
    )
    channels = (-1, *[1] * (x.ndim - 2))
    check_bias(bias, w.shape[0])
    if bias is not None:
        sums = sums + bias.reshape(channels)
    multiplier = (x_scale.reshape(()) * w_scale / y_scale.reshape(())).astype(np.float32)
    multiplier = multiplier.reshape(()) if multiplier.size == 1 else multiplier.reshape(channels)
    scaled = sums.astype(np.float32) * multiplier
    return _to_levels(scaled, y_zero_point.reshape(()), y_zero_point.dtype)
