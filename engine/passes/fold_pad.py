"""Padding goes into the window operator behind it: `Pad -> Conv => Conv`.

Zeros go into Conv, and into AveragePool as counted padding; -inf (or zeros, where no element is
negative) into MaxPool.
"""

from __future__ import annotations

import numpy as np

from engine.dims import bounds
from engine.ir import Graph, Node, label
from engine.passes.base import PassResult
from engine.passes.match import int_input, ints, is_op, normal_axes, rank_of, text
from engine.passes.rewrite import Editor, rewrite
from engine.records import dataclass

WINDOWS = ("Conv", "AveragePool", "MaxPool")
_NOT_NEGATIVE = ("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Abs", "Exp", "Softplus")


@dataclass(frozen=True)
class Padding:
    """What a Pad adds around the spatial axes: `begin` and `end` elements each, of `value`."""

    begin: tuple[int, ...]
    end: tuple[int, ...]
    value: float


def fold_pad(graph: Graph) -> PassResult:
    """Moves constant padding of spatial axes into the `pads` of what reads it, where exact."""
    return rewrite(graph, _edit)


def _edit(editor: Editor) -> None:
    for node in editor.nodes():
        if not is_op(node, *WINDOWS):
            continue
        pad = editor.producer(node.inputs[0])
        if pad is None or not is_op(pad, "Pad"):
            continue
        reason = _fold(editor, pad, node)
        if reason:
            editor.near(node, f"{label(pad)} not folded into {label(node)}: {reason}")


def _fold(editor: Editor, pad: Node, node: Node) -> str:
    """Folds, or returns why not."""
    found = _padding(editor, pad)
    if isinstance(found, str):
        return found
    spatial = len(found.begin)
    auto_pad = text(node, "auto_pad", "NOTSET")
    if auto_pad not in ("NOTSET", "VALID", ""):
        return f"its auto_pad is {auto_pad}, which depends on the padded size"
    own = [0] * (2 * spatial) if auto_pad == "VALID" else ints(node, "pads") or [0] * (2 * spatial)
    if len(own) != 2 * spatial:
        return f"its pads {own} do not fit {spatial} spatial axes"
    pads = [a + b for a, b in zip(own, found.begin + found.end, strict=True)]
    reason = _CONDITIONS[node.op_type](editor, pad, node, found, own, pads)
    if reason:
        return reason
    attrs = {k: v for k, v in node.attrs.items() if k != "auto_pad"} | {"pads": pads}
    if is_op(node, "AveragePool"):
        attrs["count_include_pad"] = 1
    new = node.replace(inputs=(pad.inputs[0], *node.inputs[1:]), attrs=attrs)
    shared = editor.uses_beyond(pad.outputs[0], (node,))
    editor.fuse(
        (node,) if shared else (pad, node), new, f"{label(pad)} folded into {label(node)}: {pads}"
    )
    return ""


def _padding(editor: Editor, pad: Node) -> Padding | str:
    mode = text(pad, "mode", "constant")
    if mode != "constant":
        return f"its mode is {mode}: a kernel may do it where it loads (fusion rule border)"
    pads = int_input(editor, pad.inputs[1])
    if pads is None:
        return "its pads are not constant"
    rank = rank_of(editor, pad.inputs[0])
    axes: list[int] | None = list(range(len(pads) // 2))
    if pad.input(3):
        axes = int_input(editor, pad.inputs[3])
    elif rank is None:
        rank = len(pads) // 2
    if axes is None or rank is None or normal_axes(axes, rank) is None:
        return "its axes are not constant, or the rank is unknown"
    if min(pads, default=0) < 0:
        return "it crops: its pads are negative"
    begin, end = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        begin[axis % rank], end[axis % rank] = pads[place], pads[place + len(axes)]
    if rank < 3 or any(begin[:2] + end[:2]):
        return "it pads the batch or the channels"
    value = 0.0
    if pad.input(2):
        constant = editor.const(pad.inputs[2])
        if constant is None or constant.size != 1:
            return "its value is not constant"
        value = float(constant.reshape(-1)[0])
    return Padding(tuple(begin[2:]), tuple(end[2:]), value)


def _is_positive_zero(value: float) -> bool:
    return value == 0 and not np.signbit(value)


def _conv(
    editor: Editor, pad: Node, node: Node, found: Padding, own: list[int], pads: list[int]
) -> str:
    return "" if _is_positive_zero(found.value) else f"it pads with {found.value}, not with 0"


def _pool(node: Node, pads: list[int]) -> str:
    """Why the pads of a pooling node can't grow to `pads`."""
    kernel = ints(node, "kernel_shape") or []
    if node.attrs.get("ceil_mode", 0):
        return "its ceil_mode would count the windows of the padded size otherwise"
    if any(d != 1 for d in ints(node, "dilations") or ()):
        return "it is dilated, so a window could lie in the padding altogether"
    if any(p >= k for p, k in zip(pads, kernel * 2, strict=True)):
        return f"pads {pads} are not smaller than the window {kernel}"
    return ""


def _average_pool(
    editor: Editor, pad: Node, node: Node, found: Padding, own: list[int], pads: list[int]
) -> str:
    if not _is_positive_zero(found.value):
        return f"it pads with {found.value}, not with 0"
    if any(own) and not node.attrs.get("count_include_pad", 0):
        return "it has padding of its own that does not count"
    return _pool(node, pads)


def _max_pool(
    editor: Editor, pad: Node, node: Node, found: Padding, own: list[int], pads: list[int]
) -> str:
    if any(node.outputs[1:]):
        return "its indices count the padding"
    source = pad.inputs[0]
    producer = editor.producer(source)
    above = producer is not None and is_op(producer, *_NOT_NEGATIVE)
    if found.value != -np.inf and not (_is_positive_zero(found.value) and above):
        return f"it pads with {found.value}, which may exceed the elements"
    if any(own) and found.value != -np.inf:
        return "it has padding of its own, of another value"
    sizes = (editor.shape(source) or ())[2:]
    if not sizes or any((bounds(d)[0] or 0) < 1 for d in sizes):
        return "a spatial size may be 0, and then padding alone would be pooled"
    return _pool(node, pads)


_CONDITIONS = {"Conv": _conv, "AveragePool": _average_pool, "MaxPool": _max_pool}
