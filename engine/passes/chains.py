"""Chains of views and transposes: `Reshape -> Reshape => Reshape`, `Transpose -> Transpose => one`.

Reshape, Squeeze, Unsqueeze and Flatten keep the elements in order, so the last of a chain decides.
A Transpose that only moves axes of size 1 is a Reshape. A Reshape whose target is computed, but
known, gets it as a constant, so that the arithmetic behind it vanishes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.dims import Dim, bounds, is_static, product
from engine.ir import Graph, Node, Shape, label
from engine.passes.base import PassResult
from engine.passes.match import int_input, ints, is_op, standard
from engine.passes.rewrite import Editor, rewrite
from engine.records import dataclass

VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


@dataclass(frozen=True)
class Target:
    """The shape input and `allowzero` of a Reshape."""

    sizes: tuple[int, ...]
    allow_zero: bool = False


def chains(graph: Graph) -> PassResult:
    """Merges chains of views and of transposes, and makes computed Reshape targets constants."""
    return rewrite(graph, _edit)


def _edit(editor: Editor) -> None:
    for slot, node in editor.slots():
        if is_op(node, *VIEWS):
            _merge_views(editor, node)
        elif is_op(node, "Transpose"):
            _merge_transposes(editor, node)
        now = editor.at(slot)
        if now is not None and is_op(now, "Transpose"):
            _transpose_as_reshape(editor, now)
        elif now is not None and is_op(now, "Reshape"):
            _constant_target(editor, now)


def _merge_views(editor: Editor, node: Node) -> None:
    before = editor.producer(node.inputs[0])
    if before is None or not is_op(before, *VIEWS):
        return
    root = before.inputs[0]
    start, end = editor.shape(root), editor.shape(node.outputs[0])
    what = f"{label(before)} and {label(node)}"
    if start is not None and start == end:
        if editor.forward(node, root, f"{what} removed: they cancel"):
            return
    target = _last_target(editor, before, node) or reshape_target(start, end)
    if target is None:
        editor.near(
            node,
            f"{what} not merged: the shape {_show(end)} can't be written as one Reshape target",
        )
        return
    _reshape(editor, (before, node), root, target, f"{what} merged")


def _show(shape: Shape | None) -> str:
    return "(unknown)" if shape is None else f"[{', '.join(map(str, shape))}]"


def _last_target(editor: Editor, before: Node, node: Node) -> Target | None:
    """The second Reshape's own target, if it means the same on what comes before both."""
    if not is_op(node, "Reshape"):
        return None
    sizes = int_input(editor, node.inputs[1])
    allow_zero = bool(node.attrs.get("allowzero", 0))
    if sizes is None:
        return None
    if allow_zero or 0 not in sizes:
        return Target(tuple(sizes), allow_zero)
    start, middle = editor.shape(before.inputs[0]), editor.shape(node.inputs[0])
    if middle is None:
        return None
    adapted = []
    for axis, size in enumerate(sizes):
        if size != 0 or (start is not None and _at(start, axis) == middle[axis]):
            adapted.append(size)
        elif isinstance(middle[axis], int) and middle[axis] != 0:
            adapted.append(int(middle[axis]))  # type: ignore[arg-type]
        else:
            return None
    return Target(tuple(adapted))


def _at(shape: Shape, axis: int) -> Dim | None:
    return shape[axis] if axis < len(shape) else None


def reshape_target(start: Shape | None, end: Shape | None, solved: bool = False) -> Target | None:
    """How to write the shape `end` as a Reshape target for an input of shape `start`.

    A size that isn't a number is copied (0) where the input has it on the same axis; one more may
    be left open (-1) if no other can be 0, which would leave it undetermined, and if `end` has as
    many elements as `start`, which is then not checked any more: or `solved`, as one was left open
    before. None if that does not do.
    """
    if end is None:
        return None
    if is_static(end):
        return Target(tuple(int(d) for d in end), 0 in end)  # type: ignore[arg-type]
    sizes: list[int] = []
    for axis, dim in enumerate(end):
        if isinstance(dim, int):
            sizes.append(dim)
        elif start is not None and _at(start, axis) == dim:
            sizes.append(0)
        else:
            sizes.append(-1)
    if 0 in (d for d in end if isinstance(d, int)) or sizes.count(-1) > 1:
        return None
    if -1 in sizes and not all(_is_positive(d) for d, s in zip(end, sizes, strict=True) if s != -1):
        return None
    if -1 in sizes and not solved and (start is None or product(start) != product(end)):
        return None
    return Target(tuple(sizes))


def _is_positive(dim: Dim) -> bool:
    low = bounds(dim)[0]
    return low is not None and low > 0


def _reshape(editor: Editor, nodes: Sequence[Node], source: str, target: Target, text: str) -> Node:
    """Replaces `nodes`, of which only the last need go, by one Reshape of `source`."""
    last = nodes[-1]
    shape = editor.constant(f"{last.key}.shape", np.array(target.sizes, np.int64))
    attrs = {"allowzero": 1} if target.allow_zero else {}
    new = standard("Reshape", (source, shape), last.outputs[0], attrs, like=last)
    gone = [n for n in nodes if n is last or not editor.uses_beyond(n.outputs[0], (last,))]
    return editor.fuse(gone, new, text)


def _constant_target(editor: Editor, node: Node) -> None:
    """A Reshape whose target is not a constant, or leaves open or copies what is a number."""
    name = node.inputs[1]
    start, end = editor.shape(node.inputs[0]), editor.shape(node.outputs[0])
    value = editor.value(name)
    content = None if value is None or value.dims is None else value.dims.reshape(-1)
    target = reshape_target(start, end, content is not None and -1 in list(content))
    now = int_input(editor, name)
    if target is None:
        return
    constant = editor.const(name) is not None
    if (
        now is None
        or not constant
        or (end is not None and is_static(end) and now != [*target.sizes])
    ):
        words = ", ".join(map(str, target.sizes))
        _reshape(editor, (node,), node.inputs[0], target, f"{label(node)}: its target is [{words}]")


def _perm(editor: Editor, node: Node) -> list[int] | None:
    perm = ints(node, "perm")
    if perm is None:
        shape = editor.shape(node.inputs[0])
        perm = None if shape is None else list(range(len(shape)))[::-1]
    return perm


def _merge_transposes(editor: Editor, node: Node) -> None:
    before = editor.producer(node.inputs[0])
    if before is None or not is_op(before, "Transpose"):
        return
    first, second = _perm(editor, before), _perm(editor, node)
    if first is None or second is None:
        return
    root = before.inputs[0]
    perm = [first[axis] for axis in second]
    what = f"{label(before)} and {label(node)}"
    if perm == sorted(perm) and editor.forward(node, root, f"{what} removed: they cancel"):
        return
    new = standard("Transpose", (root,), node.outputs[0], {"perm": perm}, like=node)
    gone = [node] if editor.uses_beyond(before.outputs[0], (node,)) else [before, node]
    editor.fuse(gone, new, f"{what} merged into one, perm {perm}")


def _transpose_as_reshape(editor: Editor, node: Node) -> None:
    perm, start = _perm(editor, node), editor.shape(node.inputs[0])
    if perm is None or start is None or sorted(perm) != list(range(len(start))):
        return
    moving = [axis for axis in perm if start[axis] != 1]
    if moving != sorted(moving) or perm == sorted(perm):
        return
    end = tuple(start[axis] for axis in perm)
    target = reshape_target(start, end)
    if target is None:
        editor.near(
            node,
            f"{label(node)} moves axes of size 1 only, but no Reshape target says {_show(end)} "
            f"for {_show(start)}",
        )
        return
    text = f"{label(node)} moves axes of size 1 only: now a Reshape"
    _reshape(editor, (node,), node.inputs[0], target, text)
