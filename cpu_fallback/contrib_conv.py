"""Convolutions and Gemm of com.microsoft: with an activation, or with channels last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Unpack

import numpy as np

from cpu_fallback.conv import conv
from cpu_fallback.matmul import gemm
from cpu_fallback.numeric import wide
from cpu_fallback.quant import qlinear_conv
from cpu_fallback.recurrent import sigmoid
from cpu_fallback.registry import Tensor, cpu_op
from cpu_fallback.windows import ConvAttributes

DOMAIN = "com.microsoft"

_ACTIVATIONS: Mapping[str, tuple[tuple[float, ...], Callable[..., Tensor]]] = {
    "": ((), lambda x: x),
    "Relu": ((), lambda x: np.maximum(x, 0)),
    "Tanh": ((), np.tanh),
    "Sigmoid": ((), sigmoid),
    "LeakyRelu": ((0.01,), lambda x, alpha: np.where(x < 0, alpha * x, x)),
    "Clip": ((-np.inf, np.inf), np.clip),
    "HardSigmoid": ((0.2, 0.5), lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1)),
}
"""Activation to the defaults of its parameters, and the function."""


def _activated(x: Tensor, activation: str, given: Sequence[float]) -> Tensor:
    if activation not in _ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is none of {sorted(_ACTIVATIONS)}")
    defaults, function = _ACTIVATIONS[activation]
    kind = wide(x.dtype)
    parameters = [kind.type(p) for p in (*given, *defaults[len(given) :])]
    return np.asarray(function(x.astype(kind, copy=False), *parameters)).astype(x.dtype)


@cpu_op("FusedConv", since=1, domain=DOMAIN)
def fused_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    z: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    **attributes: Unpack[ConvAttributes],
) -> Tensor:
    """Convolution as Conv, plus `z`, then an activation.

    Raises: ValueError for an unknown activation. Source: com.microsoft FusedConv-1.
    """
    result = conv(x, w, b, **attributes)
    return _activated(result if z is None else result + z, activation, activation_params)


@cpu_op("FusedGemm", since=1, domain=DOMAIN)
def fused_gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Tensor:
    """Gemm, then an activation.

    Raises: ValueError for an unknown activation. Source: com.microsoft FusedGemm-1.
    """
    result = gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    given = [p for p in (activation_alpha, activation_beta, activation_gamma) if p is not None]
    return _activated(result, activation, given)


@cpu_op("NhwcConv", since=1, domain=DOMAIN)
def nhwc_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    **attributes: Unpack[ConvAttributes],
) -> Tensor:
    """Convolution of `x` [N, spatial, C] with `w` [M, C/group, kernel]: [N, out, M].

    Source: com.microsoft NhwcConv-1, whose shape rule moves the channels of the data only.
    """
    result = conv(np.moveaxis(x, -1, 1), w, b, **attributes)
    return np.ascontiguousarray(np.moveaxis(result, 1, -1))


@cpu_op("QLinearConv", since=1, domain=DOMAIN)
def qlinear_conv_either_way(
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
    channels_last: int = 0,
    **attributes: Unpack[ConvAttributes],
) -> Tensor:
    """QLinearConv of `x` [N, C, ...], or [N, ..., C] with `channels_last`; w [M, C/group, kernel].

    Source: com.microsoft QLinearConv-1.
    """
    result = qlinear_conv(
        np.moveaxis(x, -1, 1) if channels_last else x,
        x_scale,
        x_zero_point,
        w,
        w_scale,
        w_zero_point,
        y_scale,
        y_zero_point,
        bias,
        **attributes,
    )
    return np.ascontiguousarray(np.moveaxis(result, 1, -1)) if channels_last else result
