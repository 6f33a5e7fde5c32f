"""Optimisers of ai.onnx.preview.training in float32 as standard operators.

Adagrad, Adam, Momentum => Mul, Add, Sub, Div, Sqrt for each tensor, and a few for the learning rate
"""

from __future__ import annotations

import math

import numpy as np

from engine.dtypes import FLOAT32
from engine.ir import Graph, Node
from engine.ops.losses import OPTIMISERS, TRAINING
from engine.passes.base import PassResult
from engine.passes.build import Builder, Rule, replace_nodes


def lower_training(graph: Graph) -> PassResult:
    """Writes optimisers out in standard operators. Source: ai.onnx.preview.training-1."""
    return replace_nodes(graph, _rule_of)


def _rule_of(node: Node) -> Rule | None:
    return _optimiser if node.domain == TRAINING and node.op_type in OPTIMISERS else None


def _optimiser(b: Builder) -> str:
    count = (len(b.node.inputs) - 2) // OPTIMISERS[b.node.op_type]
    others = [b.dtype(i) for i in (0, *range(2, len(b.node.inputs)))]
    if any(dtype != FLOAT32 for dtype in others):
        return "it does not compute in float32"
    rate, step = b.node.inputs[:2]
    rules = {"Adagrad": _adagrad, "Adam": _adam, "Momentum": _momentum}
    rules[b.node.op_type](b, rate, step, count)
    return ""


def _number(b: Builder, value: float) -> str:
    return b.constant(np.array(value, np.float32))


def _scaled(b: Builder, x: str, factor: float) -> str:
    return x if factor == 1 else b.op("Mul", x, _number(b, factor))


def _regularised(b: Builder, x: str, gradient: str) -> str:
    """The gradient with that of a penalty on the squares of `x`."""
    factor = float(b.attr("norm_coefficient", 0.0))
    return gradient if factor == 0 else b.op("Add", _scaled(b, x, factor), gradient)


def _adagrad(b: Builder, rate: str, step: str, count: int) -> None:
    decay, epsilon = float(b.attr("decay_factor", 0.0)), float(b.attr("epsilon", 1e-6))
    if decay:
        steps = _scaled(b, b.op("Cast", step, to=FLOAT32.code), decay)
        rate = b.op("Div", rate, b.op("Add", _number(b, 1.0), steps))
    for i in range(count):
        x, gradient, squares = (b.node.inputs[2 + i + k * count] for k in range(3))
        slope = _regularised(b, x, gradient)
        grown = b.op("Add", squares, b.op("Mul", slope, slope), output=b.output(count + i))
        size = b.op("Add", b.op("Sqrt", grown), _number(b, epsilon))
        change = b.op("Div", b.op("Mul", rate, slope), size)
        b.op("Sub", x, change, output=b.output(i))


def _less_power(b: Builder, base: float, step: str) -> str:
    """1 - base^step, which the rounding of a power near 1 would spoil.

    With p = tanh(-step log(base) / 2) it is 2 p / (1 + p).
    """
    if base <= 0:
        return b.op("Sub", _number(b, 1.0), b.op("Pow", _number(b, base), step))
    p = b.op("Tanh", _scaled(b, step, -math.log(base) / 2))
    return b.op("Div", _scaled(b, p, 2.0), b.op("Add", _number(b, 1.0), p))


def _adam(b: Builder, rate: str, step: str, count: int) -> None:
    alpha, beta = float(b.attr("alpha", 0.9)), float(b.attr("beta", 0.999))
    epsilon, post = float(b.attr("epsilon", 1e-6)), float(b.attr("norm_coefficient_post", 0.0))
    steps = b.op("Cast", step, to=FLOAT32.code)
    corrected = b.op("Mul", rate, b.op("Sqrt", _less_power(b, beta, steps)))
    corrected = b.op("Div", corrected, _less_power(b, alpha, steps))
    rate = b.op("Where", b.op("Greater", steps, _number(b, 0.0)), corrected, rate)
    for i in range(count):
        x, gradient, mean, squares = (b.node.inputs[2 + i + k * count] for k in range(4))
        slope = _regularised(b, x, gradient)
        added = _scaled(b, slope, 1 - alpha)
        mean = b.op("Add", _scaled(b, mean, alpha), added, output=b.output(count + i))
        added = _scaled(b, b.op("Mul", slope, slope), 1 - beta)
        squares = b.op("Add", _scaled(b, squares, beta), added, output=b.output(2 * count + i))
        size = b.op("Add", b.op("Sqrt", squares), _number(b, epsilon))
        change = b.op("Mul", rate, b.op("Div", mean, size))
        if post == 0:
            b.op("Sub", x, change, output=b.output(i))
        else:
            b.op("Mul", b.op("Sub", x, change), _number(b, 1 - post), output=b.output(i))


def _momentum(b: Builder, rate: str, step: str, count: int) -> None:
    alpha, beta = float(b.attr("alpha")), float(b.attr("beta"))
    share = ""
    if beta != 1:
        later = b.op("Greater", b.op("Cast", step, to=FLOAT32.code), _number(b, 0.0))
        share = b.op("Where", later, _number(b, beta), _number(b, 1.0))
    for i in range(count):
        x, gradient, mean = (b.node.inputs[2 + i + k * count] for k in range(3))
        slope = _regularised(b, x, gradient)
        added = b.op("Mul", share, slope) if share else slope
        mean = b.op("Add", _scaled(b, mean, alpha), added, output=b.output(count + i))
        if b.attr("mode") in ("nesterov", b"nesterov"):
            mean = b.op("Add", slope, _scaled(b, mean, alpha))
        b.op("Sub", x, b.op("Mul", rate, mean), output=b.output(i))
