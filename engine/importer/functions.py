"""Standard operators that are run as what ONNX defines them to be: their function bodies."""

from __future__ import annotations

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx.defs import get_schema
from onnx.inliner import inline_selected_functions
from onnx.shape_inference import InferenceError, infer_shapes

from engine.errors import ModelError
from engine.importer.lifts import Context, graphs_of
from engine.ops._fit import DOMAIN, FITS, OPERATOR, OUTPUTS, VERSION

Kinds = frozenset[tuple[str, str]]
"""(domain, op_type) of operators."""

ALWAYS: Kinds = frozenset({("ai.onnx.preview", "FlexAttention")})
"""Operators that nothing else implements."""

FOR_GPU: Kinds = frozenset(
    {
        ("", "CausalConvWithState"),
        ("", "CenterCropPad"),
        ("", "NegativeLogLikelihoodLoss"),
        ("", "SoftmaxCrossEntropyLoss"),
        ("", "SwiGLU"),
    }
)
"""Operators of which every part has a kernel, while they have none themselves."""

ATTENTION = ("", "Attention")
"""Has a kernel, which never stores the scores."""

_KEPT = "kept."
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
    while for_gpu and (wanted := _kinds(model) & (FOR_GPU | {ATTENTION}) - seen):
        model = _inline_some(model, wanted)
        seen |= wanted
    return model


def _inline_some(model: ModelProto, kinds: Kinds) -> ModelProto:
    """`model` without those calls of `kinds` that kernels can run in parts only."""
    context = Context(model)
    fit = [
        _is_for_gpu(node, context.element(node.input[0]))
        for graph in context.scopes(model)
        for node in _calls_in(graph, kinds)
    ]
    if not any(fit):
        return model
    if not all(fit):
        # what is hidden has no types but those written down before
        model = infer_shapes(model)
        model.opset_import.append(helper.make_opsetid(_KEPT, 1))
    for node, chosen in zip(_calls(model, kinds), fit, strict=True):
        node.domain = node.domain if chosen else _KEPT
    _require(model, kinds, context)
    model = _inline(model, kinds, needed=False)
    kept = [entry for entry in model.opset_import if entry.domain != _KEPT]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    for graph in graphs_of(model.graph):
        for node in graph.node:
            if node.domain == _KEPT:
                node.domain = ""
    return model


def _require(model: ModelProto, kinds: Kinds, context: Context) -> None:
    """Puts a Fits in front of each call of `kinds`, as long as there is the whole operator."""
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    for graph in context.scopes(model, inner_first=True):
        nodes: list[NodeProto] = []
        for node in graph.node:
            known = context.type(node.input[0]) if (node.domain, node.op_type) in kinds else None
            if known is not None:
                checked = NodeProto()
                checked.CopyFrom(node)
                checked.op_type, checked.domain = FITS, DOMAIN
                checked.name = node.name or node.output[0]
                checked.output[:] = [context.fresh(node.input[0])]
                version = get_schema(node.op_type, node.domain).since_version
                for name, value in (
                    (OPERATOR, node.op_type),
                    (OUTPUTS, len(node.output)),
                    (VERSION, version),
                ):
                    checked.attribute.append(helper.make_attribute(name, value))
                graph.value_info.add(name=checked.output[0]).type.tensor_type.CopyFrom(known)
                node.input[0] = checked.output[0]
                nodes.append(checked)
            nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)


def _is_for_gpu(node: NodeProto, element: int) -> bool:
    if element not in _TYPES:
        return False
    if (node.domain, node.op_type) == ATTENTION:
        return len(node.output) > 3 and bool(node.output[3])
    return True


def _kinds(model: ModelProto) -> Kinds:
    return frozenset((n.domain, n.op_type) for g in graphs_of(model.graph) for n in g.node)


def _inline(model: ModelProto, kinds: Kinds, needed: bool) -> ModelProto:
    try:
        expanded = inline_selected_functions(model, sorted(kinds), inline_schema_functions=True)
    except (RuntimeError, ValueError, InferenceError) as error:
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
    return [n for graph in graphs_of(model.graph) for n in _calls_in(graph, kinds)]


def _calls_in(graph: GraphProto, kinds: Kinds) -> list[NodeProto]:
    return [n for n in graph.node if (n.domain, n.op_type) in kinds]


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
