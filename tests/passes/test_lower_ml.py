"""Operators of ai.onnx.ml become standard ones that compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.importer import load_model
from engine.passes import run_passes
from tests.cpu_fallback.oracle import ort_node
from tests.ops.harness import Array, OpCase, arrays, build_model, case_id, check_gpu, compare

ML = "ai.onnx.ml"
X = np.array([[0.5, -1.5, 2.0], [np.nan, 1.0, -0.0]], np.float32)


def ml(op: str, *inputs: Array, name: str = "", **attrs: Any) -> OpCase:
    def oracle(*values: Array) -> tuple[Array, ...]:
        return tuple(ort_node(op, values, 1, domain=ML, model_opset=21, **attrs))

    return OpCase(op, inputs, attrs, domain=ML, opset=1, oracle=oracle, name=name)


CASES = [
    ml("ArrayFeatureExtractor", X, np.array([[2, 0]]), name="row"),
    ml("ArrayFeatureExtractor", X[0], np.array([1, 1, 2]), name="vector"),
    ml("ArrayFeatureExtractor", np.arange(24).reshape(2, 3, 4), np.array([[3], [1]]), name="3d"),
    ml("Imputer", X, imputed_value_floats=[7.0], replaced_value_float=float("nan"), name="nan"),
    ml("Imputer", X, imputed_value_floats=[7.0, 8, 9], replaced_value_float=1.0, name="number"),
    ml(
        "Imputer",
        np.array([[1, 2], [2, 5]]),
        imputed_value_int64s=[-3, 4],
        replaced_value_int64=2,
        name="int64",
    ),
    ml("LinearRegressor", X[:1], coefficients=[1.0, 2, 3], intercepts=[0.5], name="one"),
    ml(
        "LinearRegressor",
        X[:1],
        coefficients=[1.0, 2, 3, -1, 0, 2],
        intercepts=[0.5, -2],
        targets=2,
        name="two",
    ),
    ml("Scaler", X, offset=[1.0, 2, 3], scale=[0.5, -1, 2], name="float"),
    ml("Scaler", X, offset=[1.0], scale=[2.0], name="single"),
    ml("Scaler", np.array([[1, 2, 3]], np.int32), offset=[0.5, 1, 0], scale=[2.0, 2, 2], name="i"),
    ml("Scaler", X.astype(np.float64), offset=[1.0, 2, 3], scale=[0.5, -1, 2], name="double"),
]
BINARY = [
    OpCase("Binarizer", (X,), {"threshold": 0.5}, domain=ML, opset=1, name="float"),
    OpCase("Binarizer", (X,), domain=ML, opset=1, name="zero"),
    OpCase("Binarizer", (np.array([[-2, 0, 1, 3]]),), {"threshold": 0.5}, domain=ML, opset=1),
    OpCase("Binarizer", (np.array([[-2, 0, 1, 3]]),), {"threshold": -1.5}, domain=ML, opset=1),
]


def op_types(case: OpCase) -> set[str]:
    return {n.op_type for n in run_passes(load_model(build_model(case)).graph).graph.nodes}


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_same_results_as_onnxruntime(case: OpCase) -> None:
    import engine

    assert case.op not in op_types(case)
    values = arrays(case)
    want = case.oracle(*values)  # type: ignore[operator, misc]
    with engine.InferenceSession(build_model(case), device="cpu") as session:
        (got,) = session.run(None, {f"x{i}": v for i, v in enumerate(values)})
    assert got.dtype == want[0].dtype
    compare(got, want[0], 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES[:-1], ids=case_id)
def test_gpu(case: OpCase) -> None:
    import engine

    values = arrays(case)
    with engine.InferenceSession(build_model(case), device="gpu", require_gpu=True) as session:
        (got,) = session.run(None, {f"x{i}": v for i, v in enumerate(values)})
    compare(got, case.oracle(*values)[0], 1e-6)  # type: ignore[operator, misc]


@pytest.mark.gpu
@pytest.mark.parametrize("case", BINARY, ids=case_id)
def test_what_is_above_a_threshold(case: OpCase) -> None:
    assert case.op not in op_types(case)
    check_gpu(case)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (ml("Imputer", X, imputed_value_floats=[1.0, 2.0]), "value for each column"),
        (ml("Imputer", X.astype(np.float64), imputed_value_floats=[1.0]), "float64"),
        (ml("LinearRegressor", X, coefficients=[1.0]), "do not fit"),
        (ml("LinearRegressor", X, coefficients=[1.0, 1, 1], post_transform="PROBIT"), "PROBIT"),
        (ml("Scaler", X, offset=[1.0, 2.0]), "as many"),
        (ml("Binarizer", np.array([1], np.int32), threshold=-3e9), "below or above"),
    ],
    ids=lambda found: found if isinstance(found, str) else found.op,
)
def test_what_stays_says_why(case: OpCase, reason: str) -> None:
    result = run_passes(load_model(build_model(case)).graph)
    assert [n.op_type for n in result.graph.nodes] == [case.op]
    (line,) = result.results["lower_ml"].near_misses
    assert reason in line
