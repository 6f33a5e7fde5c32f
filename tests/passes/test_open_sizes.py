"""Operators of which no size is known: rules give sizes that hold, and no guard on a number."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from engine import dims
from engine.importer import load_model
from engine.ir import TensorType
from engine.passes import run_passes
from engine.runtime.feeds import bind_inputs
from tests.cpu_fallback.node_cases import direct_cases
from tests.ops.node_suite import as_array

RANK_OF_SIZES = frozenset(
    {"AffineGrid", "ConstantOfShape", "Expand", "GatherND", "Reshape", "Unsqueeze"}
)
"""A size of an input says how many axes their output has, which a plan must know."""


def opened(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """`model` with a name for every size of its inputs; None if one is no tensor."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    count = 0
    for value in found.graph.input:
        if value.type.WhichOneof("value") != "tensor_type":
            return None
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_param = f"d{count}"
            count += 1
    for value in found.graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.ClearField("shape")
    return found


def problem(case: Any) -> str:
    """What is wrong with the sizes that are found for a case, if anything is."""
    model = opened(case.model)
    if model is None:
        return ""
    graph = load_model(model).graph
    (given, expected), *_ = case.data_sets
    feeds = {n: np.asarray(as_array(v)) for n, v in zip(graph.inputs, given, strict=True)}
    binding = bind_inputs(graph, feeds, {})
    passed = run_passes(graph, binding=binding)
    for guard in passed.guards:
        if "no symbolic shape rule" in guard.why:
            return guard.why
    for name, want in zip(passed.graph.outputs, map(as_array, expected), strict=True):
        kind = passed.graph.values[name].type
        if not isinstance(kind, TensorType) or kind.shape is None or want is None:
            continue
        shape = np.asarray(want).shape
        if len(shape) != len(kind.shape):
            return f"{kind} is not of rank {len(shape)}"
        for dim, size in zip(kind.shape, shape, strict=True):
            if dims.symbols_of(dim) <= binding.keys() and dims.evaluate(dim, binding) != size:
                return f"{kind} is not {shape}"
    return ""


@pytest.mark.slow
def test_a_plan_holds_for_every_size() -> None:
    found: dict[str, str] = {}
    for name, case in direct_cases().items():
        if case.model.graph.node[0].op_type not in RANK_OF_SIZES:
            wrong = problem(case)
            if wrong:
                found[name] = wrong
    assert found == {}


@pytest.mark.slow
def test_where_sizes_say_the_rank_a_plan_is_for_some() -> None:
    kept = set()
    for case in direct_cases().values():
        op_type = case.model.graph.node[0].op_type
        if op_type in RANK_OF_SIZES and op_type not in kept and "no symbolic" in problem(case):
            kept.add(op_type)
    assert kept == RANK_OF_SIZES
