"""Direct single-operator cases of the ONNX backend suite, run through `registry.run`."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from cpu_fallback import registry

OPSET = 28
_EXPANDED = re.compile(r"_expanded(_ver\d+)?$")


@functools.cache
def direct_cases() -> dict[str, TestCase]:
    """Every node case that is not the expansion of a function, by name (takes seconds)."""
    with np.errstate(all="ignore"):
        cases = load_model_tests(kind="node")
    return {case.name: case for case in cases if not _EXPANDED.search(case.name)}


def cases_of(op_type: str, domain: str = "") -> list[TestCase]:
    """The direct cases whose first node is `op_type`."""
    return [
        case
        for case in direct_cases().values()
        if case.model.graph.node[0].op_type == op_type and case.model.graph.node[0].domain == domain
    ]


def converted(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model at the engine's opset; as it is where the converter does not know the way."""
    opset = next((entry.version for entry in model.opset_import if not entry.domain), OPSET)
    if opset == OPSET:
        return model
    return onnx.version_converter.convert_version(model, OPSET)


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for item in node.attribute:
        value = onnx.helper.get_attribute_value(item)
        if item.type == onnx.AttributeProto.TENSOR:
            value = onnx.numpy_helper.to_array(value)
        elif item.type == onnx.AttributeProto.STRING:
            value = value.decode()
        elif item.type == onnx.AttributeProto.STRINGS:
            value = [text.decode() for text in value]
        elif item.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
            value = list(value)
        attributes[item.name] = value
    return attributes


def evaluate(model: onnx.ModelProto, inputs: list[Any]) -> list[Any]:
    """Run a model without control flow node by node through `registry.run`."""
    versions = {entry.domain: entry.version for entry in model.opset_import}
    initializers = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    names = [item.name for item in model.graph.input if item.name not in initializers]
    values: dict[str, Any] = {"": None, **initializers, **dict(zip(names, inputs, strict=False))}
    for node in model.graph.node:
        version = versions[node.domain]
        if node.domain in {"", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"}:
            version = onnx.defs.get_schema(node.op_type, version, node.domain).since_version
        outputs = registry.run(
            node.op_type,
            node.domain,
            version,
            _attributes(node),
            [values.get(name) for name in node.input],
            len(node.output),
        )
        values.update(zip(node.output, outputs, strict=True))
    return [values[item.name] for item in model.graph.output]


def _array(value: Any) -> Any:
    """Arrays for the TensorProto values that the suite uses for packed types."""
    if isinstance(value, list):
        return [_array(item) for item in value]
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def check(case: TestCase, model: onnx.ModelProto | None = None) -> None:
    """Run one case and compare with the suite's own function and tolerances."""
    model = converted(case.model) if model is None else model
    for inputs, expected in case.data_sets:
        got = evaluate(model, _array(list(inputs)))
        with np.errstate(all="ignore"):
            Runner.assert_similar_outputs(_array(list(expected)), got, case.rtol, case.atol)


def failures(cases: Iterable[TestCase]) -> dict[str, str]:
    """Names of the failing cases with the first line of what went wrong."""
    failed: dict[str, str] = {}
    for case in cases:
        try:
            check(case)
        except Exception as error:  # every kind of failure is a result here
            text = " ".join(str(error).split())
            failed[case.name] = f"{type(error).__name__}: {text[:300]}"
    return failed
