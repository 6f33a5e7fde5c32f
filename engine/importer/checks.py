"""Checks of a model before the tools of onnx get it: those crash on what is out of order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from engine.errors import ModelError
from engine.importer.lifts import graphs_of
from engine.importer.opsets import opsets
from engine.importer.reader import Reader
from engine.importer.tensors import Weights
from engine.records import dataclass

_ANY_NUMBER = (1 << 31) - 1
"""What a schema says of operands that may be repeated."""


def check(model: ModelProto, weights: Weights) -> None:
    """Reads a model (and its local functions) as it is, and compares its nodes with the schemas.

    Raises: ModelError if names don't resolve or repeat, attributes have no or another type, or an
        operator lacks inputs, outputs or attributes.
    """
    _check_text(model)
    Reader(weights, model.graph).read(model, [v.name for v in model.graph.input])
    _check_nodes(graphs_of(model.graph), opsets(model))
    for function in model.functions:
        graph = _as_graph(function)
        imports = [*function.opset_import, *model.opset_import]
        whole = ModelProto(graph=graph, opset_import=imports)
        reader = Reader(weights, graph, in_function=True)
        try:
            reader.read(whole, list(function.input))
            _check_nodes(graphs_of(graph), opsets(function))
        except ModelError as error:
            raise ModelError(f"local function {function.name!r}: {error}") from None


def _check_text(model: ModelProto) -> None:
    """Protobuf gives names that are no UTF-8 as bytes; and a version may be any integer."""
    for entry in (*model.opset_import, *(e for f in model.functions for e in f.opset_import)):
        if not isinstance(entry.domain, str) or not 0 < entry.version < 1 << 31:
            raise ModelError(f"there is no opset {entry.version} of domain {entry.domain!r}")
    bodies = [GraphProto(node=f.node) for f in model.functions]
    for graph in (g for top in (model.graph, *bodies) for g in graphs_of(top)):
        names: list[object] = [v.name for v in (*graph.input, *graph.output, *graph.initializer)]
        for info in (*graph.input, *graph.value_info, *graph.output):
            names += [dim.dim_param for dim in info.type.tensor_type.shape.dim]
        for node in graph.node:
            names += [node.name, node.op_type, node.domain, *node.input, *node.output]
            names += [a.name for a in node.attribute]
        damaged = [n for n in names if not isinstance(n, str)]
        if damaged:
            raise ModelError(f"the model is damaged: the name {damaged[0]!r} is no UTF-8 text")


def _as_graph(function: FunctionProto) -> GraphProto:
    def infos(names: Iterable[str]) -> list[ValueInfoProto]:
        return [ValueInfoProto(name=n) for n in names]

    return GraphProto(
        name=function.name,
        node=function.node,
        input=infos(function.input),
        output=infos(function.output),
    )


def _check_nodes(graphs: Iterable[GraphProto], versions: Mapping[str, int]) -> None:
    for graph in graphs:
        for node in graph.node:
            domain = "" if node.domain == "ai.onnx" else node.domain
            form = _form(node.op_type, domain, versions.get(domain, 0))
            problem = None if form is None else _problem(node, form)
            if problem is not None:
                raise ModelError(f"{node.op_type} {node.name or node.output[:1]!r} {problem}")


@dataclass(frozen=True)
class _Form:
    """What a schema says of a node: how many operands, which are needed, types of attributes."""

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    needed: tuple[tuple[int, str], ...]
    attributes: Mapping[str, tuple[int, str]]
    required: tuple[str, ...]


@cache
def _form(op_type: str, domain: str, version: int) -> _Form | None:
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    kinds = onnx.defs.OpSchema.FormalParameterOption
    single, least = kinds.Single, schema.min_input
    while least and schema.inputs[least - 1].option == kinds.Optional:
        least -= 1  # both of a Loop have to be there, by name or empty, which says the same
    attributes = schema.attributes.items()
    return _Form(
        (least, schema.max_input),
        (schema.min_output, schema.max_output),
        tuple((i, p.name) for i, p in enumerate(schema.inputs) if p.option == single),
        {
            name: (int(a.type), str(a.type).rpartition(".")[2])  # type: ignore[call-overload]
            for name, a in attributes
        },
        tuple(name for name, a in attributes if a.required),
    )


@cache
def _attributes(op_type: str, domain: str) -> frozenset[str]:
    """Those of all versions of an operator: models have some of another one than they say."""
    name = "" if domain == "ai.onnx" else domain
    schemas = onnx.defs.get_all_schemas_with_history()
    return frozenset().union(
        *(s.attributes for s in schemas if (s.name, s.domain) == (op_type, name))
    )


def _problem(node: NodeProto, form: _Form) -> str | None:
    """How a node contradicts its operator's schema, or None."""
    inputs, outputs = _count(node.input), _count(node.output)
    if not form.inputs[0] <= len(inputs) <= form.inputs[1]:
        low, high = form.inputs
        due = f"at least {low}" if high == _ANY_NUMBER else f"from {low} to {high}"
        return f"has {len(inputs)} inputs, {due} are due"
    if not form.outputs[0] <= len(outputs) <= form.outputs[1]:
        return f"has {len(outputs)} outputs, at most {form.outputs[1]} are due"
    for index, name in form.needed:
        if index < len(inputs) and not inputs[index]:
            return f"lacks its input {name}"
    given = {a.name: a.type for a in node.attribute}
    for name in form.required:
        if name not in given:
            return f"lacks its attribute {name}"
    unknown = sorted(given.keys() - form.attributes)
    if unknown and not _attributes(node.op_type, node.domain).issuperset(unknown):
        known = sorted(form.attributes)
        return f"has attributes {unknown}, which no version of it knows; known are {known}"
    for name, kind in given.items():
        code, word = form.attributes.get(name, (kind, ""))
        if kind != code:
            shown = AttributeProto.AttributeType.Name(kind)
            return f"has the attribute {name} as {shown}, {word} is due"
    return _wrong_parts(node)


def _wrong_parts(node: NodeProto) -> str | None:
    """What is wrong with a Split that counts its outputs: onnx's inference ends the process."""
    parts = [a.i for a in node.attribute if a.name == "num_outputs" and node.op_type == "Split"]
    if parts and parts[0] != len(node.output):
        return f"has {len(node.output)} outputs, and num_outputs is {parts[0]}"
    return None


def _count(names: Iterable[str]) -> list[str]:
    """Names without the omitted ones at the end."""
    found = list(names)
    while found and not found[-1]:
        found.pop()
    return found
