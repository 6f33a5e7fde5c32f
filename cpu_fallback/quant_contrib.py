"""Quantised operators of com.microsoft: levels in, levels out, floats in between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpu_fallback.numeric import mean_over, positive_axis, saturate, sum_over
from cpu_fallback.pool import average_pool
from cpu_fallback.quant import dequantize_linear, exact_matmul, quantize_linear
from cpu_fallback.recurrent import sigmoid
from cpu_fallback.registry import Tensor, cpu_op

DOMAIN = "com.microsoft"

cpu_op("QuantizeLinear", since=1, domain=DOMAIN)(quantize_linear)
cpu_op("DequantizeLinear", since=1, domain=DOMAIN)(dequantize_linear)


def _floats(x: Tensor, scale: Tensor, zero_point: Tensor | None) -> Tensor:
    points = 0 if zero_point is None else zero_point.astype(np.int32).reshape(())
    return (x.astype(np.int32) - points).astype(np.float32) * scale.reshape(())


def _levels(x: Tensor, scale: Tensor, zero_point: Tensor | None, like: Tensor) -> Tensor:
    dtype = like.dtype if zero_point is None else zero_point.dtype
    points = 0 if zero_point is None else zero_point.astype(np.float32).reshape(())
    return saturate(np.rint(x / scale.reshape(())) + points, dtype)


@cpu_op("QLinearAdd", since=1, domain=DOMAIN)
def qlinear_add(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None,
    c_scale: Tensor,
    c_zero_point: Tensor | None = None,
) -> Tensor:
    """Sum of two quantised tensors, broadcast. Source: com.microsoft QLinearAdd-1."""
    total = _floats(a, a_scale, a_zero_point) + _floats(b, b_scale, b_zero_point)
    return _levels(total, c_scale, c_zero_point, a)


@cpu_op("QLinearMul", since=1, domain=DOMAIN)
def qlinear_mul(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None,
    c_scale: Tensor,
    c_zero_point: Tensor | None = None,
) -> Tensor:
    """Product of two quantised tensors, broadcast. Source: com.microsoft QLinearMul-1."""
    product = _floats(a, a_scale, a_zero_point) * _floats(b, b_scale, b_zero_point)
    return _levels(product, c_scale, c_zero_point, a)


@cpu_op("QLinearSigmoid", since=1, domain=DOMAIN)
def qlinear_sigmoid(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
) -> Tensor:
    """Sigmoid of a quantised tensor. Source: com.microsoft QLinearSigmoid-1."""
    return _levels(sigmoid(_floats(x, x_scale, x_zero_point)), y_scale, y_zero_point, x)


@cpu_op("QLinearLeakyRelu", since=1, domain=DOMAIN)
def qlinear_leaky_relu(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    alpha: float = 0.01,
) -> Tensor:
    """LeakyRelu of a quantised tensor. Source: com.microsoft QLinearLeakyRelu-1."""
    values = _floats(x, x_scale, x_zero_point)
    return _levels(np.where(values < 0, alpha * values, values), y_scale, y_zero_point, x)


@cpu_op("QLinearSoftmax", since=1, domain=DOMAIN)
def qlinear_softmax(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor,
    *,
    opset: int,
    axis: int = -1,
) -> Tensor:
    """Softmax of a quantised tensor along `axis` (opset < 13: over all from `axis` on).

    Source: com.microsoft QLinearSoftmax-1.
    """
    where = positive_axis(axis, x.ndim)
    over = (where,) if opset >= 13 else tuple(range(where, x.ndim))
    values = _floats(x, x_scale, x_zero_point)
    weights = np.exp(values - values.max(axis=over, keepdims=True))
    return _levels(weights / sum_over(weights, over), y_scale, y_zero_point, x)


@cpu_op("QLinearGlobalAveragePool", since=1, domain=DOMAIN)
def qlinear_global_average_pool(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    channels_last: int = 0,
) -> Tensor:
    """Mean of each channel of a quantised [N, C, ...] (channels_last: [N, ..., C]).

    Source: com.microsoft QLinearGlobalAveragePool-1.
    """
    over = tuple(range(1, x.ndim - 1)) if channels_last else tuple(range(2, x.ndim))
    mean = mean_over(_floats(x, x_scale, x_zero_point), over)
    return _levels(mean, y_scale, y_zero_point, x)


@cpu_op("QLinearAveragePool", since=1, domain=DOMAIN)
def qlinear_average_pool(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Mean of each window of a quantised [N, C, ...] (channels_last: [N, ..., C]).

    Source: com.microsoft QLinearAveragePool-1.
    """
    values = _floats(x, x_scale, x_zero_point)
    pooled = average_pool(
        np.moveaxis(values, -1, 1) if channels_last else values,
        kernel_shape=kernel_shape,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        pads=pads,
        strides=strides,
    )
    result = np.moveaxis(pooled, 1, -1) if channels_last else pooled
    return np.ascontiguousarray(_levels(result, y_scale, y_zero_point, x))


@cpu_op("QLinearConcat", since=1, domain=DOMAIN)
def qlinear_concat(y_scale: Tensor, y_zero_point: Tensor, *inputs: Tensor, axis: int) -> Tensor:
    """Quantised tensors (each with scale and zero point) joined along `axis`.

    Source: com.microsoft QLinearConcat-1.
    """
    parts = [_floats(*inputs[i : i + 3]) for i in range(0, len(inputs), 3)]
    return _levels(np.concatenate(parts, axis=axis), y_scale, y_zero_point, inputs[0])


@cpu_op("QLinearWhere", since=1, domain=DOMAIN)
def qlinear_where(
    condition: Tensor,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    z_scale: Tensor,
    z_zero_point: Tensor,
) -> Tensor:
    """Elements of quantised `x` or `y` by `condition`. Source: com.microsoft QLinearWhere-1."""
    one, other = _floats(x, x_scale, x_zero_point), _floats(y, y_scale, y_zero_point)
    return _levels(np.where(condition, one, other), z_scale, z_zero_point, x)


@cpu_op("QGemm", since=1, domain=DOMAIN)
def qgemm(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    c: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero_point: Tensor | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Tensor:
    """alpha * (a @ b + c) of quantised matrices; float32 without y_scale.

    b_scale and b_zero_point: scalar or per column [N]; c: int32, of scale a_scale * b_scale.
    Source: com.microsoft QGemm-1.
    """
    left = a.astype(np.int32) - a_zero_point.astype(np.int32).reshape(())
    right = (b.T if transB else b).astype(np.int32) - b_zero_point.astype(np.int32)
    sums = exact_matmul(left.T if transA else left, right)
    if c is not None:
        sums = sums + c
    scaled = sums.astype(np.float32) * (np.float32(alpha) * a_scale.reshape(()) * b_scale)
    if y_scale is None:
        return scaled
    return _levels(scaled, y_scale, y_zero_point, a)
