"""Padding moves behind a view that only adds or drops axes of size 1, towards the window operator
that can take it in: `Pad -> Reshape -> Conv => Reshape -> Pad -> Conv`.

TensorFlow's one-dimensional convolutions look like that.
"""

from __future__ import annotations

import numpy as np

from engine.dims import Dim
from engine.ir import Graph, Node, Shape, TensorType, label
from engine.passes.base import PassResult
from engine.passes.chains import VIEWS, reshape_target
from engine.passes.fold_pad import WINDOWS
from engine.passes.match import int_input, is_op, standard
from engine.passes.rewrite import Editor, rewrite


def sink_pad(graph: Graph) -> PassResult:
    """Moves padding over Reshape, Squeeze, Unsqueeze and Flatten in front of windows."""
    return rewrite(graph, _edit)


def _edit(editor: Editor) -> None:
    for view in editor.nodes():
        if not is_op(view, *VIEWS):
            continue
        pad = editor.producer(view.inputs[0])
        readers = editor.consumers(view.outputs[0])
        if pad is None or not is_op(pad, "Pad") or not readers:
            continue
        if not all(is_op(node, *WINDOWS) for node in readers):
            continue
        reason = _swap(editor, pad, view)
        if reason:
            editor.near(view, f"{label(pad)} not moved behind {label(view)}: {reason}")


def _swap(editor: Editor, pad: Node, view: Node) -> str:
    """Swaps the two, or returns why not."""
    pads = int_input(editor, pad.inputs[1])
    if pads is None or pad.input(3):
        return "it is not padding of known size on all axes"
    others = editor.uses_beyond(pad.outputs[0], (view,))
    if others or editor.is_output(view.outputs[0]):
        return f"its result is needed as it is: {others or 'it is an output of the graph'}"
    start, padded = editor.shape(pad.inputs[0]), editor.shape(pad.outputs[0])
    end, dtype = editor.shape(view.outputs[0]), editor.dtype(pad.inputs[0])
    if start is None or padded is None or end is None or dtype is None:
        return "a shape is unknown"
    places = matching_axes(padded, end)
    if places is None:
        return "the view does more than add or drop axes of size 1"
    inner, new_pads = list(end), [0] * (2 * len(end))
    for axis, (before, after) in enumerate(
        zip(pads[: len(start)], pads[len(start) :], strict=True)
    ):
        if before or after:
            place = places.get(axis)
            if place is None:
                return f"the padded axis {axis} has size 1"
            inner[place] = start[axis]
            new_pads[place], new_pads[place + len(end)] = before, after
    by_axes = is_op(view, "Unsqueeze", "Squeeze") and bool(view.input(1))
    target = None if by_axes else reshape_target(start, tuple(inner))
    if target is None and not by_axes:
        return "the shape before padding can't be written as one Reshape target"
    unpadded = editor.add_value(f"{view.key}.unpadded", TensorType(dtype, tuple(inner)))
    reshape = view.replace(inputs=(pad.inputs[0], *view.inputs[1:]), outputs=(unpadded,))
    if target is not None:
        shape = editor.constant(f"{view.key}.shape", np.array(target.sizes, np.int64))
        attrs = {"allowzero": 1} if target.allow_zero else {}
        reshape = standard("Reshape", (pad.inputs[0], shape), unpadded, attrs, like=view)
    sizes = editor.constant(f"{view.key}.pads", np.array(new_pads, np.int64))
    moved = pad.replace(inputs=(unpadded, sizes, *pad.inputs[2:3]), outputs=view.outputs)
    words = f"{label(pad)} moved behind {label(view)}"
    editor.swap_pair(pad, view, reshape, moved, text=words)
    return ""


def matching_axes(before: Shape, after: Shape) -> dict[int, int] | None:
    """Axes of `before` that are not 1 to their axes in `after`; None if other axes differ."""
    mine = [axis for axis, dim in enumerate(before) if dim != 1]
    theirs = [axis for axis, dim in enumerate(after) if dim != 1]
    sizes: tuple[list[Dim], list[Dim]] = ([before[a] for a in mine], [after[a] for a in theirs])
    return dict(zip(mine, theirs, strict=True)) if sizes[0] == sizes[1] else None
