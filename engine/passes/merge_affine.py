"""Scales and shifts by constants, one after the other, are one of each: `Mul -> Add -> Mul -> Add
=> Mul -> Add`.

Exporters write a normalisation, and a learned scale and shift behind it. What is left of them in
front of a kernel, or behind one without weights, loads two numbers a channel, not four.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.ir import Array, Graph, Node, label
from engine.passes.base import PassResult
from engine.passes.match import broadcasts_into, is_op, standard
from engine.passes.rewrite import Editor, rewrite
from engine.records import dataclass

Float64 = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class _Step:
    """`data * scale + shift`."""

    node: Node
    data: str
    scale: Float64
    shift: Float64


def merge_affine(graph: Graph) -> PassResult:
    """Merges runs of products and sums with constants, computed in float64, rounded once; not if
    that skips a rounding or an overflow that a model may mean."""
    return rewrite(graph, _edit)


def _edit(editor: Editor) -> None:
    for node in editor.nodes():
        last = _step(editor, node)
        if last is None:
            continue
        after = editor.only_consumer(node.outputs[0])
        if after is not None and _step(editor, after) is not None:
            continue
        steps = [last]
        while (before := _before(editor, steps[-1])) is not None:
            steps.append(before)
        if len(steps) > 1:
            _merge(editor, steps[::-1])


def _before(editor: Editor, step: _Step) -> _Step | None:
    """The step whose result nothing but `step` reads."""
    node = editor.producer(step.data)
    if node is None or editor.only_consumer(step.data) is not step.node:
        return None
    return _step(editor, node)


def _step(editor: Editor, node: Node) -> _Step | None:
    """What a node does to its operand of the same shape, by a constant of float32."""
    if not is_op(node, "Add", "Div", "Mul", "Sub"):
        return None
    side = 1 if editor.const(node.inputs[0]) is None else 0
    constant, data = editor.const(node.inputs[side]), node.inputs[1 - side]
    if constant is None or constant.dtype != np.float32 or editor.const(data) is not None:
        return None
    shape = editor.shape(data)
    if shape is None or not broadcasts_into(constant.shape, shape):
        return None
    if side == 0 and is_op(node, "Div"):
        return None
    one, zero, number = np.ones(()), np.zeros(()), constant.astype(np.float64)
    if is_op(node, "Add"):
        return _Step(node, data, one, number)
    if is_op(node, "Sub"):
        return _Step(node, data, one if side else -one, -number if side else number)
    with np.errstate(divide="ignore"):
        return _Step(node, data, 1 / number if is_op(node, "Div") else number, zero)


def _merge(editor: Editor, steps: list[_Step]) -> None:
    scale, shift = np.ones(()), np.zeros(())
    passed = []
    with np.errstate(all="ignore"):
        for step in steps:
            scale, shift = scale * step.scale, shift * step.scale + step.shift
            passed.append((scale, shift))
        numbers = [(np.asarray(n, np.float32), none) for n, none in ((scale, 1), (shift, 0))]
        fits = all(_fits(number) for pair in passed for number in pair)
        rounds = any(_rounds(pair, passed[-1]) for pair in passed)
    parts = [
        (op_type, number)
        for op_type, (number, none) in zip(("Mul", "Add"), numbers, strict=True)
        if not (number == none).all()
    ]
    nodes, text = [s.node for s in steps], ", ".join(label(s.node) for s in steps)
    if len(parts) >= len(steps):
        return
    if not fits:
        editor.near(nodes[-1], f"{text} not merged: their factors leave the range of float32")
    elif rounds:
        editor.near(nodes[-1], f"{text} not merged: a sum rounds what another takes off again")
    elif parts:
        _put(editor, steps[0].data, nodes, parts, f"{text} merged")


def _fits(number: Float64) -> bool:
    """Whether float32 holds the numbers, and none but zero as zero."""
    narrow = number.astype(np.float32)
    return bool((np.isfinite(narrow) & ((narrow == 0) == (number == 0))).all())


def _rounds(passed: tuple[Float64, Float64], last: tuple[Float64, Float64]) -> bool:
    """Whether a shift is so large that data of size 1 lose most of their bits, and little of it is
    left at the end: `x + M - M` rounds x to the spacing of M, which no single step does."""
    scale, shift = map(np.abs, passed)
    last_scale, last_shift = map(np.abs, last)
    large = shift > scale * 2.0**13
    return bool((large & (shift * last_scale > 2.0**10 * last_shift * scale)).any())


def _put(
    editor: Editor, data: str, nodes: list[Node], parts: list[tuple[str, Array]], text: str
) -> None:
    """Puts a Mul, an Add or both in the places of the last of `nodes`."""
    last = nodes[-1]
    names = [editor.constant(f"{last.key}.{op_type.lower()}", number) for op_type, number in parts]
    if len(parts) == 1:
        new = standard(parts[0][0], (data, names[0]), last.outputs[0], like=last)
        editor.fuse(nodes, new, text)
        return
    kind = editor.tensor(last.outputs[0])
    if kind is None:  # an earlier pass of this round wrote it, and its type is not known yet
        return
    between = editor.add_value(f"{last.key}.scaled", kind)
    origin = tuple(dict.fromkeys(name for n in nodes for name in n.origin))
    product = standard("Mul", (data, names[0]), between, like=last).replace(origin=origin)
    total = standard("Add", (between, names[1]), last.outputs[0], like=last).replace(origin=origin)
    editor.swap_pair(nodes[-2], last, product, total, text=text)
