"""Operators of the domain com.microsoft that exported and quantised models use."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from cpu_fallback.numeric import erf, wide
from cpu_fallback.quant import dynamic_range, exact_matmul
from cpu_fallback.recurrent import LstmAttributes, Recurrence, run_lstm, sigmoid
from cpu_fallback.registry import NO_MEMO, Memo, Tensor, cpu_op

DOMAIN = "com.microsoft"


def _sum_with(x: Tensor, *others: Tensor | None) -> Tensor:
    total = x.astype(wide(x.dtype))
    for other in others:
        if other is not None:
            total = total + other.astype(total.dtype)
    return total


@cpu_op("Gelu", since=1, domain=DOMAIN)
def gelu(x: Tensor) -> Tensor:
    """x * (1 + erf(x / sqrt(2))) / 2, same shape and float type. Source: com.microsoft Gelu-1."""
    return bias_gelu(x, None)


@cpu_op("BiasGelu", since=1, domain=DOMAIN)
def bias_gelu(x: Tensor, bias: Tensor | None) -> Tensor:
    """Gelu by erf of `x` + bias ([last dimension]). Source: com.microsoft BiasGelu-1."""
    total = _sum_with(x, bias)
    half = total.dtype.type(0.5)
    result = half * total * (1 + erf(total * total.dtype.type(np.sqrt(0.5))))
    return np.asarray(result.astype(x.dtype))


@cpu_op("FastGelu", since=1, domain=DOMAIN)
def fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Gelu by tanh of `x` + bias ([last dimension]). Source: com.microsoft FastGelu-1."""
    total = _sum_with(x, bias)
    inner = float(np.sqrt(2 / np.pi)) * (total + 0.044715 * total * total * total)
    return np.asarray((0.5 * total * (1 + np.tanh(inner))).astype(x.dtype))


@cpu_op("QuickGelu", since=1, domain=DOMAIN)
def quick_gelu(x: Tensor, *, alpha: float = 1.702) -> Tensor:
    """x * sigmoid(alpha * x), same shape and type. Source: com.microsoft QuickGelu-1."""
    total = _sum_with(x)
    return (total * sigmoid(alpha * total)).astype(x.dtype)


@cpu_op("FusedMatMul", since=1, domain=DOMAIN)
def fused_matmul(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
    transBatchA: int = 0,  # noqa: N803
    transBatchB: int = 0,  # noqa: N803
) -> Tensor:
    """alpha * a @ b, each optionally transposed in its last two dimensions (rank >= 2).

    transBatch*: the first dimension is the row dimension and moves behind the batch dimensions.
    Source: com.microsoft FusedMatMul-1.
    """
    left = _oriented(a, bool(transA), bool(transBatchA)).astype(wide(a.dtype))
    right = _oriented(b, bool(transB), bool(transBatchB)).astype(wide(b.dtype))
    return np.asarray((alpha * np.matmul(left, right)).astype(a.dtype))


def _oriented(x: Tensor, transpose: bool, batch: bool) -> Tensor:
    if batch and x.ndim > 2:
        x = np.moveaxis(x, 0, -2)
    return np.swapaxes(x, -1, -2) if transpose and x.ndim > 1 else x


def _per_column(values: Tensor | None) -> Tensor:
    if values is None:
        return np.zeros((), np.int32)
    return values.reshape(()) if values.size == 1 else values


@cpu_op("MatMulIntegerToFloat", since=1, domain=DOMAIN)
def matmul_integer_to_float(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Product of 8-bit integer matrices times both scales, plus bias ([N]); float32.

    b_scale and b_zero_point: scalar or per column [N].
    Source: com.microsoft MatMulIntegerToFloat-1.
    """
    left = a.astype(np.int32) - _per_column(a_zero_point).astype(np.int32)
    right = b.astype(np.int32) - _per_column(b_zero_point).astype(np.int32)
    scale = a_scale.reshape(()) * _per_column(b_scale)
    result = exact_matmul(left, right).astype(np.float32) * scale
    return np.asarray(result if bias is None else result + bias).astype(a_scale.dtype)


@cpu_op("DynamicQuantizeMatMul", since=1, domain=DOMAIN)
def dynamic_quantize_matmul(
    a: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """`a` (float32) quantised to uint8 over its own range, times 8-bit `b` [K, N]; float32.

    Source: com.microsoft DynamicQuantizeMatMul-1.
    """
    levels, scale, zero_point = _quantized(a)
    return matmul_integer_to_float(
        levels, b, np.asarray(scale), b_scale, np.asarray(zero_point), b_zero_point, bias
    )


def _quantized(x: Tensor) -> tuple[Tensor, np.float32, np.uint8]:
    scale, zero_point = dynamic_range(x)
    levels = np.clip(np.rint(x / scale) + zero_point, 0, 255).astype(np.uint8)
    return levels, scale, zero_point


def _dynamic_product(w: Tensor, scale: Tensor, zero_point: Tensor | None) -> Recurrence:
    """x [..., K] -> x quantised as a whole, times w [K, N] 8-bit, as float32."""
    shifted = w.astype(np.int32) - _per_column(zero_point).astype(np.int32)
    peak = int(np.abs(shifted).max(initial=0))
    exact = np.dtype(np.float32 if 255 * peak * w.shape[0] < 2**24 else np.float64)
    weights = shifted.astype(exact)
    scales = _per_column(scale).astype(np.float32)

    def product(x: Tensor) -> Tensor:
        x_scale, zero_point = dynamic_range(x)
        middle = np.float32(zero_point)
        levels = x / x_scale
        np.rint(levels, out=levels)
        np.maximum(levels, -middle, out=levels)
        np.minimum(levels, np.float32(255) - middle, out=levels)
        sums = (levels.astype(exact, copy=False) @ weights).astype(np.float32, copy=False)
        return np.asarray(np.multiply(sums, x_scale * scales, out=sums))

    return product


@cpu_op("DynamicQuantizeLSTM", since=1, domain=DOMAIN)
def dynamic_quantize_lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    sequence_lens: Tensor | None,
    initial_h: Tensor | None,
    initial_c: Tensor | None,
    p: Tensor | None,
    w_scale: Tensor,
    w_zero_point: Tensor | None,
    r_scale: Tensor,
    r_zero_point: Tensor | None,
    *,
    hidden_size: int | None = None,
    memo: Memo = NO_MEMO,
    **attributes: Unpack[LstmAttributes],
) -> tuple[Tensor, ...]:
    """LSTM whose inputs and states are quantised to uint8 before each product with 8-bit weights.

    w: [directions, input, 4 * hidden], r: [directions, hidden, 4 * hidden]; scales and zero
    points: [directions] or [directions, 4 * hidden]; the rest as LSTM.
    Source: com.microsoft DynamicQuantizeLSTM-1.
    """

    def weights(first: int, d: int) -> Recurrence:
        """The product with direction `d` of the weights that are input `first` of the node."""
        operands = (w, w_scale, w_zero_point) if first == 1 else (r, r_scale, r_zero_point)
        scales_at = 8 if first == 1 else 10
        places = (first, scales_at, scales_at + 1)[: 3 if operands[2] is not None else 2]

        def make() -> Recurrence:
            array, scale, point = operands
            return _dynamic_product(array[d], scale[d], None if point is None else point[d])

        return memo.of(places, (first, d), make)

    def products(values: Tensor, d: int) -> tuple[Tensor, Recurrence]:
        length, batch, size = values.shape
        inputs = weights(1, d)(values.reshape(length * batch, size))
        return inputs.reshape(length, batch, inputs.shape[-1]), weights(2, d)

    return run_lstm(
        x,
        products,
        r.shape[1] if hidden_size is None else hidden_size,
        (b, sequence_lens, initial_h, initial_c, p),
        memo=memo,
        **attributes,
    )


@cpu_op("SkipLayerNormalization", since=1, domain=DOMAIN)
def skip_layer_normalization(
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, ...]:
    """Layer normalisation of `x` + skip + bias over the last dimension.

    Returns: the result, mean, inverse standard deviation ([..., 1] float32), and the sum.
    Source: com.microsoft SkipLayerNormalization-1.
    """
    total = _sum_with(x, skip, bias)
    mean = total.mean(axis=-1, keepdims=True)
    centred = total - mean
    inverse = 1 / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + epsilon)
    result = centred * inverse * gamma.astype(total.dtype)
    if beta is not None:
        result = result + beta.astype(total.dtype)
    statistics = (mean.astype(np.float32), inverse.astype(np.float32))
    return (result.astype(x.dtype), *statistics, total.astype(x.dtype))


@cpu_op("SkipSimplifiedLayerNormalization", since=1, domain=DOMAIN)
def skip_simplified_layer_normalization(
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor | None, ...]:
    """Root-mean-square normalisation of `x` + skip + bias over the last dimension.

    Returns: the result, None, inverse root mean square ([..., 1] float32), and the sum.
    Source: com.microsoft SkipSimplifiedLayerNormalization-1.
    """
    total = _sum_with(x, skip, bias)
    inverse = 1 / np.sqrt((total * total).mean(axis=-1, keepdims=True) + epsilon)
    result = (total * inverse * gamma.astype(total.dtype)).astype(x.dtype)
    return (result, None, inverse.astype(np.float32), total.astype(x.dtype))


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """Values of `bits` bits from uint8 along the last dimension, low bits first; [..., count]."""
    if bits not in (2, 4, 8):
        raise ValueError(f"weights of {bits} bits are not known; 2, 4 and 8 are")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    values = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    length = values.shape[-2] * values.shape[-1]
    return np.asarray(values.reshape(*packed.shape[:-1], length)[..., :count])


@cpu_op("MatMulNBits", since=1, domain=DOMAIN)
def matmul_nbits(
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    K: int,  # noqa: N803
    N: int,  # noqa: N803
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int = 32,
    weight_prepacked: int = 0,
) -> Tensor:
    """`a` [..., K] times a weight of `bits` bits stored as b [N, blocks, bytes]; [..., N].

    scales: [N, blocks]; zero_points: packed uint8, or floats [N, blocks], default 2^(bits - 1);
    g_idx: block of each row of the weight ([K]).

    Raises: ValueError for a weight packed for one runtime. Source: com.microsoft MatMulNBits-1.
    """
    if weight_prepacked:
        raise ValueError("MatMulNBits with weight_prepacked: the layout is private to one runtime")
    blocks, work = -(-K // block_size), wide(a.dtype)
    levels = unpack_bits(b.reshape(N, blocks, -1), bits, block_size)
    levels = levels.reshape(N, -1)[:, :K].astype(work)
    block_of = np.arange(K) // block_size if g_idx is None else g_idx[:K]
    points: Tensor
    if zero_points is None:
        points = np.full((N, blocks), 2 ** (bits - 1), work)
    elif zero_points.dtype == np.uint8:
        points = unpack_bits(zero_points.reshape(N, -1), bits, blocks).astype(work)
    else:
        points = zero_points.reshape(N, blocks).astype(work)
    factor = scales.reshape(N, blocks).astype(work)
    weight = (levels - points[:, block_of]) * factor[:, block_of]
    result = np.matmul(a.astype(work), weight.T)
    return np.asarray(result if bias is None else result + bias.astype(work)).astype(a.dtype)
