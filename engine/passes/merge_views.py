"""A transpose of merged axes is a transpose: `Reshape -> Transpose -> Reshape => Transpose`.

The first view merges neighbouring axes, the last one splits them again, as PyTorch's exporter does
around the transpose of the keys in attention: [b, h, s, d] to [b * h, s, d] and back. Where only
the first view is there, between two Transposes, it goes behind both: `Transpose -> Reshape ->
Transpose => Transpose -> Reshape`. Recurrences in both directions, batch first, are exported so.
"""

from __future__ import annotations

import numpy as np

from engine.dims import Dim
from engine.ir import Graph, Node, Shape, TensorType, label
from engine.passes.base import PassResult
from engine.passes.chains import VIEWS, reshape_target
from engine.passes.match import ints, is_op, standard
from engine.passes.rewrite import Editor, rewrite


def merge_views(graph: Graph) -> PassResult:
    """Takes views around a Transpose away, where one Transpose of all axes does the same, and moves
    those between two Transposes behind them."""
    return rewrite(graph, _edit)


def _edit(editor: Editor) -> None:
    for last in editor.nodes():
        view = editor.producer(last.inputs[0]) if is_op(last, "Transpose") else None
        if view is not None and is_op(view, *VIEWS):
            first = editor.producer(view.inputs[0])
            if first is not None and is_op(first, "Transpose"):
                _sink(editor, view, last)
    for last in editor.nodes():
        transpose = editor.producer(last.inputs[0]) if is_op(last, *VIEWS) else None
        if transpose is None or not is_op(transpose, "Transpose"):
            continue
        first = editor.producer(transpose.inputs[0])
        if first is not None and is_op(first, *VIEWS):
            reason = _merge(editor, first, transpose, last)
            if reason:
                names = f"{label(first)}, {label(transpose)} and {label(last)}"
                editor.near(last, f"{names} not merged: {reason}")


def _merge(editor: Editor, first: Node, transpose: Node, last: Node) -> str:
    """Merges the three, or returns why not; "" also where they do something else."""
    start, middle = editor.shape(first.inputs[0]), editor.shape(first.outputs[0])
    end, perm = editor.shape(last.outputs[0]), ints(transpose, "perm")
    if start is None or middle is None or end is None:
        return ""
    perm = list(range(len(middle)))[::-1] if perm is None else perm
    groups = merged_axes(start, middle)
    if groups is None:
        return ""
    axes = [axis for group in perm for axis in groups[group]]
    if tuple(start[axis] for axis in axes) != end:
        return ""
    others = editor.uses_beyond(transpose.outputs[0], (last,))
    if others:
        return f"{transpose.outputs[0]!r} is needed as it is: {others}"
    new = standard("Transpose", first.inputs[:1], last.outputs[0], {"perm": axes}, like=last)
    kept = editor.uses_beyond(first.outputs[0], (transpose,))
    nodes = (transpose, last) if kept else (first, transpose, last)
    text = " and ".join(map(label, (first, transpose, last)))
    editor.fuse(nodes, new, f"{text} merged into one Transpose, perm {axes}")
    return ""


def _sink(editor: Editor, view: Node, last: Node) -> None:
    """Moves a view that merges axes behind a Transpose, if only that needs what it makes."""
    start, middle = editor.shape(view.inputs[0]), editor.shape(view.outputs[0])
    end, dtype = editor.shape(last.outputs[0]), editor.dtype(view.inputs[0])
    if start is None or middle is None or end is None or dtype is None:
        return
    groups, perm = merged_axes(start, middle), ints(last, "perm")
    if groups is None or editor.uses_beyond(view.outputs[0], (last,)):
        return
    perm = list(range(len(middle)))[::-1] if perm is None else perm
    axes = [axis for group in perm for axis in groups[group]]
    turned = tuple(start[axis] for axis in axes)
    target = reshape_target(turned, end)
    if target is None:
        return
    name = editor.add_value(f"{last.key}.turned", TensorType(dtype, turned))
    transpose = standard("Transpose", view.inputs[:1], name, {"perm": axes}, like=last)
    shape = editor.constant(f"{last.key}.shape", np.array(target.sizes, np.int64))
    attrs = {"allowzero": 1} if target.allow_zero else {}
    merged = standard("Reshape", (name, shape), last.outputs[0], attrs, like=view)
    text = f"{label(view)} moved behind {label(last)}"
    editor.swap_pair(view, last, transpose, merged, text=text)


def merged_axes(start: Shape, merged: Shape) -> list[list[int]] | None:
    """For each size of `merged` the neighbouring axes of `start` whose product it is.

    None if some size is not provably such a product. Axes of size 1 that are left over at the end
    go to the last group.
    """
    groups: list[list[int]] = []
    axis = 0
    for size in merged:
        group: list[int] = []
        product: Dim = 1
        while product != size and axis < len(start):
            product = product * start[axis]
            group.append(axis)
            axis += 1
        if product != size:
            return None
        groups.append(group)
    left = list(range(axis, len(start)))
    if any(start[a] != 1 for a in left) or (left and not groups):
        return None
    if left:
        groups[-1].extend(left)
    return groups
