"""`Graph` to ONNX models; and what onnx says of the types of one node's operands and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from engine import dtypes
from engine.errors import ModelError, ShapeError
from engine.importer.opsets import PINNED, since_version
from engine.importer.types import type_proto
from engine.ir import (
    Array,
    Attribute,
    Graph,
    Node,
    OptionalType,
    SequenceType,
    TensorType,
    Value,
    ValueType,
)
from engine.records import dataclass

_IR_VERSION = 13
_TYPES = (TensorType, SequenceType, OptionalType)


def to_model(graph: Graph, constants: bool = True) -> ModelProto:
    """An ONNX model of a graph.

    Args:
        graph: top-level.
        constants: whether constants become initializers; else they become further inputs.

    Raises: ModelError if a node is of a version that the graph's opset does not hold.
    """
    opset = {"": PINNED, **graph.opset}
    for _, node in graph.walk():
        current = since_version(node.op_type, node.domain, opset.setdefault(node.domain, 1))
        if current is not None and current != node.since_version:
            raise ModelError(
                f"{node.op_type} {node.key!r} is of version {node.since_version}, opset "
                f"{opset[node.domain]} means version {current}"
            )
    return helper.make_model(
        _graph_proto(graph, constants),
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in opset.items()],
        ir_version=_IR_VERSION,
        producer_name="onnx-wgpu",
    )


def _graph_proto(graph: Graph, constants: bool) -> GraphProto:
    known = {n: v for n, v in graph.values.items() if v.constant is not None}
    inputs = list(graph.inputs)
    if not constants:
        inputs += [n for n in known if n not in graph.inputs]
    proto = GraphProto(name=graph.name or "graph")
    proto.node.extend(node_proto(n) for n in graph.nodes)
    _tell_apart(proto.node)
    proto.input.extend(_value_info(graph.values[n]) for n in inputs)
    proto.output.extend(_value_info(graph.values[n]) for n in graph.outputs)
    if constants:
        proto.initializer.extend(
            tensor_proto(v.constant, n, v.tensor)
            for n, v in known.items()
            if v.constant is not None and n not in graph.captures
        )
    shown = {*inputs, *graph.outputs, *known, *graph.captures}
    proto.value_info.extend(
        _value_info(v) for n, v in graph.values.items() if n not in shown and v.type is not None
    )
    return proto


def _tell_apart(nodes: Iterable[NodeProto]) -> None:
    """Numbers nodes that passes made of one and that have its name; ONNX wants names unique."""
    taken: set[str] = set()
    for node in nodes:
        name, number = node.name, 1
        while node.name and node.name in taken:
            number += 1
            node.name = f"{name}_{number}"
        taken.add(node.name)


def _value_info(value: Value) -> onnx.ValueInfoProto:
    proto = onnx.ValueInfoProto(name=value.name)
    if value.type is not None:
        proto.type.CopyFrom(type_proto(value.type))
    return proto


def node_proto(node: Node) -> NodeProto:
    """The `NodeProto` of a node, bodies included."""
    proto = NodeProto(
        op_type=node.op_type,
        domain=node.domain,
        name=node.name,
        input=node.inputs,
        output=node.outputs,
    )
    for name, value in node.attrs.items():
        proto.attribute.append(_attribute(node, name, value))
    return proto


def _attribute(node: Node, name: str, value: Attribute) -> AttributeProto:
    if isinstance(value, Graph):
        return AttributeProto(name=name, type=AttributeProto.GRAPH, g=_graph_proto(value, True))
    if isinstance(value, np.ndarray):
        tensor = tensor_proto(value, "")
        return AttributeProto(name=name, type=AttributeProto.TENSOR, t=tensor)
    if isinstance(value, _TYPES):
        kind = type_proto(value)
        return AttributeProto(name=name, type=AttributeProto.TYPE_PROTO, tp=kind)
    if isinstance(value, list):
        return _list_attribute(node, name, value)
    return helper.make_attribute(name, value)


def _list_attribute(node: Node, name: str, value: list[Attribute]) -> AttributeProto:
    if not value:
        proto = AttributeProto(name=name)
        proto.type = _attribute_kind(node, name) or AttributeProto.INTS  # type: ignore[assignment]
        return proto
    first = value[0]
    if isinstance(first, Graph):
        graphs = [_graph_proto(g, True) for g in value]
        return AttributeProto(name=name, type=AttributeProto.GRAPHS, graphs=graphs)
    if isinstance(first, np.ndarray):
        tensors = [tensor_proto(t, "") for t in value]
        return AttributeProto(name=name, type=AttributeProto.TENSORS, tensors=tensors)
    if isinstance(first, _TYPES):
        kinds = [type_proto(t) for t in value]
        return AttributeProto(name=name, type=AttributeProto.TYPE_PROTOS, type_protos=kinds)
    kind = _attribute_kind(node, name)
    return helper.make_attribute(name, value, attr_type=kind)


def _attribute_kind(node: Node, name: str) -> int | None:
    """The type that the operator's schema gives to an attribute, if there is a schema."""
    try:
        schema = onnx.defs.get_schema(node.op_type, node.since_version, node.domain)
    except onnx.defs.SchemaError:
        return None
    known = schema.attributes.get(name)
    return None if known is None else int(known.type)  # type: ignore[call-overload]


def tensor_proto(array: Array, name: str, kind: TensorType | None = None) -> TensorProto:
    """The `TensorProto` of an array; `kind` gives its element type if NumPy can't."""
    dtype = dtypes.from_numpy(array.dtype) if kind is None else kind.dtype
    if dtype is dtypes.STRING:
        data = [
            s if isinstance(s, bytes) else str(s).encode("utf-8", "surrogateescape")
            for s in array.reshape(-1)
        ]
        return TensorProto(name=name, data_type=dtype.code, dims=array.shape, string_data=data)
    return onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def onnx_types(
    node: Node,
    types: Mapping[str, ValueType],
    constants: Mapping[str, Array],
    opset: Mapping[str, int],
) -> list[onnx.TypeProto | None] | None:
    """What onnx's own shape inference says of a node's outputs; None if it knows no such operator.

    Args:
        node: without bodies.
        types: of its inputs. Sizes that are expressions come back as `dim_param`s: their text.
        constants: contents of inputs that decide about sizes.
        opset: domain to version, for operators that are functions.

    Raises: ShapeError if it says that the inputs contradict each other.
    """
    try:
        schema = onnx.defs.get_schema(node.op_type, node.since_version, node.domain)
    except onnx.defs.SchemaError:
        return None
    try:
        found = onnx.shape_inference.infer_node_outputs(
            schema,
            node_proto(node),
            {name: type_proto(kind) for name, kind in types.items()},
            {name: tensor_proto(array, name) for name, array in constants.items()},
            opset_imports=[helper.make_opsetid(d, v) for d, v in opset.items()],
            ir_version=_IR_VERSION,
        )
    except (onnx.shape_inference.InferenceError, RuntimeError) as error:
        shown = ", ".join(str(types.get(n, "?")) if n else "-" for n in node.inputs)
        raise ShapeError(
            f"{node.op_type} {node.name or node.key!r} ({shown}): {_reason(error)}"
        ) from None
    return [found.get(name) if name else None for name in node.outputs]


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def operand_problem(node: Node, kinds: Sequence[ValueType | None]) -> str | None:
    """What is wrong with the element types of a node's inputs, in words; None if they fit.

    Args:
        node: operators without a schema are taken as they are.
        kinds: per input its type, None where it is omitted or unknown.
    """
    formals = _formals(node.op_type, node.domain, node.since_version)
    if not formals:
        return None
    if len(kinds) > len(formals) and not formals[-1].variadic:
        return f"it takes {len(formals)} inputs, {len(kinds)} are given"
    bound: dict[str, str] = {}
    for index, kind in enumerate(kinds):
        if kind is None:
            continue
        formal = formals[min(index, len(formals) - 1)]
        shown = _type_text(kind)
        if shown not in formal.allowed:
            return f"input {index} ({formal.name}) can't be a {shown}"
        if formal.shared and bound.setdefault(formal.type_name, shown) != shown:
            return (
                f"input {index} ({formal.name}) is a {shown}, others are {bound[formal.type_name]}"
            )
    return None


@dataclass(frozen=True)
class _Formal:
    name: str
    type_name: str
    allowed: frozenset[str]
    variadic: bool
    shared: bool


@cache
def _formals(op_type: str, domain: str, since: int) -> tuple[_Formal, ...]:
    try:
        schema = onnx.defs.get_schema(op_type, since, domain)
    except onnx.defs.SchemaError:
        return ()
    return tuple(
        _Formal(
            p.name,
            p.type_str,
            frozenset(p.types),
            p.option == onnx.defs.OpSchema.FormalParameterOption.Variadic,
            p.is_homogeneous,
        )
        for p in schema.inputs
    )


_SCHEMA_NAMES = {"float32": "float", "float64": "double"}


def _type_text(kind: ValueType) -> str:
    """A type as operator schemas write it."""
    match kind:
        case TensorType():
            return f"tensor({_SCHEMA_NAMES.get(kind.dtype.name, kind.dtype.name)})"
        case SequenceType():
            return f"seq({_type_text(kind.element)})"
    return f"optional({_type_text(kind.element)})"
