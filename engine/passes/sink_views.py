"""Transposes and views move behind elementwise nodes: `Transpose -> Relu => Relu -> Transpose`.

Then those join the kernel before it, and it meets others to merge with, or is an order of storing.
Operands beside it are single numbers, or come through the same Transpose or view; in front of a
Transpose, constants are transposed too. A Transpose also moves behind a reduction: less is left of
what it turns.
"""

from __future__ import annotations

import numpy as np

from engine.ir import REDUCTIONS, Graph, Node, TensorType, label
from engine.passes.base import PassResult
from engine.passes.chains import VIEWS
from engine.passes.match import int_input, is_op, normal_axes
from engine.passes.rewrite import Editor, rewrite

UNARY = (
    *("Abs", "Cast", "Ceil", "Clip", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid"),
    *("HardSwish", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round"),
    *("Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt", "Swish", "Tanh"),
)
QUANTISING = ("DequantizeLinear", "QuantizeLinear")
"""With one scale for all elements."""
BINARY = ("Add", "Div", "Mul", "Pow", "Sub")


def sink_views(graph: Graph) -> PassResult:
    """Moves Transposes and views as far down as elementwise nodes are their only readers."""
    return rewrite(graph, _edit)


def _edit(editor: Editor) -> None:
    """From the last node on, so that what a view is moved to has been moved on already."""
    for found in list(editor.nodes())[::-1]:
        node: Node | None = found if editor.producer(found.key) is found else None
        while node is not None:
            node = _sink(editor, node)


def _sink(editor: Editor, node: Node) -> Node | None:
    """Moves a node by one; returns it in its new place, or None if it stays."""
    if not is_op(node, "Transpose", *VIEWS):
        return None
    after = editor.only_consumer(node.outputs[0])
    if after is None:
        return None
    if is_op(node, "Transpose") and is_op(after, *REDUCTIONS):
        return _reduce(editor, node, after)
    if not is_op(after, *UNARY, *BINARY, *QUANTISING):
        return None
    others = [n for n in after.inputs if n and n != node.outputs[0]]
    if is_op(after, *QUANTISING) and any(editor.shape(n) != () for n in others):
        return None
    if all(_is_number(editor, n, node) for n in others):
        return _swap(editor, node, after, {node.outputs[0]: node.inputs[0]})
    if is_op(after, *BINARY):
        turned = _turned(editor, node, after, others)
        return _swap(editor, node, after, turned) if turned else _join(editor, node, after, others)
    return None


def _is_number(editor: Editor, name: str, node: Node) -> bool:
    """Whether a value is one constant number, of a rank that changes no shape."""
    constant = editor.const(name)
    shapes = (editor.shape(node.inputs[0]), editor.shape(node.outputs[0]))
    if constant is None or constant.size != 1:
        return False
    return all(shape is not None and constant.ndim <= len(shape) for shape in shapes)


def _turned(editor: Editor, node: Node, after: Node, others: list[str]) -> dict[str, str]:
    """What `after` reads in front of a Transpose, if all beside it are constants; else nothing."""
    shape = editor.shape(node.outputs[0])
    if not is_op(node, "Transpose") or shape is None or shape != editor.shape(after.outputs[0]):
        return {}
    order = np.argsort(_order(node, len(shape)))
    read = {node.outputs[0]: node.inputs[0]}
    for name in others:
        constant = editor.const(name)
        if constant is None:
            return {}
        aligned = constant.reshape((1,) * (len(shape) - constant.ndim) + constant.shape)
        read[name] = editor.constant(f"{name}.turned", aligned.transpose(order).copy())
    return read


def _reduce(editor: Editor, node: Node, after: Node) -> Node | None:
    """Moves a Transpose behind a reduction along known axes."""
    axes, before = int_input(editor, after.input(1)), editor.tensor(node.inputs[0])
    result = editor.tensor(after.outputs[0])
    if not axes or before is None or before.shape is None or result is None:
        return None
    rank, keeps = len(before.shape), bool(after.attrs.get("keepdims", 1))
    order = _order(node, rank)
    found = normal_axes(axes, rank)
    if found is None:
        return None
    reduced = sorted(order[axis] for axis in found)
    left = [axis for axis in order if axis not in reduced]
    places = {axis: place for place, axis in enumerate(sorted(left))}
    perm = list(order) if keeps else [places[axis] for axis in left]
    kept = [1 if axis in reduced else d for axis, d in enumerate(before.shape)]
    shape = kept if keeps else [before.shape[axis] for axis in sorted(left)]
    inner = editor.add_value(f"{after.key}.before", TensorType(result.dtype, tuple(shape)))
    numbers = editor.constant(f"{after.key}.axes", np.array(reduced, np.int64))
    earlier = after.replace(inputs=(node.inputs[0], numbers), outputs=(inner,))
    later = node.replace(inputs=(inner,), outputs=after.outputs, attrs={"perm": perm})
    text = f"{label(node)} moved behind {label(after)}"
    editor.swap_pair(node, after, earlier, later, text=text)
    return later


def _join(editor: Editor, node: Node, after: Node, others: list[str]) -> Node | None:
    """Moves two equal ones behind the node that reads both; the later one keeps its place."""
    other = editor.producer(others[0]) if len(others) == 1 else None
    if other is None or not is_op(other, "Transpose", *VIEWS):
        return None
    if editor.only_consumer(other.outputs[0]) is not after:
        return None
    if not _is_same(editor, node, other):
        return None
    places = {found.key: place for place, found in editor.slots()}
    last = max((node, other), key=lambda found: places[found.key])
    read = {node.outputs[0]: node.inputs[0], other.outputs[0]: other.inputs[0]}
    return _swap(editor, last, after, read)


def _is_same(editor: Editor, node: Node, other: Node) -> bool:
    """Whether two Transposes or views do the same to what they get."""
    mine, theirs = editor.shape(node.inputs[0]), editor.shape(other.inputs[0])
    if mine is None or theirs is None or len(mine) != len(theirs):
        return False
    if is_op(node, "Transpose") and is_op(other, "Transpose"):
        return _order(node, len(mine)) == _order(other, len(mine))
    if is_op(node, "Transpose") or is_op(other, "Transpose"):
        return False
    made = editor.shape(node.outputs[0])
    return mine == theirs and made is not None and made == editor.shape(other.outputs[0])


def _order(node: Node, rank: int) -> tuple[int, ...]:
    return tuple(node.attrs.get("perm") or range(rank)[::-1])


def _swap(editor: Editor, node: Node, after: Node, read: dict[str, str]) -> Node | None:
    """Lets `after` read what is before Transposes or views, and puts `node` behind it."""
    result, before = editor.tensor(after.outputs[0]), editor.shape(node.inputs[0])
    if result is None or result.shape is None or before is None or len(after.outputs) != 1:
        return None
    shape = list(before)
    if is_op(node, "Transpose"):
        for place, axis in enumerate(_order(node, len(before))):
            shape[axis] = result.shape[place]
    kind = TensorType(result.dtype, tuple(shape))
    inner = editor.add_value(f"{after.key}.before", kind)
    earlier = after.replace(inputs=tuple(read.get(n, n) for n in after.inputs), outputs=(inner,))
    later = node.replace(inputs=(inner, *node.inputs[1:]), outputs=after.outputs)
    text = f"{label(node)} moved behind {label(after)}"
    editor.swap_pair(node, after, earlier, later, text=text)
    return later
