"""Standard operators that are run as what ONNX defines them to be: their function bodies."""

from __future__ import annotations

from onnx import ModelProto, NodeProto, TensorProto
from onnx.inliner import inline_selected_functions

from engine import ops
from engine.errors import ModelError
from engine.importer.lifts import Context, graphs_of

Kinds = frozenset[tuple[str, str]]
"""(domain, op_type) of operators."""

ALWAYS: Kinds = frozenset({("ai.onnx.preview", "FlexAttention")})
"""Operators that nothing else implements."""

FOR_GPU: Kinds = frozenset(
    {
        ("", "Attention"),
        ("", "CausalConvWithState"),
        ("", "CenterCropPad"),
        ("", "NegativeLogLikelihoodLoss"),
        ("", "RotaryEmbedding"),
        ("", "SoftmaxCrossEntropyLoss"),
        ("", "SwiGLU"),
    }
)
"""Operators of which every part has a kernel, while they have none themselves."""

_TYPES = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})


def expand(model: ModelProto, for_gpu: bool = False) -> ModelProto:
    """`model` with function bodies in place of the operators that are run as such.

    What replaces a node gets its name.

    Args:
        model: in the pinned opset.
        for_gpu: expand operators without a kernel too, if the parts have kernels.

    Raises: ModelError if onnx cannot make a body that is needed, as for inputs of unknown types.
    """
    if found := _kinds(model) & ALWAYS:
        model = _inline(model, found, needed=True)
    seen: Kinds = frozenset()
    while for_gpu:
        wanted = frozenset(k for k in _kinds(model) & FOR_GPU - seen if not _has_kernel(*k))
        if not wanted:
            break
        if fit := wanted - _of_other_types(model, wanted):
            model = _inline(model, fit, needed=False)
        seen |= wanted
    return model


def _kinds(model: ModelProto) -> Kinds:
    return frozenset((n.domain, n.op_type) for g in graphs_of(model.graph) for n in g.node)


def _has_kernel(domain: str, op_type: str) -> bool:
    op = ops.lookup(op_type, domain=domain)
    return op is not None and op.on_gpu


def _of_other_types(model: ModelProto, kinds: Kinds) -> Kinds:
    """Those of `kinds` of which some node works on an element type that kernels don't take."""
    context = Context(model)
    return frozenset(
        (node.domain, node.op_type)
        for graph in graphs_of(model.graph)
        for node in graph.node
        if (node.domain, node.op_type) in kinds and context.element(node.input[0]) not in _TYPES
    )


def _inline(model: ModelProto, kinds: Kinds, needed: bool) -> ModelProto:
    try:
        expanded = inline_selected_functions(model, sorted(kinds), inline_schema_functions=True)
    except (RuntimeError, ValueError) as error:
        if not needed:
            return model
        calls = _calls(model, kinds)
        raise ModelError(f"{_names(calls)}: no function body can be made: {error}") from None
    left = _calls(expanded, kinds)
    if left and needed:
        raise ModelError(f"{_names(left)}: no function body can be made for these inputs")
    _rename(list(model.graph.node), list(expanded.graph.node), kinds)
    return expanded


def _calls(model: ModelProto, kinds: Kinds) -> list[NodeProto]:
    graphs = graphs_of(model.graph)
    return [n for g in graphs for n in g.node if (n.domain, n.op_type) in kinds]


def _names(nodes: list[NodeProto]) -> str:
    return ", ".join(f"{n.op_type} {n.name or n.output[0]!r}" for n in nodes)


def _rename(before: list[NodeProto], after: list[NodeProto], kinds: Kinds) -> None:
    """Gives what stands in `after` for a call in `before` the call's name."""
    place = 0
    for node in before:
        outputs = set(node.output) - {""}
        while place < len(after) and outputs:
            outputs -= set(after[place].output)
            if (node.domain, node.op_type) in kinds and not after[place].name:
                after[place].name = node.name
            place += 1
