"""Einsum by its own kernel: what is not written out in other operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import engine
from engine.errors import ShapeError
from engine.importer import load_model
from engine.passes import run_passes
from tests.ops.harness import (
    Array,
    OpCase,
    build_model,
    check_cpu,
    check_engine_cpu,
    check_infer,
    inferred,
    supported,
)
from tests.ops.standard import for_each, gpu_node_suite, on_gpu_both_ways

F = "float32"


def einsum(equation: str, *shapes: tuple[int, ...], dtype: str = F, **attrs: Any) -> OpCase:
    def oracle(*operands: Array) -> Array:
        wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in operands]
        return np.asarray(np.einsum(equation.replace(" ", ""), *wide))

    return OpCase(
        "Einsum",
        tuple((shape, dtype) for shape in shapes),
        {"equation": equation},
        oracle=oracle,
        name=f"{equation}-{'-'.join(map(str, shapes))}-{dtype}".replace(" ", ""),
        **attrs,
    )


CASES = [
    einsum("...ij->...ji", (2, 5, 3, 4)),
    einsum("...ij,...jk->...ik", (3, 1, 5, 4), (7, 4, 6)),
    einsum("...,...->...", (3, 1, 37), (5, 1)),
    einsum("i...->...", (5, 2, 3)),
    einsum("b...,b...", (4, 3), (4, 3)),
    einsum("...ii->...i", (3, 5, 5)),
    einsum("ii", (7, 7)),
    einsum("ii->", (7, 7)),
    einsum("iji->j", (4, 5, 4)),
    einsum("a,b,c->cab", (3,), (5,), (7,)),
    einsum("ab,bc,cd->ad", (3, 113), (113, 5), (5, 2)),
    einsum("ab,bc->ac", (3, 1), (5, 4)),
    einsum("aB,Bc->cB", (3, 1), (5, 4)),
    einsum("ab,ab,ab->", (0, 3), (0, 3), (0, 3)),
    einsum("ab,cb,b->a", (0, 3), (2, 3), (3,)),
    einsum("...ij->...ji", (5, 3), dtype="int32"),
    einsum("ij,ij,ij->i", (5, 33), (5, 33), (5, 33), dtype="int32"),
    einsum("ii->i", (5, 5), dtype="float16"),
]
TWICE = einsum("ij,jk,ij->ik", (4, 4), (4, 4), (4, 4))


test_cpu = for_each(CASES, check_cpu, check_engine_cpu)
test_infer = for_each(CASES, check_infer)
test_gpu = on_gpu_both_ways(CASES)


@pytest.mark.gpu
def test_one_value_as_two_operands() -> None:
    model = build_model(TWICE)
    model.graph.node[0].input[2] = "x0"
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal((4, 4)).astype(np.float32) for _ in range(2))
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        (got,) = session.run(None, {"x0": x, "x1": y, "x2": x})
    np.testing.assert_allclose(got, np.einsum("ij,jk,ij->ik", x, y, x), rtol=1e-4, atol=1e-5)


def test_a_new_size_needs_no_new_plan() -> None:
    case = einsum("...ij,...jk->...ik", (3, 1, 5, 4), (7, 4, 6))
    passed = run_passes(load_model(build_model(case, dynamic=True)).graph)
    assert passed.guards == ()


def test_long_sums_are_refused() -> None:
    assert "products" in supported(einsum("ij,ij,ij->", (400, 400), (400, 400), (400, 400))).reason


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ab,bc->ac", [(2, 3)], "operands"),
        ("abc->a", [(2, 3)], "does not fit rank"),
        ("ab->a", [(2, 3, 4)], "does not fit rank"),
        ("ab,bc->ac", [(2, 3), (4, 5)], "do not broadcast"),
        ("ab->ac", [(2, 3)], "no such output"),
        ("ab->aa", [(2, 3)], "no such output"),
        ("a1->a", [(2, 3)], "malformed"),
    ],
)
def test_wrong_equations_are_refused(
    equation: str, shapes: list[tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        inferred(einsum(equation, *shapes))


test_node_suite = gpu_node_suite("Einsum")
