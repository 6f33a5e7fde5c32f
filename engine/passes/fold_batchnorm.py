"""Per-channel arithmetic goes into weights: `Conv -> BatchNormalization => Conv`.

Also Conv, ConvTranspose, Gemm or MatMul followed by Neg, or by Mul, Div, Add or Sub with constants
that have one number, or one per output channel: `Conv -> Mul -> Add => Conv`. A MatMul may have its
bias in between: `MatMul -> Add -> Mul => MatMul -> Add`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.dtypes import BFLOAT16
from engine.ir import Array, Graph, Node, label
from engine.passes.base import PassResult
from engine.passes.match import is_op, rank_of, standard
from engine.passes.rewrite import Editor, rewrite
from engine.records import dataclass

Float64 = np.ndarray[Any, np.dtype[np.float64]]

LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
SHARED_NBYTES = 1 << 20
"""Weights with other readers are copied up to this size."""


@dataclass(frozen=True)
class Affine:
    """`y = x * scale + shift` per channel, [channels] or [1] float64 each."""

    scale: Float64
    shift: Float64


@dataclass(frozen=True)
class Linear:
    """A node whose output is linear in constant weights.

    Attributes:
        weights: the constant; its channels lie along `axis` (of each group, for ConvTranspose).
        channels: how many output channels there are, along `channel_axis` of an output of `rank`
            (None: unknown, counted from the end).
    """

    node: Node
    weights: Array
    axis: int
    channels: int
    channel_axis: int
    rank: int | None


def fold_batchnorm(graph: Graph) -> PassResult:
    """Folds normalisation, scaling and shifting by constants into the weights before it."""
    return rewrite(graph, _edit)


def _edit(editor: Editor) -> None:
    for node in editor.nodes():
        if is_op(node, "BatchNormalization", "Mul", "Div", "Add", "Sub", "Neg"):
            reason = _fold(editor, node)
            if reason:
                editor.near(node, f"{label(node)} not folded: {reason}")


def _fold(editor: Editor, node: Node) -> str:
    """Folds a node into the one before it; returns why not, "" also where nothing is near."""
    data = _data_input(editor, node)
    before = editor.producer(data)
    if before is not None and is_op(before, "Add") and is_op(node, "Mul", "Div", "Neg"):
        return _fold_past_bias(editor, node, before)
    if before is None or not is_op(before, *LINEAR):
        if is_op(node, "BatchNormalization") and before is not None:
            return f"its input comes from {label(before)}, which has no weights to fold it into"
        return ""
    linear = _linear(editor, before)
    if isinstance(linear, str):
        return linear if is_op(node, "BatchNormalization") else ""
    affine = _affine(editor, node, data, linear)
    if affine is None or isinstance(affine, str):
        return affine or ""
    if is_op(before, "MatMul") and affine.shift.any() and not is_op(node, "BatchNormalization"):
        return ""
    others = editor.uses_beyond(data, (node,))
    if others:
        return f"the result of {label(before)} is needed as it is: {others}"
    if _is_shared(editor, linear):
        return f"the weights {before.inputs[1]!r} of {label(before)} are shared"
    return _apply(editor, node, linear, affine)


def _fold_past_bias(editor: Editor, node: Node, add: Node) -> str:
    """Folds a scale behind a MatMul and its bias into both; returns why not."""
    product = _data_input(editor, add)
    bias = editor.const(add.inputs[1 - add.inputs.index(product)])
    before = editor.producer(product)
    if before is None or not is_op(before, "MatMul") or bias is None:
        return ""
    linear = _linear(editor, before)
    if isinstance(linear, str):
        return ""
    affine = _affine(editor, node, add.outputs[0], linear)
    kind = editor.tensor(product)
    if affine is None or isinstance(affine, str) or affine.shift.any() or kind is None:
        return ""
    if (bias.shape or (1,))[-1] not in (1, linear.channels):
        return ""
    for name, reader in ((product, add), (add.outputs[0], node)):
        others = editor.uses_beyond(name, (reader,))
        if others:
            return f"the value {name!r} is needed as it is: {others}"
    if _is_shared(editor, linear):
        return f"the weights {before.inputs[1]!r} of {label(before)} are shared"
    with np.errstate(all="ignore"):
        weights = _scaled(linear, affine.scale).astype(linear.weights.dtype)
        shift = np.asarray(bias.astype(np.float64) * affine.scale).astype(bias.dtype)
    if _loses(weights, linear.weights) or not _is_finite(shift):
        return f"the folded weights of {label(before)} leave the range of {weights.dtype.name}"
    inputs = before.inputs[0], editor.constant(f"{before.inputs[1]}.folded", weights)
    between = editor.add_value(f"{node.key}.product", kind)
    origin = tuple(dict.fromkeys(before.origin + node.origin))
    scaled = before.replace(inputs=inputs, outputs=(between,), origin=origin)
    operands = between, editor.constant(f"{node.key}.bias", shift)
    origin = tuple(dict.fromkeys(add.origin + node.origin))
    total = standard("Add", operands, node.outputs[0], like=add).replace(origin=origin)
    text = f"{label(node)} folded into {label(before)} and {label(add)}"
    editor.swap_pair(add, node, scaled, total, text=text)
    return ""


def _is_shared(editor: Editor, linear: Linear) -> bool:
    """Whether large weights have other readers, so that scaled ones would be a copy."""
    node = linear.node
    return linear.weights.nbytes > SHARED_NBYTES and bool(
        editor.uses_beyond(node.inputs[1], (node,))
    )


def _data_input(editor: Editor, node: Node) -> str:
    """The operand that isn't constant."""
    if is_op(node, "BatchNormalization", "Neg") or editor.const(node.inputs[0]) is None:
        return node.inputs[0]
    return node.inputs[1]


def _linear(editor: Editor, node: Node) -> Linear | str:
    weights = editor.const(node.input(1))
    if weights is None:
        return f"the weights of {label(node)} are not constant"
    if not _is_float(weights):
        return f"the weights of {label(node)} are not floating point"
    if node.input(2) and editor.const(node.input(2)) is None:
        return f"the bias of {label(node)} is not constant"
    if is_op(node, "Conv"):
        return Linear(node, weights, 0, weights.shape[0], 1, weights.ndim)
    if is_op(node, "ConvTranspose"):
        channels = weights.shape[1] * int(node.attrs.get("group", 1))
        return Linear(node, weights, 1, channels, 1, weights.ndim)
    if weights.ndim != 2:
        return f"the weights of {label(node)} have {weights.ndim} dims"
    if is_op(node, "Gemm"):
        axis = 0 if node.attrs.get("transB", 0) else 1
        return Linear(node, weights, axis, weights.shape[axis], 1, 2)
    return Linear(node, weights, 1, weights.shape[1], -1, rank_of(editor, node.inputs[0]))


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or bool(array.dtype == BFLOAT16.numpy)


def _affine(editor: Editor, node: Node, data: str, linear: Linear) -> Affine | str | None:
    """What `node` does to each channel of `data`; None if it does something else."""
    if is_op(node, "BatchNormalization"):
        return _batchnorm(editor, node, linear)
    if is_op(node, "Neg"):
        return Affine(-np.ones(1), np.zeros(1))
    side = node.inputs.index(data)
    constant = editor.const(node.inputs[1 - side])
    if constant is None:
        return None
    values = _per_channel(constant, linear)
    if values is None:
        return (
            f"its constant {list(constant.shape)} has not one number per channel of "
            f"{label(linear.node)}"
        )
    one, zero = np.ones(1), np.zeros(1)
    if is_op(node, "Mul"):
        return Affine(values, zero)
    if is_op(node, "Add"):
        return Affine(one, values)
    if is_op(node, "Sub"):
        return Affine(one, -values) if side == 0 else Affine(-one, values)
    with np.errstate(divide="ignore"):
        return Affine(1 / values, zero) if side == 0 else None


def _per_channel(constant: Array, linear: Linear) -> Float64 | None:
    """A constant as [channels] or [1], if it meets the linear node's output that way."""
    if constant.size == 1 and constant.ndim <= (linear.rank or 1):
        return constant.astype(np.float64).reshape(1)
    if linear.rank is None:
        aligned = constant.shape if constant.ndim == 1 else ()
        axis = 0
    else:
        if constant.ndim > linear.rank:
            return None
        aligned = (1,) * (linear.rank - constant.ndim) + constant.shape
        axis = linear.channel_axis % linear.rank
    if not aligned or aligned[axis] != linear.channels or constant.size != linear.channels:
        return None
    return constant.astype(np.float64).reshape(-1)


def _batchnorm(editor: Editor, node: Node, linear: Linear) -> Affine | str:
    if node.attrs.get("training_mode", 0) or any(node.outputs[1:]):
        return "it is in training mode"
    constants = [editor.const(name) for name in node.inputs[1:5]]
    if any(c is None for c in constants):
        return "its scale, bias, mean or variance is not constant"
    if is_op(linear.node, "MatMul") and linear.rank != 2:
        return f"the channels of {label(linear.node)} are not along axis 1"
    if any(c.shape != (linear.channels,) for c in constants if c is not None):
        return f"it has not one number for each channel of {label(linear.node)}"
    scale, bias, mean, variance = (
        c.astype(np.float64).reshape(-1) for c in constants if c is not None
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = scale / np.sqrt(variance + float(node.attrs.get("epsilon", 1e-5)))
        return Affine(factor, bias - mean * factor)


def _apply(editor: Editor, node: Node, linear: Linear, affine: Affine) -> str:
    before = linear.node
    with np.errstate(all="ignore"):
        weights = _scaled(linear, affine.scale).astype(linear.weights.dtype)
        bias = _new_bias(editor, linear, affine)
    if _loses(weights, linear.weights) or (bias is not None and not _is_finite(bias)):
        return f"the folded weights of {label(before)} leave the range of {weights.dtype.name}"
    base = before.inputs[1]
    inputs = [before.inputs[0], base, *before.inputs[2:3]]
    if (affine.scale != 1).any():
        inputs[1] = editor.constant(f"{base}.folded", weights)
    if bias is not None:
        inputs[2:] = [editor.constant(f"{before.inputs[1]}.bias", bias)]
    text = f"{label(node)} folded into {label(before)}"
    if is_op(before, "MatMul") and bias is not None:
        merged = standard("Gemm", inputs, node.outputs[0], like=before)
    else:
        attrs = dict(before.attrs)
        if is_op(before, "Gemm") and bias is not None:
            attrs["beta"] = 1.0
        merged = before.replace(inputs=tuple(inputs), attrs=attrs, outputs=node.outputs[:1])
    editor.fuse((before, node), merged, text)
    return ""


def _scaled(linear: Linear, scale: Float64) -> Float64:
    weights = linear.weights.astype(np.float64)
    if scale.size == 1:
        return np.asarray(weights * scale[0])
    if not is_op(linear.node, "ConvTranspose"):
        shape = [1] * weights.ndim
        shape[linear.axis] = -1
        return np.asarray(weights * scale.reshape(shape))
    groups = int(linear.node.attrs.get("group", 1))
    rows, columns, *window = weights.shape
    split = weights.reshape(groups, rows // groups, columns, *window)
    factors = scale.reshape(groups, 1, columns, *(1 for _ in window))
    return np.asarray(split * factors).reshape(weights.shape)


def _new_bias(editor: Editor, linear: Linear, affine: Affine) -> Array | None:
    """The bias after folding, None where there was none and none is needed."""
    node = linear.node
    old = editor.const(node.input(2))
    if old is None and not affine.shift.any():
        return None
    start = np.zeros(linear.channels) if old is None else old.astype(np.float64)
    if is_op(node, "Gemm"):
        start = start * float(node.attrs.get("beta", 1.0))
    return np.asarray(start * affine.scale + affine.shift).astype(linear.weights.dtype)


def _is_finite(array: Array) -> bool:
    return bool(np.isfinite(array.astype(np.float64)).all())


def _loses(new: Array, old: Array) -> bool:
    """Whether numbers overflowed, or float16 ones fell below the normal range.

    What falls below the normal range of wider types is noise.
    """
    if not _is_finite(new):
        return True
    if new.dtype != np.float16:
        return False
    tiny = np.finfo(np.float16).tiny
    return bool(((np.abs(new) < tiny) & (np.abs(old) >= tiny)).any())
