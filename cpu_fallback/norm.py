"""Normalisations: layer, RMS, instance, group, batch."""

from __future__ import annotations

import math

import numpy as np

from cpu_fallback.elementwise import broadcasts, fitting, is_short_float
from cpu_fallback.numeric import mean_over
from cpu_fallback.registry import Tensor, cpu_op


def _wide(x: Tensor) -> Tensor:
    return x.astype(np.float32) if is_short_float(x.dtype) else x


def _check_channels(values: Tensor, x: Tensor) -> None:
    """Raises: ValueError unless `values` has one number for each channel of `x`."""
    if values.shape != x.shape[1:2]:
        raise ValueError(f"{values.shape} numbers per channel do not fit {x.shape}")


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """[C] as an operand of [N, C, ...]. Raises: ValueError if there are not C of them."""
    _check_channels(values, x)
    return _wide(values).reshape(1, -1, *(1,) * (x.ndim - 2))


def _check_operands(x: Tensor, *operands: Tensor | None) -> None:
    """Raises: ValueError unless each operand broadcasts to the shape of `x`."""
    for operand in operands:
        if operand is not None and not broadcasts(operand.shape, x.shape):
            raise ValueError(f"an operand of shape {operand.shape} is larger than x, {x.shape}")


def _standardized(x: Tensor, axes: tuple[int, ...], epsilon: float) -> Tensor:
    centred = x - mean_over(x, axes)
    variance = mean_over(centred * centred, axes)
    centred /= np.sqrt(variance + x.dtype.type(epsilon))
    return np.asarray(centred)


@cpu_op("LayerNormalization", since=17)
def layer_normalization(
    x: Tensor,
    scale: Tensor,
    b: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    n_outputs: int = 1,
) -> Tensor | tuple[Tensor, ...]:
    """Zero mean and unit variance over the axes from `axis` on, then scale and bias.

    Returns: Y, and Mean and InvStdDev ([..., 1, ...] of the type `stash_type`) if used.
    Source: ONNX LayerNormalization-17.
    """
    _check_operands(x, scale, b)
    y = x.astype(np.float32, copy=False) if stash_type == 1 else _wide(x)
    lead = y.shape[: axis % y.ndim]
    size = math.prod(y.shape[len(lead) :])
    rows, count = y.reshape(*lead, size), y.dtype.type(size)
    mean = np.add.reduce(rows, axis=-1, keepdims=True)
    mean /= count
    centred = rows - mean
    inverse = np.vecdot(centred, centred)[..., None]
    inverse /= count
    inverse += inverse.dtype.type(epsilon)
    np.sqrt(inverse, out=inverse)
    np.divide(inverse.dtype.type(1), inverse, out=inverse)
    centred *= inverse
    result = centred.reshape(x.shape).astype(x.dtype, copy=False)
    result = np.multiply(result, scale, out=fitting(result, scale))
    if b is not None:
        result = np.add(result, b, out=fitting(result, b))
    result = np.asarray(result).astype(x.dtype, copy=False)
    if n_outputs == 1:
        return result
    ones = (*lead, *(1,) * (y.ndim - len(lead)))
    return result, mean.reshape(ones), inverse.reshape(ones)


@cpu_op("RMSNormalization", since=23)
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    """x over its root mean square over the axes from `axis` on, then scale.

    Source: ONNX RMSNormalization-23.
    """
    axes = tuple(range(axis % x.ndim, x.ndim))
    _check_operands(x, scale)
    y = x.astype(np.float32) if stash_type == 1 else _wide(x)
    square = mean_over(y * y, axes)
    normal = (y / np.sqrt(square + y.dtype.type(epsilon))).astype(x.dtype)
    return np.asarray(normal * scale).astype(scale.dtype, copy=False)


@cpu_op("InstanceNormalization", since=6)
def instance_normalization(
    input: Tensor, scale: Tensor, b: Tensor, *, epsilon: float = 1e-5
) -> Tensor:
    """Standardize each channel of each item of [N, C, ...]; scale and b are [C].

    Source: ONNX InstanceNormalization-22.
    """
    y = _standardized(_wide(input), tuple(range(2, input.ndim)), epsilon)
    y *= _per_channel(scale, y)
    y += _per_channel(b, y)
    return np.asarray(y).astype(input.dtype, copy=False)


@cpu_op("GroupNormalization", since=21)
def group_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:
    """Standardize `num_groups` groups of channels of each item of [N, C, ...].

    Source: ONNX GroupNormalization-21.
    """
    y = x.astype(np.float32) if stash_type == 1 else _wide(x)
    size = math.prod(x.shape[1:]) // num_groups
    grouped = y.reshape(x.shape[0], num_groups, size)
    normal = _standardized(grouped, (2,), epsilon).reshape(x.shape).astype(x.dtype)
    result = _wide(normal) * _per_channel(scale, x) + _per_channel(bias, x)
    return np.asarray(result).astype(x.dtype, copy=False)


@cpu_op("BatchNormalization", since=9)
def batch_normalization(
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    n_outputs: int = 1,
    spare: Tensor | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Scale and shift each channel of [N, C, ...] by given, or in training own, statistics.

    Returns: Y, and in training the running mean and variance.
    Source: ONNX BatchNormalization-15.
    """
    y = _wide(x)
    if y.ndim == 1:
        y = y[:, None]
    for given in (scale, b, input_mean, input_var):
        _check_channels(given, y)
    mean, variance = _wide(input_mean), _wide(input_var)
    kept: tuple[Tensor, ...] = ()
    if training_mode:
        axes = (0, *range(2, y.ndim))
        middle = mean_over(y, axes)
        own_mean = middle.reshape(-1)
        own_variance = mean_over(np.square(y - middle), axes).reshape(-1)
        keep, take = mean.dtype.type(momentum), mean.dtype.type(1 - momentum)
        kept = (
            (mean * keep + own_mean * take).astype(input_mean.dtype),
            (variance * keep + own_variance * take).astype(input_var.dtype),
        )
        mean, variance = own_mean, own_variance
    factor = _wide(scale) / np.sqrt(variance + variance.dtype.type(epsilon))
    shift = _wide(b) - mean * factor
    of_channel = _per_channel(factor, y)
    result = np.multiply(y, of_channel, out=fitting(spare if x.ndim > 1 else None, y, of_channel))
    result += _per_channel(shift, y)
    result = np.asarray(result).reshape(x.shape).astype(x.dtype, copy=False)
    return (result, *kept)[:n_outputs] if n_outputs > 1 else result
