"""FusedConv, FusedGemm and NhwcConv of com.microsoft as standard operators, for `lower_contrib`."""

from __future__ import annotations

import numpy as np

from engine.passes.build import Builder

_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_PARAMETERS = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": (),
}
"""Activations, with the attributes that parameters become; those of Clip are inputs."""


def _activate(b: Builder, x: str, given: list[float]) -> None:
    """Adds the activation of a node, with its parameters, as output 0."""
    name = str(b.attr("activation", ""))
    if not name:
        b.op("Identity", x, output=b.output(0))
    elif name == "Clip":
        limits = (b.constant(np.array(value, np.float32)) for value in given)
        b.op("Clip", x, *limits, output=b.output(0))
    else:
        b.op(name, x, output=b.output(0), **dict(zip(_PARAMETERS[name], given, strict=False)))


def _unknown(b: Builder) -> str:
    name = str(b.attr("activation", ""))
    return "" if not name or name in _PARAMETERS else f"its activation {name!r} is unknown"


def fused_conv(b: Builder) -> str:
    """Adds the nodes, or says why not."""
    if _unknown(b):
        return _unknown(b)
    given = {name: b.attr(name) for name in _CONV}
    result = b.op("Conv", *b.node.inputs[:2], b.node.input(2), **given)
    if b.has(3):
        result = b.op("Add", result, b.node.inputs[3])
    _activate(b, result, [float(v) for v in b.attr("activation_params") or ()])
    return ""


def fused_gemm(b: Builder) -> str:
    """Adds the nodes, or says why not."""
    if _unknown(b):
        return _unknown(b)
    given = {name: b.attr(name) for name in ("alpha", "beta", "transA", "transB")}
    result = b.op("Gemm", *b.node.inputs, **given)
    found = [b.attr(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    _activate(b, result, [float(v) for v in found if v is not None])
    return ""


def nhwc_conv(b: Builder) -> str:
    """Adds the nodes, or says why not."""
    rank = len(b.shape(0))
    given = {name: b.attr(name) for name in _CONV}
    x = b.op("Transpose", b.node.inputs[0], perm=[0, rank - 1, *range(1, rank - 1)])
    result = b.op("Conv", x, *b.node.inputs[1:], **given)
    b.op("Transpose", result, output=b.output(0), perm=[0, *range(2, rank), 1])
    return ""
