"""Normalisation by constants becomes arithmetic: `BatchNormalization => Mul -> Add`.

What `fold_batchnorm` left has no weights before it. As elementwise nodes it joins the kernel
before it, or one with what follows.
"""

from __future__ import annotations

import numpy as np

from engine.ir import Graph, Node
from engine.passes.base import PassResult
from engine.passes.build import Builder, Rule, replace_nodes
from engine.passes.match import is_op


def lower_batchnorm(graph: Graph) -> PassResult:
    """Writes normalisation of float32 by constant statistics as a product and a sum."""
    return replace_nodes(graph, _rule)


def _rule(node: Node) -> Rule | None:
    return _lower if is_op(node, "BatchNormalization") else None


def _lower(view: Builder) -> str:
    """`x * factor + shift`, one number a channel; computed in float64 as its definition says."""
    if view.attr("training_mode", 0) or any(view.wants(i) for i in range(1, 5)):
        return "it is in training mode"
    constants = [view.graph.constant(name) for name in view.node.inputs[1:5]]
    if any(c is None for c in constants):
        return "its scale, bias, mean or variance is not constant"
    if view.dtype(0).name != "float32" or any(
        c is not None and c.dtype != np.float32 for c in constants
    ):
        return "two operations on narrow types would round twice"
    rank = len(view.shape(0))
    if rank < 2:
        return f"its input has rank {rank}, without channels"
    sizes = {c.shape for c in constants if c is not None}
    channels = view.shape(0)[1]
    if not isinstance(channels, int):
        return "calls decide how many channels there are, and a product would take any number"
    if sizes != {(channels,)}:
        return "its scale, bias, mean and variance are not one number for each channel"
    scale, bias, mean, variance = (
        c.astype(np.float64).reshape(-1) for c in constants if c is not None
    )
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + float(view.attr("epsilon", 1e-5)))
        numbers = [n.astype(np.float32) for n in (factor, bias - mean * factor)]
    if not all(np.isfinite(n).all() for n in numbers):
        return "its factors leave the range of float32"
    along = (-1, *[1] * (rank - 2))
    product, shift = (view.constant(n.reshape(along)) for n in numbers)
    scaled = view.op("Mul", view.node.inputs[0], product)
    view.op("Add", scaled, shift, output=view.node.outputs[0])
    return ""
