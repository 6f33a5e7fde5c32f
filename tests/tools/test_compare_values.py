"""Differences of values: what counts as one, how large it is, and where; and the bisection."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from engine import dtypes
from engine.ir import Graph, Node, TensorType, Value
from engine.tools.compare.bisect import guilty
from engine.tools.compare.runs import Place, slices
from engine.tools.compare.tolerance import Tolerance, difference, group_tolerance, model_tolerance

EXACT = Tolerance(0.0)
ROUND = Tolerance(1e-5)


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def test_an_error_is_relative_to_the_largest_element() -> None:
    want = f32(1000.0, 1.0, 0.0)
    assert difference("v", f32(1000.0, 1.005, 0.0), want, ROUND).ok
    found = difference("v", f32(1000.0, 1.02, 0.0), want, ROUND)
    assert not found.ok and (found.beyond, found.size, found.where) == (1, 3, (1,))
    assert found.max_abs == pytest.approx(0.02, rel=1e-4) == pytest.approx(found.max_rel, rel=1e-4)
    assert (found.got, found.want) == ("1.01999998", "1")
    assert found.problem == "1 of 3 elements differ by more than 0.01"
    assert found.score == pytest.approx(2, rel=1e-3)


def test_distances_in_representable_numbers() -> None:
    one = np.float32(1)
    above, below = np.nextafter(one, np.float32(2)), np.nextafter(one, np.float32(0))
    assert difference("v", f32(above), f32(below), EXACT).max_ulp == 2
    tiny = np.nextafter(np.float32(0), np.float32(1))
    assert difference("v", f32(tiny), f32(-tiny), EXACT).max_ulp == 2
    half = np.array([1.0], np.float16)
    assert difference("v", np.nextafter(half, np.float16(2)), half, EXACT).max_ulp == 1
    brain = np.array([1.0, 1.0078125], ml_dtypes.bfloat16)
    found = difference("v", brain[1:], brain[:1], EXACT)
    assert found.max_ulp == 1 and found.dtype == "bfloat16" and not found.ok


def test_numbers_that_a_device_may_take_for_zero() -> None:
    assert difference("v", f32(0.0), f32(1e-39), ROUND).ok
    assert not difference("v", f32(0.0), f32(1e-37), ROUND).ok
    assert not difference("v", f32(0.0), f32(1e-39), EXACT).ok


def test_nan_and_infinity_have_places() -> None:
    nan, inf = float("nan"), float("inf")
    want = f32(nan, inf, -inf, 1.0)
    assert difference("v", want.copy(), want, EXACT).ok
    for got in (f32(1.0, inf, -inf, 1.0), f32(nan, -inf, -inf, 1.0), f32(nan, inf, -inf, nan)):
        found = difference("v", got, want, Tolerance(1.0))
        assert not found.ok and "by NaN or infinity" in found.problem
    found = difference("v", f32(nan, nan, -inf, 1.0), want, ROUND)
    assert found.nan == (2, 1) and found.inf == (1, 2) and found.where == (1,)


@pytest.mark.parametrize(
    ("got", "want", "problem"),
    [
        (f32(1.0), f32(1.0, 2.0), "shape [1] instead of [2]"),
        (np.array([1]), f32(1.0), "dtype int64 instead of float32"),
        (None, f32(1.0), "nothing instead of float32[1]"),
        ([f32(1.0)], [f32(1.0), f32(2.0)], "a sequence of 1 instead of a sequence of 2"),
        ([f32(1.0)], f32(1.0), "a sequence of 1 instead of float32[1]"),
        (np.array(["a", "c"], object), np.array(["a", "b"], object), "1 of 2 elements differ"),
        (np.array([True]), np.array([False]), "1 of 1 elements differ"),
    ],
)
def test_other_kinds_of_values(got: Any, want: Any, problem: str) -> None:
    assert difference("v", got, want, EXACT).problem == problem
    assert difference("v", want, want, EXACT).ok
    assert difference("v", None, None, EXACT).ok


def test_the_worst_element_of_a_sequence_is_named() -> None:
    want = [f32(1.0), f32(2.0), f32(3.0)]
    found = difference("v", [f32(1.0), f32(2.5), f32(3.1)], want, ROUND)
    assert found.name == "v[1]" and not found.ok


def test_integers_may_flip_only_where_floats_decide() -> None:
    want = np.arange(3000)
    got = want.copy()
    got[[5, 9, 30]] += 1
    assert not difference("v", got, want, EXACT).ok
    assert difference("v", got, want, Tolerance(1e-5, 1e-3)).ok
    got[100] += 2
    assert not difference("v", got, want, Tolerance(1e-5, 1e-3)).ok
    got[100] -= 1
    got[200] += 1
    found = difference("v", got, want, Tolerance(1e-5, 1e-3))
    assert not found.ok and found.beyond == 5 and found.max_abs == 1


def chain(*op_types: str, kind: dtypes.DType, result: dtypes.DType) -> tuple[Graph, list[Node]]:
    nodes, values = [], {"v0": Value("v0", TensorType(kind, (3,)))}
    for i, op_type in enumerate(op_types):
        last = i + 1 == len(op_types)
        values[f"v{i + 1}"] = Value(f"v{i + 1}", TensorType(result if last else kind, (3,)))
        attrs = {"to": result.code} if op_type == "Cast" else {}
        nodes.append(Node(op_type, (f"v{i}",), (f"v{i + 1}",), attrs, "", 13))
    return Graph(tuple(nodes), values, ("v0",), (f"v{len(nodes)}",)), nodes


def test_tolerances_add_up_over_the_nodes_of_a_kernel() -> None:
    single = group_tolerance(*chain("Tanh", kind=dtypes.FLOAT32, result=dtypes.FLOAT32))
    double = group_tolerance(*chain("Tanh", "Tanh", kind=dtypes.FLOAT32, result=dtypes.FLOAT32))
    half = group_tolerance(*chain("Tanh", kind=dtypes.FLOAT16, result=dtypes.FLOAT16))
    assert 0 < single.relative < 1e-3 and double.relative == pytest.approx(2 * single.relative)
    assert half.relative >= 2 * 2**-10
    moved = group_tolerance(*chain("Transpose", kind=dtypes.FLOAT32, result=dtypes.FLOAT32))
    assert moved == EXACT
    decided = group_tolerance(*chain("Exp", "Cast", kind=dtypes.FLOAT32, result=dtypes.INT32))
    assert decided.flips > 0
    assert group_tolerance(*chain("Neg", kind=dtypes.INT32, result=dtypes.INT32)) == EXACT


def test_whole_models_are_allowed_more() -> None:
    assert model_tolerance(f32(1.0), None).relative == 1e-3
    assert model_tolerance([f32(1.0)], None).relative == 1e-3
    assert model_tolerance(np.array([1.0], np.float16), None).relative == 2e-2
    assert model_tolerance(np.array([1]), None).relative == 0
    assert model_tolerance(f32(1.0), 0.5).relative == 0.5


def test_every_guilty_pass_is_found() -> None:
    names = [f"p{i}" for i in range(9)]
    for culprit in names:
        calls: list[frozenset[str]] = []

        def right(disabled: frozenset[str], culprit: str = culprit, calls: Any = calls) -> bool:
            calls.append(disabled)
            return culprit in disabled

        assert guilty(names, right) == culprit
        assert len(calls) <= 6
    assert guilty(names, lambda disabled: True) is None
    assert guilty(names, lambda disabled: False) is None
    for first, second in product(range(9), range(9)):
        # wrong only if both ran: the later one is named
        both = {names[first], names[second]}
        assert guilty(names, lambda d, both=both: bool(both & d)) == names[max(first, second)]  # type: ignore[misc]


def test_slices_keep_to_the_budget() -> None:
    places = [Place((), 0, str(i)) for i in range(6)]
    sizes = dict(zip(places, [30, 30, 30, 200, 10, 10], strict=True))
    found = list(slices(places, sizes, 64))
    assert [[p.name for p in chosen] for chosen in found] == [["0", "1"], ["2"], ["3"], ["4", "5"]]
    assert list(slices([], {}, 10)) == []
