"""Losses of classification, which training and evaluation graphs contain."""

from __future__ import annotations

import numpy as np

from cpu_fallback.numeric import sum_over, wide
from cpu_fallback.registry import Tensor, cpu_op


@cpu_op("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-x at the target class, weighted: `x` [N, C, ...], target [N, ...], weight [C].

    reduction: "none" gives the shape of target, "sum" and "mean" a scalar; the mean is over
    weights, those of `ignore_index` being 0.

    Raises: ValueError for an unknown reduction or a target outside [0, C).
    Source: ONNX NegativeLogLikelihoodLoss-22.
    """
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(f"reduction {reduction!r} is none of none, sum, mean")
    counted = np.ones(target.shape, bool) if ignore_index is None else target != ignore_index
    classes = np.where(counted, target, 0).astype(np.int64)
    if np.any((classes < 0) | (classes >= x.shape[1])):
        raise ValueError(f"a target is outside [0, {x.shape[1]})")
    values = x.astype(wide(x.dtype))
    picked = np.take_along_axis(values, np.expand_dims(classes, 1), axis=1).squeeze(1)
    weights = np.ones(target.shape, values.dtype)
    if weight is not None:
        weights = weight.astype(values.dtype)[classes]
    weights = np.where(counted, weights, 0)
    loss = np.where(counted, -picked * weights, 0)
    if reduction == "sum":
        loss = loss.sum()
    elif reduction == "mean":
        loss = loss.sum() / weights.sum()
    return np.asarray(loss).astype(x.dtype)


@cpu_op("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy_loss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    """Loss of the logarithmic softmax of `scores` [N, C, ...] over classes, and that softmax.

    Raises: as `negative_log_likelihood_loss`. Source: ONNX SoftmaxCrossEntropyLoss-13.
    """
    values = scores.astype(wide(scores.dtype))
    shifted = values - values.max(axis=1, keepdims=True)
    log_prob = shifted - np.log(sum_over(np.exp(shifted), (1,)))
    loss = negative_log_likelihood_loss(
        log_prob,
        labels,
        weights,
        ignore_index=ignore_index,
        reduction=reduction,
    )
    return loss.astype(scores.dtype), log_prob.astype(scores.dtype)
