"""`CastLike(x, like) => Cast(x)` to the element type of `like`, which is known once types are."""

from __future__ import annotations

from engine.importer.opsets import PINNED, since_version
from engine.ir import Graph, label
from engine.passes.base import PassResult
from engine.passes.match import is_op
from engine.passes.rewrite import Editor, rewrite


def cast_like(graph: Graph) -> PassResult:
    """Rewrites casts to the type of another value, so that this value is no longer read."""
    return rewrite(graph, _edit)


def _edit(editor: Editor) -> None:
    since = since_version("Cast", "", PINNED) or 1
    for node in editor.nodes():
        if not is_op(node, "CastLike"):
            continue
        like = editor.dtype(node.inputs[1])
        if like is None:
            editor.near(node, f"{label(node)} kept: the type of {node.inputs[1]!r} is unknown")
            continue
        kept = node.attrs if like.name.startswith("float8") else {}
        attrs = {**kept, "to": like.code}
        cast = node.replace(
            op_type="Cast", inputs=node.inputs[:1], attrs=attrs, since_version=since
        )
        editor.swap(node, cast, f"{label(node)} => Cast to {like.name}")
