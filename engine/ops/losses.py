"""Losses of classification: types only, they are run as their function bodies or on the CPU."""

from __future__ import annotations

from engine.errors import ShapeError
from engine.ir import TensorType, ValueType
from engine.ops import InferView, OpDef, register
from engine.ops._fit import alike

SCORES, TARGET, WEIGHT = range(3)
_REDUCTIONS = ("none", "sum", "mean")


def _loss(view: InferView) -> TensorType:
    """The loss: one for each target, or one for all."""
    reduction = view.attr("reduction", "mean")
    if reduction not in _REDUCTIONS:
        raise ShapeError(f"{view.describe()}: reduction is {reduction!r}, none of {_REDUCTIONS}")
    kept = reduction == "none"
    return TensorType(view.dtype(SCORES), view.type(TARGET).shape if kept else ())


def _infer(view: InferView) -> list[ValueType]:
    """A target for each place of the scores, which have the classes on axis 1, each weighted."""
    found: list[ValueType] = [_loss(view), view.type(SCORES)]
    scores = view.shape(SCORES)
    if len(scores) < 2:
        raise ShapeError(f"{view.describe()}: scores have at least two axes, batch and classes")
    view.require(alike(view, (scores[0], *scores[2:]), view.shape(TARGET)))
    if view.has(WEIGHT):
        view.require(alike(view, scores[1:2], view.shape(WEIGHT)))
    return found[: len(view.node.outputs)]


for _name in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
    register(OpDef(_name, 12, infer=_infer))
