"""Losses of classification: types only, they are run as their function bodies or on the CPU."""

from __future__ import annotations

from engine.ir import TensorType, ValueType
from engine.ops import InferView, NodeView, OpDef, register


def _reduced(view: NodeView) -> TensorType:
    """The loss: one for each target, or one for all."""
    reduction = view.attr("reduction", "mean")
    kept = reduction in ("none", b"none")
    return TensorType(view.dtype(0), view.type(1).shape if kept else ())


def _infer(view: InferView) -> list[ValueType]:
    found: list[ValueType] = [_reduced(view), view.type(0)]
    return found[: len(view.node.outputs)]


for _name in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
    register(OpDef(_name, 12, infer=_infer))
