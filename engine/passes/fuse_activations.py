"""Decomposed activations: `x * Sigmoid(x) => Swish`, `x * Clip(x + 3, 0, 6) / 6 => HardSwish`,
`x * HardSigmoid(x) => HardSwish`, `x * Tanh(Softplus(x)) => Mish`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.ir import Graph, Node, label
from engine.passes.algebra import Activation, match
from engine.passes.base import PassResult
from engine.passes.match import is_op, scalar, standard
from engine.passes.rewrite import Editor, rewrite

FLOATS = ("float32", "float16", "float64", "bfloat16")
_RTOL = 1e-5


def operand_of(op_type: str) -> Callable[[Editor, Node], str]:
    """The operand of a node that is an `op_type`."""

    def inner(editor: Editor, node: Node) -> str:
        return node.inputs[0] if is_op(node, op_type) else ""

    return inner


def _relu6(editor: Editor, node: Node) -> str:
    if not is_op(node, "Clip"):
        return ""
    bounds = [scalar(editor, node.input(i), 1) for i in (1, 2)]
    return node.inputs[0] if bounds == [0.0, 6.0] else ""


def _hard_sigmoid(editor: Editor, node: Node) -> str:
    if not is_op(node, "HardSigmoid"):
        return ""
    alpha, beta = float(node.attrs.get("alpha", 0.2)), float(node.attrs.get("beta", 0.5))
    return node.inputs[0] if abs(alpha * 6 - 1) <= _RTOL and beta == 0.5 else ""


ACTIVATIONS = (
    Activation("Swish", operand_of("Sigmoid"), {(1, 0): 1.0}, {(1, 1): 1.0}, {"alpha": 1.0}),
    Activation("HardSwish", _relu6, {(1, 0): 1.0, (0, 0): 3.0}, {(1, 1): 1 / 6}, {}),
    Activation("HardSwish", _hard_sigmoid, {(1, 0): 1.0}, {(1, 1): 1.0}, {}),
)


def fuse_activations(graph: Graph) -> PassResult:
    """Recognises Swish, HardSwish and Mish."""
    return rewrite(graph, _edit)


def _edit(editor: Editor) -> None:
    for node in editor.nodes():
        fuse(editor, node, ACTIVATIONS)
        _mish(editor, node)


def fuse(editor: Editor, node: Node, activations: Sequence[Activation]) -> None:
    """Replaces the first activation that has `node` as its inner function, or notes why not."""
    for activation in activations:
        found = match(editor, node, activation)
        if found is None:
            continue
        dtype = editor.dtype(node.outputs[0])
        if isinstance(found, str):
            editor.near(node, f"{activation.op_type} not recognised at {label(node)}: {found}")
        elif dtype is not None and dtype.name in FLOATS:
            last = editor.producer(found.output)
            new = standard(
                activation.op_type, (found.x,), found.output, activation.attrs, like=last
            )
            names = ", ".join(label(n) for n in found.nodes)
            text = f"{activation.op_type} of {found.x!r} recognised in {names}"
            editor.fuse(found.nodes, new, text)
            return


def _mish(editor: Editor, node: Node) -> None:
    """`x * Tanh(Softplus(x))`, seen from the Tanh."""
    before = editor.producer(node.inputs[0]) if is_op(node, "Tanh") else None
    after = editor.only_consumer(node.outputs[0]) if before is not None else None
    if before is None or not is_op(before, "Softplus") or after is None or not is_op(after, "Mul"):
        return
    x = before.inputs[0]
    if set(after.inputs) != {x, node.outputs[0]}:
        return
    others = editor.uses_beyond(before.outputs[0], (node,))
    if others:
        editor.near(node, f"Mish not recognised at {label(node)}: {before.outputs[0]!r}: {others}")
        return
    names = ", ".join(map(label, (before, node, after)))
    new = standard("Mish", (x,), after.outputs[0], like=after)
    editor.fuse((before, node, after), new, f"Mish of {x!r} recognised in {names}")
