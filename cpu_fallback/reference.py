"""The long tail: operators without a NumPy function here, run by `onnx.reference`.

The only module of the folder that imports `onnx`. Control flow (If, Loop, Scan, SequenceMap) is
executed by the engine and not found here.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from cpu_fallback.registry import UnsupportedOp, Value
from cpu_fallback.registry import run as run_op

_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""`engine.ir.CONTROL_FLOW`, which this folder may not import; a test compares."""
_DOMAIN_MODULES = {
    "": "onnx.reference.ops",
    "ai.onnx.ml": "onnx.reference.ops.aionnxml",
    "ai.onnx.preview": "onnx.reference.ops.aionnx_preview",
    "ai.onnx.preview.training": "onnx.reference.ops.aionnx_preview_training",
}


def exists(op_type: str, domain: str, since_version: int) -> bool:
    """Whether `run` can execute this operator."""
    if not domain and op_type in _CONTROL_FLOW:
        return False
    if _implementation(op_type, domain, since_version) is not None:
        return True
    schema = _schema(op_type, domain, since_version)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def run(
    op_type: str,
    domain: str,
    since_version: int,
    attrs: Mapping[str, object],
    inputs: Sequence[Value],
    n_outputs: int,
) -> list[Any]:
    """Execute one node by its class in `onnx.reference`, or by its ONNX function body.

    Raises: UnsupportedOp if there is neither.
    """
    if not exists(op_type, domain, since_version):
        raise UnsupportedOp(op_type, domain, since_version)
    node = _make_node(op_type, domain, attrs, inputs, n_outputs)
    implementation = _implementation(op_type, domain, since_version)
    if implementation is None:
        return _run_function(node, since_version, inputs)
    params = {
        "log": lambda *_: None,
        "opsets": {"": onnx.defs.onnx_opset_version(), domain: since_version},
        "verbose": 0,
        "new_ops": {},
        "existing_functions": {},
        "evaluator_cls": ReferenceEvaluator,
    }
    instance: Any = implementation(node, params)
    return list(instance.run(*inputs))


def attribute_defaults(op_type: str, domain: str, since_version: int) -> dict[str, Any]:
    """Defaults the specification gives, by attribute name, as Python values."""
    schema = _schema(op_type, domain, since_version)
    if schema is None:
        return {}
    return {
        name: _python_value(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type != onnx.AttributeProto.UNDEFINED
    }


@functools.cache
def _schema(op_type: str, domain: str, since_version: int) -> Any:
    try:
        return onnx.defs.get_schema(op_type, since_version, domain)
    except onnx.defs.SchemaError:
        return None


@functools.cache
def _implementation(op_type: str, domain: str, since_version: int) -> type[OpRun] | None:
    if domain not in _DOMAIN_MODULES:
        return None
    op_list = importlib.import_module(f"{_DOMAIN_MODULES[domain]}._op_list")
    versions = _classes(domain).get(op_type, {})
    older = [version for version in versions if version is not None and version <= since_version]
    if not versions or (len(versions) > 1 and not older):
        return None
    found = op_list.load_op(domain, op_type, since_version)
    return found if isinstance(found, type) else None


@functools.cache
def _classes(domain: str) -> Mapping[str, Mapping[int | None, type[OpRun]]]:
    op_list = importlib.import_module(f"{_DOMAIN_MODULES[domain]}._op_list")
    classes: Mapping[str, Mapping[int | None, type[OpRun]]] = op_list._build_registered_operators()
    return classes


def _make_node(
    op_type: str,
    domain: str,
    attrs: Mapping[str, object],
    inputs: Sequence[Value],
    n_outputs: int,
) -> onnx.NodeProto:
    node = onnx.helper.make_node(
        op_type,
        ["" if value is None else f"x{i}" for i, value in enumerate(inputs)],
        [f"y{i}" for i in range(n_outputs)],
        domain=domain,
    )
    schema = _schema(op_type, domain, onnx.defs.onnx_opset_version()) if not domain else None
    for name, value in attrs.items():
        if isinstance(value, np.ndarray):
            value = onnx.numpy_helper.from_array(value)
        kind = None
        if isinstance(value, list) and not value:
            known = schema.attributes.get(name) if schema is not None else None
            kind = int(known.type) if known is not None else onnx.AttributeProto.INTS
        node.attribute.append(onnx.helper.make_attribute(name, value, attr_type=kind))
    return node


def _type_proto(value: Value) -> onnx.TypeProto:
    if value is None:
        return onnx.TypeProto()
    if isinstance(value, list):
        return onnx.helper.make_sequence_type_proto(_type_proto(value[0]))
    element = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.helper.make_tensor_type_proto(element, value.shape)


def _function(
    node: onnx.NodeProto, since_version: int, inputs: Sequence[Value]
) -> onnx.FunctionProto:
    schema = _schema(node.op_type, node.domain, since_version)
    if schema is None:
        raise UnsupportedOp(node.op_type, node.domain, since_version)
    if schema.has_function:
        body: onnx.FunctionProto = schema.function_body
        return body
    types = [_type_proto(value).SerializeToString() for value in inputs]
    function = onnx.FunctionProto()
    function.ParseFromString(schema.get_context_dependent_function(node.SerializeToString(), types))
    return function


def _run_function(node: onnx.NodeProto, since_version: int, inputs: Sequence[Value]) -> list[Any]:
    """Evaluate the function body node by node, each through the registry."""
    function = _function(node, since_version, inputs)
    versions = {entry.domain: entry.version for entry in function.opset_import}
    attributes = {item.name: item for item in node.attribute}
    for item in function.attribute_proto:
        attributes.setdefault(item.name, item)
    schema = _schema(node.op_type, node.domain, since_version)
    for name, known in (schema.attributes if schema is not None else {}).items():
        if known.default_value.type != onnx.AttributeProto.UNDEFINED:
            attributes.setdefault(name, known.default_value)
    values: dict[str, Any] = {"": None}
    values.update(dict.fromkeys(function.input))
    values.update(zip(function.input, inputs, strict=False))
    for inner in function.node:
        attrs = _inner_attributes(inner, attributes)
        opset = versions.get(inner.domain, versions.get("", onnx.defs.onnx_opset_version()))
        found = _schema(inner.op_type, inner.domain, opset)
        since = found.since_version if found is not None else opset
        arguments = [values[name] for name in inner.input]
        results = run_op(inner.op_type, inner.domain, since, attrs, arguments, len(inner.output))
        values.update(zip(inner.output, results, strict=True))
    return [values[name] for name in function.output[: len(node.output)]]


def _inner_attributes(
    inner: onnx.NodeProto, outer: Mapping[str, onnx.AttributeProto]
) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    for item in inner.attribute:
        source = outer.get(item.ref_attr_name) if item.ref_attr_name else item
        if source is not None:
            attrs[item.name] = _python_value(source)
    return attrs


def _python_value(item: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(item)
    if item.type == onnx.AttributeProto.TENSOR:
        return onnx.numpy_helper.to_array(value)
    if item.type == onnx.AttributeProto.STRING:
        return value.decode()
    if item.type == onnx.AttributeProto.STRINGS:
        return [text.decode() for text in value]
    if item.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        return list(value)
    return value
