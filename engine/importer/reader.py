"""Converted `ModelProto` to `Graph`: unique names, explicit captures, constants as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from engine import dtypes
from engine.errors import ModelError
from engine.importer.opsets import UNCONVERTED, opsets, since_version
from engine.importer.tensors import Weights
from engine.importer.types import FreshDims, dim_names, value_type
from engine.ir import Array, Attribute, Graph, Node, TensorType, Value, sort_nodes


class _Scope:
    """Names of one graph as the file has them, to names unique in the model."""

    def __init__(self, outer: _Scope | None = None) -> None:
        self.outer = outer
        self.names: dict[str, str] = {}
        self.captured: dict[str, None] = {}

    def resolve(self, name: str) -> str | None:
        if name in self.names:
            return self.names[name]
        if self.outer is None:
            return None
        found = self.outer.resolve(name)
        if found is not None:
            self.captured[found] = None
        return found


class Reader:
    """Builds the `Graph` of a converted model."""

    def __init__(self, weights: Weights, declared: GraphProto, in_function: bool = False) -> None:
        self._weights = weights
        self._in_function = in_function
        self.fresh_dims = FreshDims(dim_names((*declared.input, *declared.output)))
        self._declared = {v.name: v for v in declared.input}
        self._taken: set[str] = set()
        self._opset: Mapping[str, int] = {}

    def read(self, model: ModelProto, inputs: list[str]) -> Graph:
        self._opset = opsets(model)
        hidden = [d for d in self._opset if d.startswith(UNCONVERTED)]
        known = {d: v for d, v in self._opset.items() if d not in hidden}
        self._taken = set(_local_names(model.graph))
        if len(set(inputs)) != len(inputs):
            twice = sorted({n for n in inputs if inputs.count(n) > 1})
            raise ModelError(f"the graph has several inputs named {twice}")
        for value in model.graph.input:
            value.CopyFrom(self._declared.get(value.name, value))
        return self._graph(model.graph, None).replace(opset=known)

    def _unique(self, name: str) -> str:
        candidate, count = name, 1
        while candidate in self._taken:
            candidate = f"{name}.{count}"
            count += 1
        self._taken.add(candidate)
        return candidate

    def _graph(self, proto: GraphProto, outer: _Scope | None) -> Graph:
        scope = _Scope(outer)
        values: dict[str, Value] = {}
        for name in _local_names(proto):
            if name and name not in scope.names:
                scope.names[name] = name if outer is None else self._unique(name)
        self._constants(proto, scope, values)
        inputs = self._inputs(proto, scope, values, top=outer is None)
        nodes = self._nodes(proto, scope, values)
        outputs = []
        for value in proto.output:
            found = scope.resolve(value.name)
            if found is None:
                raise ModelError(f"graph output {value.name!r} is produced by no node")
            outputs.append(found)
        for name in (*outputs, *scope.captured):
            values.setdefault(name, Value(name))
        known = (
            *inputs,
            *scope.captured,
            *(n for n, v in values.items() if v.constant is not None),
        )
        graph = Graph(
            sort_nodes(tuple(nodes), known),
            values,
            inputs,
            tuple(outputs),
            tuple(scope.captured),
            {d: v for d, v in self._opset.items() if not d.startswith(UNCONVERTED)},
            proto.name,
        )
        graph.check()
        return graph

    def _constants(self, proto: GraphProto, scope: _Scope, values: dict[str, Value]) -> None:
        for tensor in proto.initializer:
            if not tensor.name:
                raise ModelError("an initializer has no name")
            name = scope.names[tensor.name]
            if name in values:
                raise ModelError(f"two initializers are named {tensor.name!r}")
            values[name] = _constant_value(name, self._weights.array(tensor), tensor.data_type)

    def _inputs(
        self, proto: GraphProto, scope: _Scope, values: dict[str, Value], top: bool
    ) -> tuple[str, ...]:
        names = []
        for value in proto.input:
            name = scope.names.get(value.name)
            if name is None or name in names:
                raise ModelError(f"graph input {value.name!r} has no name, or is listed twice")
            names.append(name)
            kind = value_type(value.type, value.name, self.fresh_dims) if top else None
            if name not in values:
                if top and kind is None and not self._in_function:
                    raise ModelError(f"graph input {value.name!r} has no type")
                values[name] = Value(name, kind)
                continue
            default = values[name].tensor
            if default and isinstance(kind, TensorType) and default.dtype != kind.dtype:
                raise ModelError(
                    f"graph input {value.name!r} is declared as {kind} and its initializer is "
                    f"{default}"
                )
        return tuple(names)

    def _nodes(self, proto: GraphProto, scope: _Scope, values: dict[str, Value]) -> list[Node]:
        nodes = []
        written: set[str] = {scope.names[v.name] for v in (*proto.input, *proto.initializer)}
        for number, node in enumerate(proto.node):
            what = f"node {node.name or number!r} ({node.op_type})"
            outputs = tuple(scope.names[n] if n else "" for n in node.output)
            for name in filter(None, outputs):
                if name in written:
                    raise ModelError(f"{what} writes {name!r}, which exists already")
                written.add(name)
            if not any(outputs):
                continue
            if node.op_type == "Constant" and not node.domain and not self._in_function:
                array, code = self._constant(node, what)
                values[outputs[0]] = _constant_value(outputs[0], array, code)
                continue
            nodes.append(self._node(node, what, outputs, scope))
            for name in (*nodes[-1].reads, *nodes[-1].writes):
                values.setdefault(name, Value(name))
        return nodes

    def _node(self, node: NodeProto, what: str, outputs: tuple[str, ...], scope: _Scope) -> Node:
        inputs = []
        for name in node.input:
            found = scope.resolve(name) if name else ""
            if found is None:
                raise ModelError(f"{what} reads {name!r}, which nothing provides")
            inputs.append(found)
        attrs = {a.name: self._attribute(a, what, scope) for a in node.attribute}
        if len(attrs) != len(node.attribute):
            raise ModelError(f"{what} has an attribute twice")
        bodies = [b for v in attrs.values() for b in (v if isinstance(v, list) else [v])]
        captures = dict.fromkeys(n for b in bodies if isinstance(b, Graph) for n in b.captures)
        domain, since = node.domain, None
        if domain.startswith(UNCONVERTED):
            domain, since = "", int(domain.removeprefix(UNCONVERTED))
        if since is None:
            since = since_version(node.op_type, domain, self._opset.get(domain, 1))
        if since is None:
            since = self._opset.get("", 1) if domain == "" else 1
        return Node(
            node.op_type,
            _trim(inputs),
            outputs,
            attrs,
            domain,
            since,
            node.name,
            tuple(captures),
            (node.name or f"{node.op_type}({next(n for n in node.output if n)})",),
        )

    def _attribute(self, attribute: AttributeProto, what: str, scope: _Scope) -> Attribute:
        if attribute.ref_attr_name:
            if self._in_function:
                return None
            raise ModelError(
                f"{what}: attribute {attribute.name!r} refers to a function's attribute, and the "
                "node is in no function"
            )
        value: Any = onnx.helper.get_attribute_value(attribute)
        match attribute.type:
            case AttributeProto.STRING:
                return _text(value)
            case AttributeProto.STRINGS:
                return [_text(v) for v in value]
            case AttributeProto.INTS | AttributeProto.FLOATS:
                return list(value)
            case AttributeProto.TENSOR:
                return self._weights.array(value)
            case AttributeProto.TENSORS:
                return [self._weights.array(v) for v in value]
            case AttributeProto.SPARSE_TENSOR:
                return self._weights.dense(value)
            case AttributeProto.GRAPH:
                return self._graph(value, scope)
            case AttributeProto.GRAPHS:
                return [self._graph(v, scope) for v in value]
            case AttributeProto.TYPE_PROTO:
                return value_type(value, attribute.name)
            case AttributeProto.TYPE_PROTOS:
                return [value_type(v, attribute.name) for v in value]
            case AttributeProto.INT | AttributeProto.FLOAT:
                return value
        raise ModelError(f"{what}: attribute {attribute.name!r} has no type")

    def _constant(self, node: NodeProto, what: str) -> tuple[Array, int]:
        given = [a for a in node.attribute if a.name.startswith(("value", "sparse_value"))]
        if len(given) != 1:
            raise ModelError(f"{what} must have one value, and has {len(given)}")
        (attribute,) = given
        kind = _CONSTANTS.get(attribute.name)
        if kind is not None and attribute.type != kind:
            raise ModelError(f"{what}: attribute {attribute.name!r} is of another type")
        value = self._attribute(attribute, what, _Scope())
        match attribute.name:
            case "value" | "sparse_value" if isinstance(value, np.ndarray):
                proto = attribute.t
                code = proto.data_type or attribute.sparse_tensor.values.data_type
                return value, code
            case "value_int" | "value_ints":
                return _read_only(np.array(value, np.int64)), dtypes.INT64.code
            case "value_float" | "value_floats":
                return _read_only(np.array(value, np.float32)), dtypes.FLOAT32.code
            case "value_string" | "value_strings":
                return _read_only(np.array(value, object)), dtypes.STRING.code
        raise ModelError(f"{what}: {attribute.name!r} is no form of a constant")


_CONSTANTS = {
    "sparse_value": AttributeProto.SPARSE_TENSOR,
    "value": AttributeProto.TENSOR,
    "value_float": AttributeProto.FLOAT,
    "value_floats": AttributeProto.FLOATS,
    "value_int": AttributeProto.INT,
    "value_ints": AttributeProto.INTS,
    "value_string": AttributeProto.STRING,
    "value_strings": AttributeProto.STRINGS,
}
"""The types of the attributes that a Constant may have."""


def _read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _trim(names: list[str]) -> tuple[str, ...]:
    """Omitted inputs at the end are left out."""
    while names and not names[-1]:
        names.pop()
    return tuple(names)


def _local_names(graph: GraphProto) -> list[str]:
    return [
        *(v.name for v in graph.input),
        *(t.name for t in graph.initializer),
        *(name for node in graph.node for name in node.output if name),
    ]


def _constant_value(name: str, array: Array, code: int) -> Value:
    return Value(name, TensorType(dtypes.from_code(code), tuple(array.shape)), array)
