"""Standard operators that are run as what ONNX defines them to be: their function bodies."""

from __future__ import annotations

from onnx import ModelProto, NodeProto
from onnx.inliner import inline_selected_functions

from engine.errors import ModelError
from engine.importer.lifts import graphs_of

EXPANDED = frozenset({("ai.onnx.preview", "FlexAttention")})
"""(domain, op_type) of operators whose bodies, or bodies given as attributes, replace them."""


def expand(model: ModelProto) -> ModelProto:
    """`model` with the function bodies of `EXPANDED` in place of these operators.

    What replaces a node gets its name. Raises: ModelError if onnx cannot make the body, as for
    inputs of unknown types.
    """
    calls = [n for g in graphs_of(model.graph) for n in g.node if _is_call(n)]
    if not calls:
        return model
    try:
        expanded = inline_selected_functions(model, sorted(EXPANDED), inline_schema_functions=True)
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{_names(calls)}: no function body can be made: {error}") from None
    left = [n for g in graphs_of(expanded.graph) for n in g.node if _is_call(n)]
    if left:
        raise ModelError(f"{_names(left)}: no function body can be made for these inputs")
    _rename(list(model.graph.node), list(expanded.graph.node))
    return expanded


def _is_call(node: NodeProto) -> bool:
    return (node.domain, node.op_type) in EXPANDED


def _names(nodes: list[NodeProto]) -> str:
    return ", ".join(f"{n.op_type} {n.name or n.output[0]!r}" for n in nodes)


def _rename(before: list[NodeProto], after: list[NodeProto]) -> None:
    """Gives what stands in `after` for a call in `before` the call's name."""
    place = 0
    for node in before:
        outputs = set(node.output) - {""}
        while place < len(after) and outputs:
            outputs -= set(after[place].output)
            if _is_call(node) and not after[place].name:
                after[place].name = node.name
            place += 1
