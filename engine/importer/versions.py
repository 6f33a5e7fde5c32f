"""Models of opset 6 and up to the pinned opset: functions inlined, nodes converted.

`onnx.version_converter` does most of it. What it gets wrong or refuses is rewritten here: before it
(`LIFTS`) or after it (`REPAIRS`). An operator that it does not know
is hidden from it under the domain `UNCONVERTED` + its version, which the importer reads back.

All functions take models without large weights (`engine.importer.tensors.detach`).
"""

from __future__ import annotations

import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper
from onnx.inliner import inline_local_functions

from engine.errors import ModelError
from engine.importer.functions import expand
from engine.importer.lifts import LIFTS, REPAIRS, Context, Rule, graphs_of

OLDEST, PINNED = 6, 28
UNCONVERTED = "unconverted."


def opsets(model: ModelProto) -> dict[str, int]:
    """Domain ("" is ai.onnx) to version, as the model imports them."""
    found: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        found[domain] = max(found.get(domain, 0), entry.version)
    return found


def since_version(op_type: str, domain: str, opset: int) -> int | None:
    """Version of the schema in force for an operator, or None if onnx does not know it."""
    try:
        return int(onnx.defs.get_schema(op_type, opset, domain).since_version)
    except onnx.defs.SchemaError:
        return None


def to_pinned(model: ModelProto) -> ModelProto:
    """`model` (changed in place, if need be) in the pinned opset, without local functions.

    Raises: ModelError if the opset is out of range, or something can't be converted.
    """
    for graph in graphs_of(model.graph):
        for node in graph.node:
            if node.domain == "ai.onnx":
                node.domain = ""
    model = _inline(model)
    versions = opsets(model)
    used = any(n.domain == "" for g in graphs_of(model.graph) for n in g.node)
    version = versions.get("")
    if version is None:
        if used:
            raise ModelError("the model uses ai.onnx operators and imports no ai.onnx opset")
        return model
    if version < OLDEST:
        model, version = _from_before(model, version), OLDEST
    if version > PINNED:
        raise ModelError(
            f"the model is of opset {version}; opsets up to {PINNED} can be loaded. Export it "
            "again with another opset_version"
        )
    return expand(model if version == PINNED else _convert(model, version))


def _from_before(model: ModelProto, version: int) -> ModelProto:
    """A model older than opset 6, whose forms are sometimes the same."""
    try:
        return onnx.version_converter.convert_version(model, OLDEST)
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"the model is of opset {version}; those before {OLDEST} are loaded only where the "
            f"converter of onnx knows their operators: {error}"
        ) from None


def _inline(model: ModelProto) -> ModelProto:
    if not model.functions:
        return model
    keys = [(f.domain, f.name, f.overload) for f in model.functions]
    if len(set(keys)) != len(keys):
        raise ModelError("two local functions have the same domain, name and overload")
    try:
        return inline_local_functions(model, convert_version=True)
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"local functions can't be inlined: {error}") from None


def _convert(model: ModelProto, version: int) -> ModelProto:
    context = Context(model)
    for until, op_types, lift in LIFTS:
        if version < until:
            _rewrite(model, op_types, lift, context)
    if version < 7:
        version = 7
        for entry in model.opset_import:
            if entry.domain in ("", "ai.onnx"):
                entry.version = version
    context = Context(model)
    _hide_unknown(model, version)
    model.ir_version = max(model.ir_version, 8)
    model = _run_converter(model, version)
    for until, op_types, repair in REPAIRS:
        if version < until:
            _rewrite(model, op_types, repair, context)
    return model


def _rewrite(model: ModelProto, op_types: frozenset[str], rule: Rule, context: Context) -> None:
    """Replaces nodes by what `rule` makes of them, innermost bodies first."""
    for graph in reversed(list(graphs_of(model.graph))):
        if not any(n.op_type in op_types and _is_standard(n) for n in graph.node):
            continue
        nodes: list[NodeProto] = []
        for node in graph.node:
            if node.op_type in op_types and _is_standard(node):
                nodes.extend(rule(context, graph, node))
            else:
                nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)


def _is_standard(node: NodeProto) -> bool:
    return node.domain == "" or node.domain.startswith(UNCONVERTED)


def _hide_unknown(model: ModelProto, version: int) -> None:
    """Hides operators that the converter would fail on: unknown or deprecated without adapter."""
    for graph in graphs_of(model.graph):
        for node in graph.node:
            if node.domain == "":
                since = since_version(node.op_type, "", version)
                if since is None or (node.op_type == "GroupNormalization" and version < 21):
                    _hide(model, node, since or version)


def _hide(model: ModelProto, node: NodeProto, since: int) -> None:
    node.domain = f"{UNCONVERTED}{since}"
    if all(entry.domain != node.domain for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(node.domain, 1))


def _run_converter(model: ModelProto, version: int) -> ModelProto:
    try:
        return onnx.version_converter.convert_version(model, PINNED)
    except (RuntimeError, ValueError) as error:
        culprits = _culprits(model, version)
        if not culprits:
            raise ModelError(
                f"the model can't be converted from opset {version} to {PINNED}: {error}"
            ) from None
    for node in culprits:
        _hide(model, node, since_version(node.op_type, "", version) or version)
    try:
        return onnx.version_converter.convert_version(model, PINNED)
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"the model can't be converted from opset {version} to {PINNED}: {error}"
        ) from None


def _culprits(model: ModelProto, version: int) -> list[NodeProto]:
    """The nodes that the converter fails on when it meets them alone."""
    inferred = onnx.shape_inference.infer_shapes(model)
    found = []
    for graph, typed in zip(graphs_of(model.graph), graphs_of(inferred.graph), strict=True):
        types = {v.name: v for v in (*typed.input, *typed.value_info, *typed.output)}
        constants = {t.name: t for t in graph.initializer}
        for node in graph.node:
            has_body = any(a.type == AttributeProto.GRAPH for a in node.attribute)
            if node.domain or has_body:
                continue
            if not _converts(node, types, constants, version):
                found.append(node)
    return found


def _converts(
    node: NodeProto,
    types: dict[str, onnx.ValueInfoProto],
    constants: dict[str, TensorProto],
    version: int,
) -> bool:
    unknown = helper.make_tensor_value_info
    names = [n for n in dict.fromkeys(node.input) if n]
    inputs = [types.get(n) or unknown(n, 1, None) for n in names if n not in constants]
    outputs = [types.get(n) or unknown(n, 1, None) for n in node.output if n]
    graph = helper.make_graph(
        [node], "node", inputs, outputs, [constants[n] for n in names if n in constants]
    )
    alone = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8)
    try:
        onnx.version_converter.convert_version(alone, PINNED)
    except (RuntimeError, ValueError):
        return False
    return True
