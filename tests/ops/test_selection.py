"""TopK."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import engine
from engine.costs import Sizes, works
from engine.errors import ShapeError
from tests.ops.harness import (
    OpCase,
    arrays,
    build_model,
    check_cpu,
    check_engine_cpu,
    check_infer,
    feeds,
    inferred,
    supported,
)
from tests.ops.standard import for_each, node_suite, on_gpu
from tests.plan_costs import planned

F = "float32"


def top(x: Any, k: int, name: str = "", **attrs: Any) -> OpCase:
    return OpCase("TopK", (x, np.array([k])), attrs, 2, oracle="fallback", name=name)


SPECIAL = np.array(
    [[np.nan, 1, -np.inf, 0.0, -0.0, np.inf, -1, np.nan, 1, 1e-3, -1e-3]], np.float32
)
EXTREMES = np.array([2**31 - 1, -(2**31), 0, -1, 1, 2**31 - 1], np.int32)
CASES = [
    top(((3, 37), F), 5),
    top(((3, 37), F), 37, largest=0),
    top(((3, 37), F), 0),
    top(((1,), F), 1),
    top(((0, 5), F), 2),
    top(((2, 3, 5, 7), F), 2, axis=1),
    top(((5, 130, 3), F), 7, axis=-2, largest=0),
    top(((2, 1024), F), 1024),
    top(((2, 1025), F), 9),
    top(((1500, 2), F), 11, axis=0, largest=0, sorted=0),
    top(((4, 300), "int64"), 290),
    top(((4, 300), "int32"), 290, largest=0),
    top(((3, 65), "uint8"), 20),
    top(((3, 65), "int8"), 20, largest=0),
    top(((3, 65), "float16"), 20),
    top(SPECIAL, 11, "special"),
    top(SPECIAL, 11, "special-smallest", largest=0),
    top(np.tile(SPECIAL, (1, 100)), 600, "special-long"),
    top(EXTREMES, 6, "extremes"),
    top(EXTREMES, 6, "extremes-smallest", largest=0),
    top(np.zeros((2, 70), np.float32), 70, "ties"),
    top(((37, 16), F), 3),
    top(((33, 8), F), 8),
    top(((5, 129), F), 1),
    top(((300, 64), F), 8, largest=0),
    top(((2, 1030), F), 0),
]


def stable(x: Any, k: Any, largest: int = 1, axis: int = -1) -> Any:
    """NumPy's stable sort: the first of equal elements first, NaN last."""
    wide = x.astype(np.float64)
    order = np.argsort(-wide if largest else wide, axis=axis, kind="stable")
    first = np.take(order, np.arange(k[0]), axis=axis)
    return np.take_along_axis(x, first, axis), first


def long(x: Any, k: int, name: str = "", **attrs: Any) -> OpCase:
    def oracle(x: Any, k: Any) -> Any:
        return stable(x, k, attrs.get("largest", 1), attrs.get("axis", -1))

    return top(x, k, name, **attrs).replace(oracle=oracle)


SOME = np.tile(SPECIAL, (3, 400))
"""More than four blocks of numbers, each in all of them."""
LONG = [
    *(long(((2, count), F), k) for count in (1023, 1025, 2047, 2049) for k in (1, 1000)),
    *(long(((1, count), F), count) for count in (1024, 1026, 2048, 4096, 4097)),
    *(long(((3, 2048), F), k, largest=0) for k in (4, 1023, 1024, 1025)),
    long(((1, 20000), F), 20000, largest=0),
    long(((1, 20001), F), 1100),
    long(((2, 70001), F), 10),
    long(((1, 70000), "int32"), 700),
    long(((2, 5000, 3), F), 1500, axis=1),
    long(((4500, 2, 2), "int64"), 40, axis=0, largest=0, sorted=0),
    long(((2, 4100), "uint8"), 4100),
    long(((2, 4100), "float16"), 2000, largest=0),
    long(SOME, 4400, "all"),
    long(SOME, 700, "some-smallest", largest=0),
    long(np.zeros((2, 5000), np.float32), 4999, "equal"),
    long(np.full((1, 2100), np.nan, np.float32), 2100, "nan"),
    long(np.full((1, 2100), np.inf, np.float32), 7, "infinite", largest=0),
    long(np.tile(EXTREMES, (2, 400)), 2400, "extremes-long"),
    long(np.tile(EXTREMES, (2, 400)), 300, "extremes-long-smallest", largest=0),
]


test_cpu = for_each(CASES, check_cpu, check_engine_cpu, check_infer)
test_gpu = on_gpu(CASES)
test_gpu_with_open_sizes = on_gpu([CASES[0], CASES[5], CASES[8]], dynamic=True)
test_cpu_of_long_rows = for_each(LONG, check_cpu)
test_gpu_of_long_rows = on_gpu(LONG)


@pytest.mark.gpu
@pytest.mark.parametrize("k", [0, 1, 40, 1000])
def test_a_plan_holds_for_rows_of_any_length(k: int) -> None:
    case = top(((2, 1000, 3), F), k, axis=1)
    rng = np.random.default_rng(k)
    with engine.InferenceSession(build_model(case, dynamic=True), device="gpu") as session:
        for count in (1000, 1024, 1025, 4097, 1, 17, 20000, 130, 1000):
            x = rng.integers(-50, 50, (2, max(count, k), 3)).astype(F)
            got = session.run(None, {"x0": x})
            for mine, want in zip(got, stable(x, [k], axis=1), strict=True):
                np.testing.assert_array_equal(mine, want)


def test_rows_are_limited_by_the_levels_that_are_planned_for() -> None:
    guards = supported(CASES[0], dynamic=True).guards
    assert all(g.holds({"d0_0": 1, "d0_1": 2**28}) for g in guards)
    assert [str(g) for g in guards if not g.holds({"d0_0": 1, "d0_1": 2**28 + 1})] == [
        "a row has at most 268435456 elements"
    ]


@pytest.mark.parametrize(
    ("count", "dispatches"), [(1, 1), (1024, 1), (1025, 2), (4096, 2), (4097, 3), (70000, 5)]
)
def test_launches_are_counted(count: int, dispatches: int) -> None:
    case = top(((1, count), F), 1)
    found = planned(build_model(case).SerializeToString(), feeds(case, arrays(case)))
    assert sum(choice.repeats for _, choice in found.chosen) == dispatches
    graph = found.plan.graph
    (work,) = works(graph, Sizes(graph)).values()
    assert work.gpu.launches == dispatches


def test_k_past_the_axis_is_an_error() -> None:
    with pytest.raises(ShapeError, match="k is 6 of 5"):
        inferred(top(((3, 5), F), 6))


test_node_suite = node_suite("TopK")
