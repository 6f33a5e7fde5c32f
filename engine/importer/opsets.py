"""Models to the pinned opset: functions inlined, nodes converted.

`onnx.version_converter` does most of it, and all of it before opset 6. From there on, what it gets
wrong or refuses is rewritten here: before it (`LIFTS`) or after it (`REPAIRS`). An operator that it
does not know is hidden from it under the domain `UNCONVERTED` + its version, which the importer
reads back.

All functions take models without large weights (`engine.importer.tensors.detach`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter

import onnx
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TensorProto, helper
from onnx.inliner import inline_local_functions

from engine.errors import ModelError
from engine.importer.functions import expand
from engine.importer.lifts import LIFTS, REPAIRS, Context, Rule, graphs_of
from engine.ir import CONTROL_FLOW

OLDEST, PINNED = 6, 28
UNCONVERTED = "unconverted."
MAX_NODES = 2_000_000
"""Of a model once its local functions are inlined: the largest in use have a hundredth of it, and
at a kilobyte a node it fills what protobuf can hold. Functions that double each other come to 2^40
in forty lines."""
_OPSET, _DONE = "opset.", "converted"
_ONNX_ERRORS = (
    RuntimeError,
    ValueError,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    onnx.version_converter.ConvertError,
)


def opsets(model: ModelProto | FunctionProto) -> dict[str, int]:
    """Domain ("" is ai.onnx) to version, as a model or a function imports them."""
    found: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        found[domain] = max(found.get(domain, 0), entry.version)
    return found


@cache
def since_version(op_type: str, domain: str, opset: int) -> int | None:
    """Version of the schema in force for an operator, or None if onnx does not know it."""
    try:
        return int(onnx.defs.get_schema(op_type, opset, domain).since_version)
    except onnx.defs.SchemaError:
        return None


def to_pinned(model: ModelProto, for_gpu: bool = False) -> ModelProto:
    """`model` (changed in place, if need be) in the pinned opset, without local functions.

    `for_gpu` is that of `engine.importer.functions.expand`.

    Functions may be of other opsets than the model. While the nodes of one opset are converted, the
    others are hidden in domains of their own.

    Raises: ModelError if an opset is out of range, or something can't be converted.
    """
    _rename(model, "ai.onnx", "")
    versions = opsets(model)
    others = _mark_functions(model, versions.get(""))
    model = _inline(model)
    for domain in sorted({n.domain for n in _all_nodes(model)} - {""}):
        _import_domain(model, domain)
    if "" not in versions and not others:
        if any(n.domain == "" for n in _all_nodes(model)):
            raise ModelError("the model uses ai.onnx operators and imports no ai.onnx opset")
        return model
    base = versions.get("", PINNED)
    if not others:
        return expand(_one_opset(model, base), for_gpu)
    _rename(model, "", f"{_OPSET}{base}")
    for version in sorted(others | {base}):
        _rename(model, f"{_OPSET}{version}", "")
        _set_opset(model, version)
        model = _one_opset(model, version)
        _rename(model, "", _DONE)
    _rename(model, _DONE, "")
    kept = [e for e in model.opset_import if not e.domain.startswith((_OPSET, _DONE))]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    return expand(model, for_gpu)


def _all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Every node of a model's graph and its bodies."""
    for graph in graphs_of(model.graph):
        yield from graph.node


def _rename(model: ModelProto, old: str, new: str) -> None:
    """Moves nodes from one domain to another; those with bodies stay in ai.onnx, where the
    converter sees the bodies."""
    for node in _all_nodes(model):
        if node.domain == old and (new == "" or node.op_type not in CONTROL_FLOW):
            node.domain = new
    if new:
        _import_domain(model, new)


def _import_domain(model: ModelProto, domain: str) -> None:
    """Imports a domain if it isn't yet: the tools of onnx insist on it."""
    if all(entry.domain != domain for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(domain, 1))


def _set_opset(model: ModelProto, version: int) -> None:
    kept = [entry for entry in model.opset_import if entry.domain not in ("", "ai.onnx")]
    del model.opset_import[:]
    model.opset_import.extend([helper.make_opsetid("", version), *kept])


def _mark_functions(model: ModelProto, base: int | None) -> set[int]:
    """Moves the nodes of functions whose opset is not the model's to a domain that names it."""
    found: set[int] = set()
    for function in model.functions:
        version = opsets(function).get("")
        if version is None or version == base:
            continue
        found.add(version)
        domain = f"{_OPSET}{version}"
        for node in function.node:
            _mark(node, domain)
        kept = [e for e in function.opset_import if e.domain not in ("", "ai.onnx")]
        del function.opset_import[:]
        function.opset_import.extend([helper.make_opsetid(domain, 1), *kept])
        if base is not None:
            function.opset_import.append(helper.make_opsetid("", base))
    return found


def _mark(node: NodeProto, domain: str) -> None:
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                _mark(inner, domain)
    if node.domain in ("", "ai.onnx") and node.op_type not in CONTROL_FLOW:
        node.domain = domain


def _one_opset(model: ModelProto, version: int) -> ModelProto:
    if version > PINNED:
        raise ModelError(
            f"the model is of opset {version}; opsets up to {PINNED} can be loaded. Export it "
            "again with another opset_version"
        )
    if version < OLDEST:
        model, version = _from_before(model, version), OLDEST
    return model if version == PINNED else _convert(model, version)


def _from_before(model: ModelProto, version: int) -> ModelProto:
    """A model older than opset 6, whose forms are sometimes the same."""
    try:
        return onnx.version_converter.convert_version(model, OLDEST)
    except _ONNX_ERRORS as error:
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
    _check_growth(model)
    try:
        return inline_local_functions(model)
    except _ONNX_ERRORS as error:
        raise ModelError(f"local functions can't be inlined: {error}") from None


def _check_growth(model: ModelProto) -> None:
    """Raises: ModelError if functions call each other in a circle, or come to too many nodes."""
    functions = {(f.domain, f.name, f.overload): f.node for f in model.functions}

    def calls(nodes: Iterable[NodeProto]) -> list[tuple[str, str, str]]:
        every = (n for top in nodes for n in (top, *_inside(top)))
        return [(n.domain, n.op_type, n.overload) for n in every]

    called = {key: calls(nodes) for key, nodes in functions.items()}
    order = TopologicalSorter({k: [c for c in v if c in functions] for k, v in called.items()})
    sizes: dict[tuple[str, str, str], int] = {}
    try:
        for key in order.static_order():
            sizes[key] = sum(sizes.get(c, 1) for c in called[key])
    except CycleError as error:
        names = " -> ".join(name for _, name, _ in error.args[1])
        raise ModelError(f"local functions call each other in a circle: {names}") from None
    total = sum(sizes.get(c, 1) for c in calls(model.graph.node))
    if total > MAX_NODES:
        raise ModelError(
            f"the model has {total} nodes with the bodies of its local functions in place of their "
            f"calls; up to {MAX_NODES} can be loaded"
        )


def _inside(node: NodeProto) -> Iterator[NodeProto]:
    """The nodes in the bodies of a node."""
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield inner
                yield from _inside(inner)


def _convert(model: ModelProto, version: int) -> ModelProto:
    context = Context(model)
    for until, op_types, lift in LIFTS:
        if version < until:
            _rewrite(model, op_types, lift, context)
    if version < 7:
        version = 7
        _set_opset(model, version)
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
    for graph in context.scopes(model, inner_first=True):
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
    _import_domain(model, node.domain)


def _run_converter(model: ModelProto, version: int) -> ModelProto:
    try:
        return onnx.version_converter.convert_version(model, PINNED)
    except _ONNX_ERRORS as error:
        culprits = _culprits(model, version)
        if not culprits:
            raise ModelError(
                f"the model can't be converted from opset {version} to {PINNED}: {error}"
            ) from None
    for node in culprits:
        _hide(model, node, since_version(node.op_type, "", version) or version)
    try:
        return onnx.version_converter.convert_version(model, PINNED)
    except _ONNX_ERRORS as error:
        raise ModelError(
            f"the model can't be converted from opset {version} to {PINNED}: {error}"
        ) from None


def _culprits(model: ModelProto, version: int) -> list[NodeProto]:
    """The nodes that the converter fails on when it meets them alone."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except _ONNX_ERRORS as error:
        raise ModelError(f"the types in the model contradict each other: {error}") from None
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
    except _ONNX_ERRORS:
        return False
    return True
