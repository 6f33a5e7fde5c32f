"""Common subexpressions: `f(x), f(x) => one f(x)`; constants of equal content become one."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator

import numpy as np

from engine.ir import Array, Attribute, Graph, Node, label
from engine.ops import is_random
from engine.passes.base import PassResult
from engine.passes.match import is_op, standard
from engine.passes.rewrite import Editor, rewrite

COMMUTATIVE = frozenset({"Add", "And", "BitwiseAnd", "BitwiseOr", "Equal", "Mul", "Or", "Xor"})
_DOMAINS = frozenset({"", "ai.onnx.ml"})
_SAMPLE = 4096


def cse(graph: Graph) -> PassResult:
    """Computes equal things once: same operator, attributes and inputs, or same constant.

    Random operators, nodes with bodies, and operators of other domains (which may have state) stay.
    """
    return rewrite(graph, _edit)


def _edit(editor: Editor) -> None:
    _merge_constants(editor)
    seen: dict[Hashable, int] = {}
    for slot, node in editor.slots():
        if not is_deterministic(node):
            continue
        first = editor.at(seen.setdefault(_key(node), slot))
        if first is not None and first is not node:
            _merge(editor, first, node)


def is_deterministic(node: Node) -> bool:
    """Whether equal inputs surely give equal outputs, whatever ran before."""
    if node.domain not in _DOMAINS or node.bodies or is_random(node):
        return False
    return not any(
        isinstance(v, list) and any(isinstance(g, Graph) for g in v) for v in node.attrs.values()
    )


def _key(node: Node) -> Hashable:
    inputs = tuple(sorted(node.inputs)) if is_op(node, *COMMUTATIVE) else node.inputs
    attrs = tuple(sorted((name, _frozen(value)) for name, value in node.attrs.items()))
    return node.domain, node.op_type, node.since_version, inputs, attrs, len(node.outputs)


def _frozen(value: Attribute) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {_digest(value)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_frozen(v) for v in value)}]"
    return f"{type(value).__name__} {value!r}"


def _digest(array: Array) -> str:
    if array.dtype == object:
        return repr(array.reshape(-1).tolist())
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hashlib.blake2b(content.data, digest_size=16).hexdigest()


def _merge(editor: Editor, first: Node, node: Node) -> None:
    """Lets `first` compute what `node` does."""
    if not editor.merge(first, node, f"{label(node)} merged into {label(first)}"):
        _alias(editor, first, node)


def _alias(editor: Editor, first: Node, node: Node) -> None:
    """Both results are outputs of the graph: the second becomes a copy of the first."""
    if is_op(node, "Identity") or len(node.outputs) != 1 or not first.outputs[0]:
        return
    copy = standard("Identity", first.outputs, node.outputs[0], like=node)
    editor.equate(first.outputs[0], node.outputs[0])
    editor.swap(node, copy, f"{label(node)} copies the result of {label(first)}")


def _merge_constants(editor: Editor) -> None:
    for first, *others in _equal_constants(editor):
        merged = [name for name in others if editor.can_rename(name, first)]
        for name in merged:
            editor.rename(name, first)
        if merged:
            names = ", ".join(map(repr, merged))
            editor.note(f"constants of the same content as {first!r} merged into it: {names}")


def _equal_constants(editor: Editor) -> Iterator[list[str]]:
    """Names of constants of equal type, shape and content, in groups of two and more."""
    groups: dict[Hashable, list[tuple[str, Array]]] = {}
    for name, array in editor.own_constants():
        groups.setdefault((array.dtype.str, array.dtype, array.shape), []).append((name, array))
    for digest in (_sample, _digest):
        finer: dict[Hashable, list[tuple[str, Array]]] = {}
        for key, group in groups.items():
            for name, array in group if len(group) > 1 else ():
                finer.setdefault((key, digest(array)), []).append((name, array))
        groups = finer
    for group in groups.values():
        if len(group) > 1:
            yield [name for name, _ in group]


def _sample(array: Array) -> str:
    """A digest of the start, so that large weights are read only if their starts agree."""
    return _digest(array.reshape(-1)[:_SAMPLE])
