"""Softmax written out: `e = Exp(x - ReduceMax(x)), e / ReduceSum(e) => Softmax`, and
`d = x - ReduceMax(x), d - Log(ReduceSum(Exp(d))) => LogSoftmax`.

The maximum may go through a Max with minus infinity, as JAX writes it, and what is reduced through
views that give it its dimension back.
"""

from __future__ import annotations

import numpy as np

from engine.ir import Graph, Node, label
from engine.passes.base import PassResult
from engine.passes.chains import VIEWS
from engine.passes.match import int_input, is_op, normal_axes, standard
from engine.passes.rewrite import Editor, rewrite

FLOATS = ("float32", "float16", "float64", "bfloat16")


def fuse_softmax(graph: Graph) -> PassResult:
    """Recognises Softmax and LogSoftmax along one axis."""
    return rewrite(graph, _edit)


def _edit(editor: Editor) -> None:
    for node in editor.nodes():
        if not is_op(node, "ReduceSum"):
            continue
        exp = editor.producer(node.inputs[0])
        less = editor.producer(exp.inputs[0]) if is_op(exp, "Exp") and exp is not None else None
        if exp is not None and less is not None and is_op(less, "Sub"):
            _fuse(editor, node, exp, less)


def _fuse(editor: Editor, total: Node, exp: Node, less: Node) -> None:
    axis, x = _axis(editor, total), less.inputs[0]
    largest = _reduced(editor, less.inputs[1], x, axis)
    dtype = editor.dtype(x)
    if axis is None or largest is None or dtype is None or dtype.name not in FLOATS:
        return
    last, op_type, views = _last(editor, total, exp, less)
    if last is None or not _keeps(editor, last.inputs[1], x, axis):
        editor.near(total, f"Softmax not recognised at {label(total)}: its sum divides nothing")
        return
    kept = {"Softmax": exp.outputs[0], "LogSoftmax": less.outputs[0]}[op_type]
    inside = (total, exp, less, last, *views)
    for name in dict.fromkeys((kept, exp.outputs[0], less.outputs[0], total.outputs[0])):
        others = editor.uses_beyond(name, inside)
        if others:
            editor.near(total, f"{op_type} not recognised at {label(total)}: {name!r}: {others}")
            return
    new = standard(op_type, (x,), last.outputs[0], {"axis": axis}, like=last)
    nodes = (*largest, less, exp, total, *views, last)
    names = ", ".join(label(n) for n in nodes)
    editor.fuse(nodes, new, f"{op_type} of {x!r} recognised in {names}")


def _axis(editor: Editor, node: Node) -> int | None:
    """The one axis that a node reduces, counted from the front."""
    shape = editor.shape(node.inputs[0])
    axes = int_input(editor, node.input(1)) if node.input(1) else None
    found = normal_axes(axes, len(shape)) if axes is not None and shape is not None else None
    return found[0] if found is not None and len(found) == 1 else None


def _keeps(editor: Editor, name: str, x: str, axis: int) -> bool:
    """Whether a value has the shape of `x` with 1 along `axis`."""
    shape, whole = editor.shape(name), editor.shape(x)
    return whole is not None and shape == (*whole[:axis], 1, *whole[axis + 1 :])


def _reduced(editor: Editor, name: str, x: str, axis: int | None) -> list[Node] | None:
    """The nodes that make the maxima of `x` along an axis, None if a value is something else."""
    if axis is None or not _keeps(editor, name, x, axis):
        return None
    nodes: list[Node] = []
    node = editor.producer(name)
    while node is not None and is_op(node, "Max", *VIEWS):
        nodes.insert(0, node)
        data = [n for n in node.inputs if not _is_lowest(editor, n)]
        if is_op(node, "Max") and len(data) != 1:
            return None
        node = editor.producer(data[0])
    if node is None or not is_op(node, "ReduceMax") or node.inputs[0] != x:
        return None
    return [node, *nodes] if _axis(editor, node) == axis else None


def _is_lowest(editor: Editor, name: str) -> bool:
    array = editor.const(name)
    return array is not None and array.dtype.kind == "f" and bool(np.isneginf(array).all())


def _last(
    editor: Editor, total: Node, exp: Node, less: Node
) -> tuple[Node | None, str, tuple[Node, ...]]:
    """The node that divides by the sum, or subtracts its logarithm, and what is on the way."""
    op_type, on_the_way = "Softmax", list[Node]()
    name = total.outputs[0]
    while (node := editor.only_consumer(name)) is not None:
        if is_op(node, *VIEWS):
            on_the_way.append(node)
        elif is_op(node, "Log") and op_type == "Softmax":
            op_type = "LogSoftmax"
            on_the_way.append(node)
        else:
            wanted = ("Div", exp) if op_type == "Softmax" else ("Sub", less)
            whole = (wanted[1].outputs[0], name)
            fits = is_op(node, wanted[0]) and node.inputs == whole
            return (node if fits else None), op_type, tuple(on_the_way)
        name = node.outputs[0]
    return None, op_type, ()
