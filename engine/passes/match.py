"""What patterns are told by: attributes, scalars, shapes that broadcast, and new standard nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.dims import is_static
from engine.importer.opsets import PINNED, since_version
from engine.ir import Attribute, Node, Shape
from engine.passes.rewrite import Editor

_FORM = {
    "Add": 7,
    "And": 7,
    "BatchNormalization": 14,
    "Clip": 11,
    "Div": 7,
    "Dropout": 12,
    "Equal": 7,
    "Gemm": 7,
    "Mul": 7,
    "Or": 7,
    "Pad": 11,
    "Pow": 7,
    "ReduceMean": 18,
    "Reshape": 5,
    "Slice": 10,
    "Squeeze": 13,
    "Sub": 7,
    "Tile": 6,
    "Unsqueeze": 13,
    "Xor": 7,
}
"""First version with the inputs of the newest one; older nodes, left over by conversion, stay."""


def is_op(node: Node | None, *op_types: str) -> bool:
    """Whether a node is one of the standard operators named, in its present form."""
    if node is None or node.domain != "" or node.op_type not in op_types:
        return False
    return node.since_version >= _FORM.get(node.op_type, 1)


def standard(
    op_type: str,
    inputs: Sequence[str],
    output: str,
    attrs: Mapping[str, Attribute] | None = None,
    like: Node | None = None,
) -> Node:
    """A node of the standard domain with one output, named and with the origin of `like`."""
    name, origin = ("", ()) if like is None else (like.name, like.origin)
    return Node(
        op_type,
        tuple(inputs),
        (output,),
        dict(attrs or {}),
        since_version=since_version(op_type, "", PINNED) or 1,
        name=name,
        origin=origin,
    )


def text(node: Node, name: str, default: str = "") -> str:
    """A string attribute."""
    value = node.attrs.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def ints(node: Node, name: str) -> list[int] | None:
    """An attribute that is a list of integers, None where it is not given."""
    value: Any = node.attrs.get(name)
    return None if value is None else [int(v) for v in value]


def int_input(editor: Editor, name: str) -> list[int] | None:
    """The content of a small integer value, None if an element is not known."""
    array = editor.const(name)
    if array is not None:
        return [int(v) for v in array.reshape(-1)] if array.dtype.kind in "iu" else None
    value = editor.value(name)
    if value is None or value.dims is None:
        return None
    content = list(value.dims.reshape(-1))
    return [int(d) for d in content] if is_static(content) else None


def scalar(editor: Editor, name: str, rank: int | None) -> float | None:
    """The number that a constant of one element is.

    None unless broadcasting it against a value of `rank` (None: unknown) leaves that value's shape
    as it is.
    """
    array = editor.const(name)
    if array is None or array.size != 1 or array.ndim > (rank or 0):
        return None
    if array.dtype.kind not in "fiuV" or array.dtype.fields is not None:
        return None
    return float(array.reshape(-1)[0])


def rank_of(editor: Editor, name: str) -> int | None:
    shape = editor.shape(name)
    return None if shape is None else len(shape)


def broadcasts_into(shape: Sequence[Any], target: Shape) -> bool:
    """Whether an operand of `shape` surely leaves `target` as it is when both are broadcast."""
    if len(shape) > len(target):
        return False
    aligned = target[len(target) - len(shape) :]
    return all(d == 1 or d == t for d, t in zip(shape, aligned, strict=True))


def normal_axes(axes: Sequence[int], rank: int) -> list[int] | None:
    """Axes counted from the front, sorted; None if one is outside or twice there."""
    if any(not -rank <= a < rank for a in axes):
        return None
    found = sorted({a % rank for a in axes})
    return found if len(found) == len(axes) else None
