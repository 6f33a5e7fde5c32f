"""ScatterElements and ScatterND: repeated places, and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpu_fallback import registry
from tests.ops.harness import (
    Array,
    OpCase,
    case_id,
    check_cpu,
    check_engine_cpu,
    check_gpu,
    check_infer,
    supported,
)
from tests.ops.standard import for_each, gpu_node_suite, node_suite, on_gpu

F = "float32"
RNG = np.random.default_rng(17)
REDUCTIONS = ("add", "mul", "max", "min")
OPS = ("ScatterElements", "ScatterND")


def drawn(low: int, high: int, *shape: int) -> Array:
    return np.asarray(RNG.integers(low, high, shape))


def elements(
    data: tuple[int, ...], indices: Array, dtype: str = F, name: str = "", **attrs: Any
) -> OpCase:
    name = name and f"{name}-{dtype}-{'-'.join(map(str, attrs.values()))}"
    case = ((data, dtype), indices, (indices.shape, dtype))
    return OpCase("ScatterElements", case, attrs, oracle="fallback", name=name)


def slices(
    data: tuple[int, ...], indices: Array, dtype: str = F, name: str = "", **attrs: Any
) -> OpCase:
    name = name and f"{name}-{dtype}-{'-'.join(map(str, attrs.values()))}"
    shape = indices.shape[:-1] + data[indices.shape[-1] :]
    return OpCase(
        "ScatterND", ((data, dtype), indices, (shape, dtype)), attrs, oracle="fallback", name=name
    )


ONCE = [
    elements((3, 5), np.array([[1, -1, 2]]), axis=1),
    elements((5,), np.array([1, 3]), "bool"),
    elements((3, 5, 2), drawn(0, 1, 1, 5, 2)),
    slices((4, 3, 5), np.array([[0, 1], [-1, -2], [3, 2]])),
    slices((8,), np.array([[4], [3], [1], [-1]]), "int64"),
    slices((4, 37), np.array([[[0]], [[2]]])),
    slices((4, 3), np.zeros((0, 1), np.int64), name="none"),
]
REPEATED = [
    elements((7,), drawn(-7, 7, 1300), name="many"),
    elements((5, 7, 3), drawn(-7, 7, 4, 11, 2), axis=1, name="inside"),
    elements((5, 7), drawn(-7, 7, 5, 300), "bool", axis=-1, name="flags"),
    elements((7,), drawn(-7, 7, 40), "float16", name="short"),
    slices((3, 4, 5), drawn(-3, 3, 90, 2), name="rows"),
    slices((6, 37), drawn(0, 6, 1, 41, 1), "int32", name="long"),
    slices((3, 3, 2), drawn(-2, 2, 100, 3), "uint8", name="single"),
]
REDUCED = [
    *(elements((5, 7, 3), drawn(-7, 7, 4, 11, 2), axis=1, reduction=r) for r in REDUCTIONS),
    *(slices((3, 4, 5), drawn(-3, 3, 30, 2), reduction=r) for r in REDUCTIONS),
    *(elements((7,), drawn(-7, 7, 20), "int32", reduction=r) for r in REDUCTIONS),
    *(slices((7, 3), drawn(-7, 7, 20, 1), "int8", reduction=r) for r in REDUCTIONS),
    elements((1, 37, 2), drawn(0, 37, 1, 113, 2), axis=-2, reduction="add", name="odd"),
    elements((4,), np.zeros(0, np.int64), reduction="add", name="empty"),
    slices((2, 3, 4), drawn(0, 2, 2, 5, 3), reduction="add", name="tuples"),
    elements((9,), drawn(0, 9, 30), "float16", reduction="max", name="short"),
]
LONG = [
    elements((7,), drawn(0, 7, 3), "int64", reduction="max", name="long"),
    slices((7,), drawn(0, 7, 3, 1), "int64", reduction="min", name="long"),
]
CASES = [*ONCE, *REPEATED, *(c.replace(tol=1e-5) for c in REDUCED), *LONG]


test_cpu = for_each(CASES, check_cpu, check_engine_cpu, check_infer)
test_gpu = on_gpu(CASES)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*ONCE[:3], *REPEATED, *REDUCED[:6]], ids=case_id)
def test_gpu_with_constant_indices(case: OpCase) -> None:
    check_gpu(case.replace(constants=(1,)))


test_gpu_with_open_sizes = on_gpu(
    [c for c in CASES if c.op == "ScatterElements" and c.name != "empty"], dynamic=True
)
test_node_suite = node_suite(*OPS)
test_node_suite_on_the_gpu = gpu_node_suite(*OPS, require_gpu=True)


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("reduction", ["max", "min"])
def test_a_nan_stays(op: str, reduction: str) -> None:
    data = np.array([1, np.nan, 3, 4], np.float32)
    updates = np.array([np.nan, 7, 2, 9, -9], np.float32)
    places = np.array([0, 1, 2, 2, 2])
    indices = places if op == "ScatterElements" else places[:, None]
    case = OpCase(op, (data, indices, updates), {"reduction": reduction}, oracle="fallback")
    check_gpu(case)


def test_what_the_gpu_refuses() -> None:
    assert "numbers" in supported(elements((5,), drawn(0, 5, 3), "bool", reduction="max")).reason
    many = elements((5,), np.zeros(60_000, np.int64), reduction="add")
    assert "in turn" in supported(many).reason
    assert supported(many, dynamic=True).guards
    assert supported(many.replace(attrs={})).ok


def test_of_updates_to_one_place_the_last_wins() -> None:
    x, updates = np.zeros(3, np.float32), np.array([1, 2, 3], np.float32)
    indices = np.array([1, 1, 1])
    got = registry.run("ScatterElements", "", 18, {}, [x, indices, updates], 1)[0]
    np.testing.assert_array_equal(np.asarray(got), [0, 3, 0])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("case", "stages"), [(ONCE[0], 2), (REPEATED[0], 4), (REDUCED[0], 1), (ONCE[2], 2)]
)
def test_winners_are_looked_for_only_where_places_may_repeat(case: OpCase, stages: int) -> None:
    import engine
    from tests.ops.harness import arrays, build_model, feeds

    fixed = case.replace(constants=(1,))
    values = arrays(fixed)
    with engine.InferenceSession(build_model(fixed, values), device="gpu") as session:
        plan = session.plan(feeds(fixed, values))
    assert sum(type(step).__name__ == "Dispatch" for step in plan.steps) == stages
