"""Nodes that do nothing: `Identity(x) => x`, and those that nobody needs.

A node is taken out where its output surely equals one of its inputs, element for element: no-op
Cast, Reshape, Transpose, Expand, Pad, Slice, Concat of one, Mul by 1, Add of -0.0, ... Then dead
nodes, optional outputs that nobody reads, initial states of zeros and unused constants go.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.ir import Array, Graph, Node, label
from engine.passes.base import PassResult
from engine.passes.match import broadcasts_into, int_input, ints, is_op
from engine.passes.rewrite import Editor, rewrite

Rule = Callable[[Editor, Node], str]
"""The input that output 0 surely equals, or ""."""

OPTIONAL_OUTPUTS: dict[str, tuple[int, ...]] = {
    "Attention": (1, 2, 3),
    "Dropout": (1,),
    "GRU": (0, 1),
    "LSTM": (0, 1, 2),
    "LayerNormalization": (1, 2),
    "MaxPool": (1,),
    "RNN": (0, 1),
    "SoftmaxCrossEntropyLoss": (1,),
    "Unique": (1, 2, 3),
}

INITIAL_STATES = {
    **dict.fromkeys((("", "GRU"), ("", "RNN")), (5,)),
    **dict.fromkeys((("", "LSTM"), ("com.microsoft", "DynamicQuantizeLSTM")), (5, 6)),
}
"""Inputs that are zeros if they are left out. PyTorch writes them for batches of any size."""

_LOSSLESS: dict[str, frozenset[str]] = {
    "bool": frozenset({"uint8", "int8", "int32", "int64", "float16", "float32", "float64"}),
    "float16": frozenset({"float32", "float64"}),
    "bfloat16": frozenset({"float32", "float64"}),
    "float32": frozenset({"float64"}),
    "int8": frozenset({"int16", "int32", "int64", "float16", "float32", "float64"}),
    "uint8": frozenset({"int16", "uint16", "int32", "int64", "float16", "float32", "float64"}),
    "int16": frozenset({"int32", "int64", "float32", "float64"}),
    "uint16": frozenset({"int32", "int64", "float32", "float64"}),
    "int32": frozenset({"int64", "float64"}),
    "uint32": frozenset({"int64", "float64"}),
}
"""Element types that hold every value of another, so that a Cast there and back changes nothing."""


def eliminate(graph: Graph) -> PassResult:
    """Takes out nodes that copy an input, and nodes, outputs and constants that nobody needs."""
    return rewrite(graph, _edit)


def _edit(editor: Editor) -> None:
    for node in editor.nodes():
        source = _RULES[node.op_type](editor, node) if is_op(node, *_RULES) else ""
        if source and not any(editor.is_used(n) for n in node.writes[1:]):
            text = f"{label(node)} removed: it copies {source!r}"
            if not editor.forward(node, source, text) and not is_op(node, "Identity"):
                editor.near(
                    node,
                    f"{label(node)} kept: it gives {source!r} a second name that the graph's "
                    "outputs need",
                )
    for node in editor.nodes():
        _drop_states(editor, node)
    for node in reversed(list(editor.nodes())):
        if not any(map(editor.is_used, node.writes)):
            editor.remove(node, f"{label(node)} removed: nothing needs it")
    for node in editor.nodes():
        _drop_outputs(editor, node)
    unread = [name for name, _ in editor.own_constants() if not editor.is_used(name)]
    if unread:
        editor.note(f"constants removed, nothing reads them: {', '.join(map(repr, unread))}")


def _drop_outputs(editor: Editor, node: Node) -> None:
    if not is_op(node, *OPTIONAL_OUTPUTS):
        return
    optional = OPTIONAL_OUTPUTS[node.op_type]
    kept = [
        "" if i in optional and not editor.is_used(name) else name
        for i, name in enumerate(node.outputs)
    ]
    while kept and not kept[-1]:
        kept.pop()
    gone = [name for name in node.writes if name not in kept]
    if gone:
        text = f"{label(node)}: output {', '.join(map(repr, gone))} dropped, nothing reads it"
        editor.swap(node, node.replace(outputs=tuple(kept)), text)


def _drop_states(editor: Editor, node: Node) -> None:
    places = INITIAL_STATES.get((node.domain, node.op_type), ())
    zeros = [i for i in places if node.input(i) and _are_zeros(editor, node.inputs[i])]
    if zeros:
        kept = ["" if i in zeros else name for i, name in enumerate(node.inputs)]
        while not kept[-1]:
            kept.pop()
        gone = ", ".join(repr(node.inputs[i]) for i in zeros)
        text = f"{label(node)}: initial state {gone} left out, as it is zeros"
        editor.swap(node, node.replace(inputs=tuple(kept)), text)


def _are_zeros(editor: Editor, name: str) -> bool:
    """Whether a value is made of nothing but 0.0, whatever its shape."""
    constant, node = editor.const(name), editor.producer(name)
    if constant is not None:
        return _is_zero(negative=False)(constant)
    if is_op(node, "ConstantOfShape") and node is not None:
        return not np.any(node.attrs.get("value", 0))
    moves = ("Expand", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")
    return node is not None and is_op(node, *moves) and _are_zeros(editor, node.inputs[0])


def _same_shape(editor: Editor, node: Node) -> str:
    source = node.inputs[0]
    shape = editor.shape(source)
    return source if shape is not None and shape == editor.shape(node.outputs[0]) else ""


def _identity(editor: Editor, node: Node) -> str:
    return node.inputs[0]


def _dropout(editor: Editor, node: Node) -> str:
    training = editor.const(node.input(2))
    inference = not node.input(2) or (training is not None and not training.any())
    return node.inputs[0] if inference else ""


def _cast(editor: Editor, node: Node) -> str:
    source = node.inputs[0]
    start, end = editor.dtype(source), editor.dtype(node.outputs[0])
    if start is None or end is None:
        return ""
    if start == end and not start.name.startswith("float8"):
        return source
    before = editor.producer(source)
    if before is not None and is_op(before, "Cast"):
        origin = editor.dtype(before.inputs[0])
        if origin == end and start.name in _LOSSLESS.get(end.name, ()):
            return before.inputs[0]
    return ""


def _transpose(editor: Editor, node: Node) -> str:
    perm = ints(node, "perm")
    if perm is None:
        shape = editor.shape(node.inputs[0])
        return node.inputs[0] if shape is not None and len(shape) <= 1 else ""
    return node.inputs[0] if perm == sorted(perm) else ""


def _pad(editor: Editor, node: Node) -> str:
    pads = int_input(editor, node.input(1))
    return node.inputs[0] if pads is not None and not any(pads) else ""


def _slice(editor: Editor, node: Node) -> str:
    steps = int_input(editor, node.input(4)) if node.input(4) else [1]
    if steps is None or any(s != 1 for s in steps):
        return ""
    return _same_shape(editor, node)


def _concat(editor: Editor, node: Node) -> str:
    return node.inputs[0] if len(node.inputs) == 1 else ""


def _clip(editor: Editor, node: Node) -> str:
    """Integers only: a bound left out is the largest finite number, which clips infinities."""
    dtype = editor.dtype(node.inputs[0])
    integers = dtype is not None and dtype.is_integer
    return node.inputs[0] if integers and not any(node.inputs[1:]) else ""


def _neutral(
    is_neutral: Callable[[Array], bool],
    sides: tuple[int, ...],
) -> Rule:
    """A rule for `op(x, c)` with a constant that leaves x as it is, on one of the `sides`."""

    def rule(editor: Editor, node: Node) -> str:
        for side in sides:
            constant, other = editor.const(node.inputs[side]), node.inputs[1 - side]
            shape = editor.shape(other)
            if constant is None or shape is None or constant.size == 0:
                continue
            if is_neutral(constant) and broadcasts_into(constant.shape, shape):
                return other
        return ""

    return rule


def _is_one(array: Array) -> bool:
    return array.dtype != object and bool((array == 1).all())


def _is_zero(negative: bool) -> Callable[[Array], bool]:
    """Zeros of one sign: x + 0.0 turns -0.0 into 0.0, x + -0.0 and x - 0.0 change nothing."""

    def is_zero(array: Array) -> bool:
        if array.dtype.kind in "Oc" or (array != 0).any():
            return False
        if array.dtype.kind in "iu":
            return True
        signs = np.signbit(array.astype(np.float64))
        return bool(signs.all() if negative else not signs.any())

    return is_zero


_RULES: dict[str, Rule] = {
    "Add": _neutral(_is_zero(negative=True), (0, 1)),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Div": _neutral(_is_one, (1,)),
    "Dropout": _dropout,
    "Expand": _same_shape,
    "Flatten": _same_shape,
    "Identity": _identity,
    "Max": _concat,
    "Mean": _concat,
    "Min": _concat,
    "Mul": _neutral(_is_one, (0, 1)),
    "Pad": _pad,
    "Pow": _neutral(_is_one, (1,)),
    "Reshape": _same_shape,
    "Slice": _slice,
    "Squeeze": _same_shape,
    "Sub": _neutral(_is_zero(negative=False), (1,)),
    "Sum": _concat,
    "Tile": _same_shape,
    "Transpose": _transpose,
    "Unsqueeze": _same_shape,
}
