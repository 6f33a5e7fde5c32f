"""Losses of classification and optimisers: types only.

Losses are run as their function bodies or on the CPU, optimisers as what a pass makes of them.
"""

from __future__ import annotations

from engine.errors import ShapeError
from engine.ir import TensorType, ValueType
from engine.ops import InferView, OpDef, register
from engine.ops._fit import alike

OPTIMISERS = {"Adagrad": 3, "Adam": 4, "Momentum": 3}
"""Tensors for each one that is optimised: itself, its gradient, what is remembered."""
TRAINING = "ai.onnx.preview.training"
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


def _infer_optimiser(view: InferView) -> list[ValueType]:
    """A rate, a step, and for each tensor its gradient and what is remembered, all of its shape."""
    groups = OPTIMISERS[view.node.op_type]
    count, rest = divmod(len(view.node.inputs) - 2, groups)
    if rest or count < 1:
        raise ShapeError(
            f"{view.describe()}: behind the rate and the step it takes {groups} tensors for each "
            f"one that is optimised, and has {len(view.node.inputs) - 2}"
        )
    mode = view.attr("mode", "standard")
    if mode not in ("standard", "nesterov"):
        raise ShapeError(f"{view.describe()}: mode {mode!r} is neither standard nor nesterov")
    for index in (0, 1):
        shape = view.shape(index)
        view.require(alike(view, shape, (1,) * len(shape)))
    for index in range(2 + count, len(view.node.inputs)):
        view.require(alike(view, view.shape(2 + (index - 2) % count), view.shape(index)))
    places = [i for i in range(2, len(view.node.inputs)) if not 2 + count <= i < 2 + 2 * count]
    kinds: list[ValueType] = [view.type(i) for i in places]
    return kinds[: len(view.node.outputs)]


for _name in OPTIMISERS:
    register(OpDef(_name, 1, TRAINING, infer=_infer_optimiser))
