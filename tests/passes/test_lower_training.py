"""Optimisers become standard operators that compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx.reference import ReferenceEvaluator

import engine
from engine.importer import load_model
from engine.passes import run_passes

TRAINING = "ai.onnx.preview.training"
GROUPS = {"Adagrad": (3, 2), "Adam": (4, 3), "Momentum": (3, 2)}
MOMENTUM = {"alpha": 0.9, "beta": 0.7, "norm_coefficient": 0.01, "mode": "standard"}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("Adagrad", {}),
    ("Adagrad", {"decay_factor": 0.1, "epsilon": 1e-3, "norm_coefficient": 0.02}),
    ("Adam", {}),
    ("Adam", {"alpha": 0.95, "beta": 0.1, "epsilon": 1e-7, "norm_coefficient": 0.05}),
    ("Adam", {"norm_coefficient_post": 0.1, "alpha": 0.0}),
    ("Momentum", MOMENTUM),
    ("Momentum", MOMENTUM | {"mode": "nesterov", "norm_coefficient": 0.0}),
    ("Momentum", MOMENTUM | {"beta": 1.0, "alpha": 1.0}),
]


def model(
    op: str, attrs: dict[str, Any], shapes: list[tuple[int, ...]], code: int = 1
) -> onnx.ModelProto:
    groups, written = GROUPS[op]
    count = len(shapes)
    names = ["R", "T", *(f"i{k}" for k in range(groups * count))]
    node = oh.make_node(
        op, names, [f"o{k}" for k in range(written * count)], domain=TRAINING, **attrs
    )
    infos = [oh.make_tensor_value_info("R", code, []), oh.make_tensor_value_info("T", 7, [])]
    for k in range(groups * count):
        infos.append(oh.make_tensor_value_info(f"i{k}", code, shapes[k % count]))
    outs = [
        oh.make_tensor_value_info(o, code, shapes[k % count]) for k, o in enumerate(node.output)
    ]
    opsets = [oh.make_opsetid("", 21), oh.make_opsetid(TRAINING, 1)]
    return oh.make_model(
        oh.make_graph([node], "g", infos, outs), opset_imports=opsets, ir_version=9
    )


def feed(made: onnx.ModelProto, step: int) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    values: dict[str, Any] = {"R": np.array(0.1, np.float32), "T": np.array(step)}
    for info in made.graph.input[2:]:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        values[info.name] = rng.random(shape).astype(np.float32) + np.float32(0.1)
    return values


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{n}-{CASES[n][0]}")
def test_same_results(number: int, device: str) -> None:
    op, attrs = CASES[number]
    made = model(op, attrs, [(3, 5), (7,)])
    passed = run_passes(load_model(made).graph)
    assert {n.domain for n in passed.graph.nodes} == {""}
    with engine.InferenceSession(made, device=device, require_gpu=device == "gpu") as session:
        for step in (0, 1, 2, 1000):
            given = feed(made, step)
            wide = {k: v.astype(np.float64) if k != "T" else v for k, v in given.items()}
            want = ReferenceEvaluator(model(op, attrs, [(3, 5), (7,)], 11)).run(None, wide)
            for mine, other in zip(session.run(None, given), want, strict=True):
                assert mine.dtype == np.float32
                np.testing.assert_allclose(mine, other, rtol=2e-5, atol=2e-6)


def test_what_stays_says_why() -> None:
    result = run_passes(load_model(model("Adam", {}, [(3,)], 11)).graph)
    assert [n.op_type for n in result.graph.nodes] == ["Adam"]
    (line,) = result.results["lower_training"].near_misses
    assert "float32" in line
