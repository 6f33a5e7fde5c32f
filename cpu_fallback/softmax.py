"""Softmax, LogSoftmax, Hardmax along one axis."""

from __future__ import annotations

import numpy as np

from cpu_fallback.elementwise import fitting, widened
from cpu_fallback.numeric import sum_over
from cpu_fallback.registry import Tensor, cpu_op


@cpu_op("Softmax", since=13)
def softmax(input: Tensor, *, axis: int = -1, spare: Tensor | None = None) -> Tensor:
    """exp(input) over its sum along `axis`; NaN where the row is all -inf.

    Source: ONNX Softmax-13.
    """

    def apply(x: Tensor) -> Tensor:
        if not x.size:
            return x.copy()
        y = np.subtract(x, np.maximum.reduce(x, axis=axis, keepdims=True), out=fitting(spare, x))
        np.exp(y, out=y)
        y /= sum_over(y, (axis,))
        return np.asarray(y)

    return widened(apply, input)


@cpu_op("LogSoftmax", since=13)
def log_softmax(input: Tensor, *, axis: int = -1) -> Tensor:
    """Logarithm of the softmax along `axis`. Source: ONNX LogSoftmax-13."""

    def apply(x: Tensor) -> Tensor:
        if not x.size:
            return x.copy()
        y = x - np.maximum.reduce(x, axis=axis, keepdims=True)
        y -= np.log(sum_over(np.exp(y), (axis,)))
        return np.asarray(y)

    return widened(apply, input)


@cpu_op("Hardmax", since=13)
def hardmax(input: Tensor, *, axis: int = -1) -> Tensor:
    """1 at the first largest element along `axis`, 0 elsewhere. Source: ONNX Hardmax-13."""
    result = np.zeros_like(input)
    if input.size:
        x = input if input.dtype.kind == "f" else input.astype(np.float32)
        np.put_along_axis(result, np.argmax(x, axis=axis, keepdims=True), 1, axis=axis)
    return result
