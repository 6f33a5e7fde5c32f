"""Random tensors. With a `seed` the values are the same at every run, else fresh."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpu_fallback.numeric import element_type
from cpu_fallback.registry import Tensor, cpu_op


def generator(seed: float | None) -> np.random.Generator:
    """A generator fixed by the bits of `seed` as float32; unpredictable without one."""
    if seed is None:
        return np.random.default_rng()
    return np.random.default_rng(int(np.float32(seed).view(np.uint32)))


@cpu_op("RandomNormal", since=1)
def random_normal(
    *,
    shape: Sequence[int],
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Tensor:
    """Normal values of the given mean and standard deviation. Source: ONNX RandomNormal-22."""
    values = generator(seed).normal(mean, scale, tuple(shape))
    return np.asarray(values).astype(element_type(dtype))


@cpu_op("RandomNormalLike", since=1)
def random_normal_like(
    x: Tensor,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Tensor:
    """`random_normal` of the shape of `x`, and of its type. Source: ONNX RandomNormalLike-22."""
    kind = x.dtype if dtype is None else element_type(dtype)
    return np.asarray(generator(seed).normal(mean, scale, x.shape)).astype(kind)


@cpu_op("RandomUniform", since=1)
def random_uniform(
    *,
    shape: Sequence[int],
    dtype: int = 1,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Tensor:
    """Uniform values in [low, high). Source: ONNX RandomUniform-22."""
    values = generator(seed).uniform(low, high, tuple(shape))
    return np.asarray(values).astype(element_type(dtype))


@cpu_op("RandomUniformLike", since=1)
def random_uniform_like(
    x: Tensor,
    *,
    dtype: int | None = None,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Tensor:
    """`random_uniform` of the shape of `x`, and of its type. Source: ONNX RandomUniformLike-22."""
    kind = x.dtype if dtype is None else element_type(dtype)
    return np.asarray(generator(seed).uniform(low, high, x.shape)).astype(kind)


@cpu_op("Bernoulli", since=15)
def bernoulli(x: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    """1 with probability `x`, else 0; shape of `x`, its type or `dtype`.

    Source: ONNX Bernoulli-22.
    """
    kind = x.dtype if dtype is None else element_type(dtype)
    drawn = generator(seed).random(x.shape) < x.astype(np.float64)
    return np.asarray(drawn).astype(kind)


@cpu_op("Multinomial", since=7)
def multinomial(
    x: Tensor, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None
) -> Tensor:
    """Class numbers drawn with log-probabilities `x` [batch, classes], not normalised.

    Returns: [batch, sample_size] int32 or int64. Source: ONNX Multinomial-22.
    """
    values = x.astype(np.float64)
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    ends = np.cumsum(weights, axis=1)
    drawn = generator(seed).random((x.shape[0], sample_size)) * ends[:, -1:]
    classes = (drawn[:, :, None] >= ends[:, None, :]).sum(axis=2)
    return np.asarray(np.minimum(classes, x.shape[1] - 1), dtype=element_type(dtype))
