"""Elementwise functions of one operand: mathematics, activations, tests, Not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cpu_fallback.elementwise import fitting, is_short_float, swept, widened
from cpu_fallback.numeric import erf as exact_erf
from cpu_fallback.registry import Tensor, cpu_op
from cpu_fallback.sweeps import in_memory

BLOCK = 1 << 15
"""Elements that are computed together where a formula makes many passes."""


def _register_ufuncs() -> None:
    plain: dict[str, tuple[int, Callable[..., Any]]] = {
        "Abs": (6, np.abs),
        "Neg": (6, np.negative),
        "Sign": (9, np.sign),
        "Ceil": (6, np.ceil),
        "Floor": (6, np.floor),
        "Round": (11, np.rint),
        "Sqrt": (6, np.sqrt),
        "Exp": (6, np.exp),
        "Log": (6, np.log),
        "Sin": (7, np.sin),
        "Cos": (7, np.cos),
        "Tan": (7, np.tan),
        "Asin": (7, np.arcsin),
        "Acos": (7, np.arccos),
        "Atan": (7, np.arctan),
        "Sinh": (9, np.sinh),
        "Cosh": (9, np.cosh),
        "Tanh": (6, np.tanh),
        "Asinh": (9, np.arcsinh),
        "Acosh": (9, np.arccosh),
        "Atanh": (9, np.arctanh),
    }
    for op_type, (since, function) in plain.items():
        cpu_op(op_type, since)(_unary(function))


def _unary(function: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor, *, spare: Tensor | None = None) -> Tensor:
        if x.dtype.kind == "f" and not is_short_float(x.dtype):
            return swept(function, spare, x)
        return widened(function, x)

    return apply


_register_ufuncs()


def in_blocks(function: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    """`function`, elementwise, over pieces that fit a cache."""
    if x.size <= BLOCK:
        return np.asarray(function(x))
    if not x.flags.c_contiguous:
        order, back = in_memory(x)
        if order != (*range(x.ndim),):
            return in_blocks(function, x.transpose(order)).transpose(back)
    flat = np.ascontiguousarray(x).reshape(-1)
    out = np.empty_like(flat)
    for at in _blocks(flat.size):
        out[at] = function(flat[at])
    return out.reshape(x.shape)


def _blocks(size: int) -> list[slice]:
    return [slice(start, start + BLOCK) for start in range(0, size, BLOCK)]


def blocked(function: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    """`widened` and `in_blocks`: for formulas of several passes."""
    return widened(lambda v: in_blocks(function, v), x)


Formula = Callable[[Tensor, Tensor, Tensor], Any]
"""Reads x, may use room for as many elements, and writes the result, perhaps over x, last."""


def in_room(formula: Formula, x: Tensor, spare: Tensor | None) -> Tensor:
    """A formula over pieces that fit a cache; short floats are computed in float32."""
    if is_short_float(x.dtype):
        return in_room(formula, x.astype(np.float32), None).astype(x.dtype)
    if x.size <= BLOCK:
        out = fitting(spare, x)
        out = np.empty_like(x) if out is None else out
        formula(x, np.empty_like(x), out)
        return out
    if not x.flags.c_contiguous:
        order, back = in_memory(x)
        if order != (*range(x.ndim),):
            turned = x.transpose(order)
            return in_room(formula, turned, turned if spare is x else None).transpose(back)
    source = np.ascontiguousarray(x)
    out = spare if spare is source else np.empty_like(source)
    flat, target = source.reshape(-1), out.reshape(-1)
    for at in _blocks(flat.size):
        formula(flat[at], np.empty_like(flat[at]), target[at])
    return out


_ERF_AS_TANH = (
    1.41863013e-7, -5.66864193e-6, 8.76381953e-5, -6.19786528e-4, -1.91829188e-4, 1.02769055e-1,
    1.12837927,
)  # fmt: skip


def _erf_single(x: Tensor) -> Tensor:
    """Error function of float32 to 4 ULP, as tanh(x * polynomial(x^2)); 1 beyond 3.92."""
    limited = np.clip(x, np.float32(-4.1), np.float32(4.1))
    square = limited * limited
    result = np.full_like(square, _ERF_AS_TANH[0])
    for value in _ERF_AS_TANH[1:]:
        result *= square
        result += np.float32(value)
    result *= limited
    return np.asarray(np.tanh(result))


def erf_of(x: Tensor) -> Tensor:
    """Error function of float32 or float64."""
    return in_blocks(_erf_single if x.dtype == np.float32 else exact_erf, x)


@cpu_op("Erf", since=9)
def erf(x: Tensor) -> Tensor:
    """Error function. Source: ONNX Erf-13."""
    return widened(erf_of, x)


@cpu_op("Reciprocal", since=6)
def reciprocal(x: Tensor) -> Tensor:
    """1 / x. Source: ONNX Reciprocal-13."""
    return widened(lambda v: v.dtype.type(1) / v, x)


@cpu_op("Sigmoid", since=6)
def sigmoid(x: Tensor, *, spare: Tensor | None = None) -> Tensor:
    """1 / (1 + exp(-x)). Source: ONNX Sigmoid-13."""

    def formula(v: Tensor, room: Tensor, out: Tensor) -> None:
        np.divide(v.dtype.type(1), _denominator(v, 1.0, room), out=out)

    return in_room(formula, x, spare)


def _denominator(x: Tensor, alpha: float, room: Tensor) -> Tensor:
    """1 + exp(-alpha * x), in `room`."""
    if alpha == 1:
        np.negative(x, out=room)
    else:
        np.multiply(x, x.dtype.type(-alpha), out=room)
    np.exp(room, out=room)
    np.add(room, room.dtype.type(1), out=room)
    return room


@cpu_op("Relu", since=6)
def relu(x: Tensor, *, spare: Tensor | None = None) -> Tensor:
    """max(x, 0); NaN stays. Source: ONNX Relu-14."""
    zero = x.dtype.type(0)
    return swept(lambda v, out: np.maximum(v, zero, out=out), spare, x)


@cpu_op("LeakyRelu", since=6)
def leaky_relu(x: Tensor, *, alpha: float = 0.01, spare: Tensor | None = None) -> Tensor:
    """x where x >= 0, else alpha * x. Source: ONNX LeakyRelu-16."""

    def formula(v: Tensor, room: Tensor, out: Tensor) -> None:
        kind = v.dtype.type
        if 0 < alpha <= 1:
            np.maximum(v, np.multiply(v, kind(alpha), out=room), out=out)
            return
        np.minimum(v, kind(0), out=room)
        np.multiply(room, kind(alpha), out=room)
        np.add(np.maximum(v, kind(0), out=out), room, out=out)

    return in_room(formula, x, spare)


@cpu_op("Elu", since=6)
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """x where x >= 0, else alpha * (exp(x) - 1). Source: ONNX Elu-22."""
    return blocked(lambda v: _elu(v, alpha), x)


def _elu(x: Tensor, alpha: float) -> Tensor:
    zero = x.dtype.type(0)
    return np.asarray(np.maximum(x, zero) + x.dtype.type(alpha) * np.expm1(np.minimum(x, zero)))


@cpu_op("Selu", since=6)
def selu(
    x: Tensor,
    *,
    alpha: float = 1.67326319217681884765625,
    gamma: float = 1.05070102214813232421875,
) -> Tensor:
    """gamma * (x where x > 0, else alpha * (exp(x) - 1)). Source: ONNX Selu-22."""
    return blocked(lambda v: v.dtype.type(gamma) * _elu(v, alpha), x)


@cpu_op("Celu", since=12)
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """max(x, 0) + min(0, alpha * (exp(x / alpha) - 1)). Source: ONNX Celu-28."""

    def apply(v: Tensor) -> Tensor:
        scale, zero = v.dtype.type(alpha), v.dtype.type(0)
        return np.asarray(np.maximum(v, zero) + np.minimum(scale * np.expm1(v / scale), zero))

    return blocked(apply, x)


def _hard(x: Tensor, alpha: float, beta: float, room: Tensor) -> Tensor:
    """max(0, min(1, alpha * x + beta)), in `room`."""
    kind = x.dtype.type
    np.multiply(x, kind(alpha), out=room)
    np.add(room, kind(beta), out=room)
    np.clip(room, kind(0), kind(1), out=room)
    return room


@cpu_op("HardSigmoid", since=6)
def hard_sigmoid(
    x: Tensor, *, alpha: float = 0.2, beta: float = 0.5, spare: Tensor | None = None
) -> Tensor:
    """max(0, min(1, alpha * x + beta)). Source: ONNX HardSigmoid-22."""
    return in_room(lambda v, _, out: _hard(v, alpha, beta, out), x, spare)


@cpu_op("HardSwish", since=14)
def hard_swish(x: Tensor, *, spare: Tensor | None = None) -> Tensor:
    """x * max(0, min(1, x / 6 + 0.5)). Source: ONNX HardSwish-22."""

    def formula(v: Tensor, room: Tensor, out: Tensor) -> None:
        np.multiply(v, _hard(v, 1 / 6, 0.5, room), out=out)

    return in_room(formula, x, spare)


def _softplus(x: Tensor) -> Tensor:
    return np.asarray(np.maximum(x, x.dtype.type(0)) + np.log1p(np.exp(-np.abs(x))))


@cpu_op("Softplus", since=1)
def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)). Source: ONNX Softplus-22."""
    return blocked(_softplus, x)


@cpu_op("Mish", since=18)
def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x)). Source: ONNX Mish-22."""
    return blocked(lambda v: v * np.tanh(_softplus(v)), x)


@cpu_op("Softsign", since=1)
def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|). Source: ONNX Softsign-22."""
    return blocked(lambda v: v / (v.dtype.type(1) + np.abs(v)), x)


@cpu_op("ThresholdedRelu", since=10)
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """x where x > alpha, else 0. Source: ONNX ThresholdedRelu-22."""
    return blocked(lambda v: np.where(v > v.dtype.type(alpha), v, v.dtype.type(0)), x)


@cpu_op("Shrink", since=9)
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    """x + bias below -lambd, x - bias above lambd, else 0. Source: ONNX Shrink-9."""

    def apply(v: Tensor) -> Tensor:
        kind = v.dtype.type if v.dtype.kind == "f" else np.float64
        moved = np.where(v < -kind(lambd), v + kind(bias), v - kind(bias))
        return np.where((v < -kind(lambd)) | (v > kind(lambd)), moved, 0).astype(v.dtype)

    return blocked(apply, x)


@cpu_op("Swish", since=24)
def swish(x: Tensor, *, alpha: float = 1.0, spare: Tensor | None = None) -> Tensor:
    """x * sigmoid(alpha * x). Source: ONNX Swish-24."""

    def formula(v: Tensor, room: Tensor, out: Tensor) -> None:
        np.divide(v, _denominator(v, alpha, room), out=out)

    return in_room(formula, x, spare)


@cpu_op("Gelu", since=20)
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """x * (1 + erf(x / sqrt(2))) / 2, or its form with tanh. Source: ONNX Gelu-20."""
    function = _gelu_tanh if approximate == "tanh" else _gelu
    return blocked(function, x)


def _gelu(x: Tensor) -> Tensor:
    kind = x.dtype.type
    return np.asarray(kind(0.5) * x * (kind(1) + erf_of(x * kind(math.sqrt(0.5)))))


def _gelu_tanh(x: Tensor) -> Tensor:
    kind = x.dtype.type
    inner = kind(math.sqrt(2.0 / math.pi)) * (x + kind(0.044715) * x * x * x)
    return np.asarray(kind(0.5) * x * (kind(1) + np.tanh(inner)))


@cpu_op("Not", since=1)
def not_(x: Tensor) -> Tensor:
    """Logical not of bools. Source: ONNX Not-1."""
    return np.asarray(np.logical_not(x))


@cpu_op("BitwiseNot", since=18)
def bitwise_not(x: Tensor) -> Tensor:
    """~x of integers. Source: ONNX BitwiseNot-18."""
    return np.asarray(np.bitwise_not(x))


@cpu_op("IsNaN", since=9)
def is_nan(x: Tensor) -> Tensor:
    """Where x is NaN: bool. Source: ONNX IsNaN-20."""
    return np.asarray(np.isnan(x))


@cpu_op("IsInf", since=10)
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    """Where x is infinite, of the wanted signs: bool. Source: ONNX IsInf-20."""
    wanted = np.isinf(x)
    if not detect_negative:
        wanted &= ~(x < 0)
    if not detect_positive:
        wanted &= ~(x > 0)
    return np.asarray(wanted)
