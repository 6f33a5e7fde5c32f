"""Einsum becomes standard operators that compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import engine
from engine.importer import load_model
from engine.passes import run_passes
from tests.ops.harness import (
    OpCase,
    arrays,
    build_model,
    check_engine_cpu,
    check_gpu,
    compare,
    expected,
    feeds,
)

F = "float32"
SIZES = dict(a=2, b=3, c=5, d=7, h=4, i=11, j=1, k=6, z=0)


def einsum(equation: str, dtype: str = F, **attrs: Any) -> OpCase:
    terms = equation.replace(" ", "").split("->")[0].split(",")
    inputs = tuple((tuple(SIZES[label] for label in term), dtype) for term in terms)
    return OpCase("Einsum", inputs, {"equation": equation}, name=equation, tol=1e-5, **attrs)


WRITTEN = [
    "->",
    "a->a",
    "abc->cab",
    "abc->b",
    "abc->",
    "bac",
    "bi,ik->bk",
    "bi , ik",
    "abi,aik->abk",
    "abi,aki->kab",
    "a,a->",
    "a,a->a",
    "a,b->ba",
    "ab,b->a",
    "ab,bc->b",
    "abc,->cab",
    "abch,adch->abd",
    "aibh,adbh->abid",
    "abcd,cdik->abik",
    "abcd,cdik->ikba",
    "abcd,ab->",
    "abj,jc->abc",
    "za,ab->zb",
]
KEPT = {
    "ellipsis": OpCase("Einsum", (((2, 3, 4), F),), {"equation": "...ij->...ji"}),
    "repeats a label": OpCase("Einsum", (((3, 3), F),), {"equation": "ii->i"}),
    "more than two operands": einsum("a,a,a->a"),
    "computes in float64": einsum("ab,bc->ac", "float64"),
    "would round to float16": einsum("ab,bc->c", "float16", oracle="fallback"),
}


def engine_types(case: OpCase, dynamic: bool = False) -> list[str]:
    result = run_passes(load_model(build_model(case, dynamic=dynamic)).graph)
    return [node.op_type for node in result.graph.nodes]


@pytest.mark.parametrize("equation", WRITTEN)
def test_same_results(equation: str) -> None:
    case = einsum(equation)
    assert "Einsum" not in engine_types(case)
    values = arrays(case)
    with engine.InferenceSession(build_model(case, values), device="cpu") as session:
        (got,) = session.run(None, feeds(case, values))
    compare(got, expected(case, values)[0], 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("equation", WRITTEN[1:])
def test_gpu(equation: str) -> None:
    check_gpu(einsum(equation))


def test_products_become_one_matmul() -> None:
    assert engine_types(einsum("abi,aik->abk")) == ["MatMul"]
    assert engine_types(einsum("a,a->a")) == ["Mul"]
    assert engine_types(einsum("abc->cab")) == ["Transpose"]
    assert engine_types(einsum("ab,bc->ac", "bfloat16")) == ["MatMul"]
    assert engine_types(einsum("ab->b", "int32")) == ["ReduceSum"]


@pytest.mark.parametrize("reason", KEPT)
def test_what_stays_says_why(reason: str) -> None:
    check_engine_cpu(KEPT[reason])
    result = run_passes(load_model(build_model(KEPT[reason])).graph)
    assert [node.op_type for node in result.graph.nodes] == ["Einsum"]
    (line,) = result.results["lower_einsum"].near_misses
    assert reason in line


def test_labels_whose_sizes_may_differ_stay() -> None:
    assert engine_types(einsum("ab,bc->ac"), dynamic=True) == ["Einsum"]


OPEN = """
<ir_version: 10, opset_import: ["" : 21]>
product (float[n, m, c, d] x, float[c, d, k, m] y) => (float[k, n, m] z)
{ z = Einsum <equation = "nmcd,cdkm->knm"> (x, y) }
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    "sizes", [(2, 3, 4, 5, 6), (1, 1, 7, 1, 2), (0, 2, 3, 1, 2), (2, 3, 0, 1, 2), (2, 0, 3, 1, 2)]
)
def test_sizes_known_when_bound(sizes: tuple[int, ...]) -> None:
    n, m, c, d, k = sizes
    rng = np.random.default_rng(sum(sizes))
    x = rng.standard_normal((n, m, c, d)).astype(np.float32)
    y = rng.standard_normal((c, d, k, m)).astype(np.float32)
    with engine.InferenceSession(
        onnx.parser.parse_model(OPEN), device="gpu", require_gpu=True
    ) as session:
        (got,) = session.run(None, {"x": x, "y": y})
    want = np.einsum("nmcd,cdkm->knm", x.astype(np.float64), y)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
