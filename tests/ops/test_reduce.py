"""Reductions, ArgMax, ArgMin, CumSum, CumProd: axes, empty sets, NaN, long rows, kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import dims
from engine.errors import ShapeError
from engine.ops import KernelCall, Lowering, Stage, definition
from engine.ops.reduce import by_workgroup
from engine.target import Target
from tests.ops.harness import (
    OpCase,
    check_cpu,
    check_engine_cpu,
    check_gpu,
    check_infer,
    inferred,
    ints,
    supported,
)
from tests.ops.standard import for_each, on_gpu
from tests.ops.test_elementwise import contents

FLOAT_OPS = (
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
    "ReduceLogSumExp ReduceSumSquare"
).split()
INT_OPS = ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceSumSquare")
NAN_ROWS = np.array(
    [
        [1, np.nan, 3, 2],
        [-np.inf, -np.inf, -np.inf, -np.inf],
        [np.inf, 1, -5, np.inf],
        [-0.0, 0.0, -0.0, 0.0],
        [3.4e38, -3.4e38, 1e-40, 2.0],
        [np.inf, np.nan, -np.inf, 0],
    ],
    np.float32,
)


def log_sum_exp(x: Any, *axes: Any) -> Any:
    """By definition in float64, as onnx.reference loses infinities."""
    wide = x.astype(np.longdouble)
    return np.log(np.sum(np.exp(wide), axis=-1, keepdims=True)).astype(np.float64)


def wrapped_squares(x: Any, axes: Any) -> Any:
    return np.sum(x * x, axis=1, keepdims=True, dtype=x.dtype)


def _rows() -> list[OpCase]:
    cases = []
    for op in FLOAT_OPS:
        positive = op == "ReduceLogSum"
        x = np.random.default_rng(3).standard_normal((5, 37, 113)).astype(np.float32)
        x = np.abs(x) if positive else x
        small = x[:, :7, :11] if op == "ReduceProd" else x
        for axes in ((-1,), (0,), (1,), (0, 2), (1, 2), (0, 1, 2)):
            keep = sum(axes) % 2
            cases.append(OpCase(op, (small, ints(*axes)), {"keepdims": keep}, name=f"axes{axes}"))
        cases.append(OpCase(op, (small[0],), name="all"))
        whole = (lambda x: x) if op == "ReduceLogSumExp" else None
        cases.append(OpCase(op, (np.asarray(small[0, 0, 0]),), oracle=whole, name="scalar"))
        cases.append(OpCase(op, (small[0], ints()), {"noop_with_empty_axes": 1}, name="none"))
        cases.append(OpCase(op, (small[:, :, :0], ints(2)), name="empty", oracle="fallback"))
        cases.append(OpCase(op, (small[:0], ints(1)), name="no-output", oracle="fallback"))
        oracle = log_sum_exp if op == "ReduceLogSumExp" else None
        rows = np.abs(NAN_ROWS) if positive else NAN_ROWS
        cases.append(OpCase(op, (rows[:4], ints(1)), name="nan", oracle=oracle))
    return cases


def _integers() -> list[OpCase]:
    wrapping = np.array([[2**31 - 1, 1, 5], [-(2**31), -1, 7]], np.int32)
    cases = []
    for op in INT_OPS:
        # onnx.reference widens squares to int64
        oracle = wrapped_squares if op == "ReduceSumSquare" else None
        for dtype in (np.int32, np.uint32):
            operands = (wrapping.view(dtype), ints(1))
            cases.append(OpCase(op, operands, oracle=oracle, name=np.dtype(dtype).name))
    cases += [OpCase(op, (((7, 5), "bool"), ints(0))) for op in ("ReduceMax", "ReduceMin")]
    cases += [OpCase(op, (((7, 5), "int64"), ints(-2))) for op in ("ReduceMax", "ReduceMin")]
    means = np.array([[715827884], [-715827880]], np.int32)
    case = OpCase("ReduceMean", (wrapping, ints(1)), cpu_only=True, name="int32")
    return [*cases, case.replace(oracle=lambda x, axes: means)]


def _positions() -> list[OpCase]:
    cases = []
    ties = np.array([[3, 1, 3, 1], [0, 0, 0, 0], [-5, 2, -7, 2]], np.int32)
    for op in ("ArgMax", "ArgMin"):
        for axis in (0, 1, -1):
            cases.append(OpCase(op, (((37, 11), "float32"),), {"axis": axis}))
        for last in (0, 1):
            attrs = {"axis": 1, "keepdims": last, "select_last_index": last}
            cases.append(OpCase(op, (ties,), attrs, name=f"ties-{last}"))
            cases.append(OpCase(op, (ties.view(np.uint32),), attrs, name=f"unsigned-{last}"))
            cases.append(OpCase(op, (NAN_ROWS,), attrs, name=f"nan-{last}"))
        cases.append(OpCase(op, (((3, 1000), "float32"),), {"axis": 1}, name="long"))
        cases.append(OpCase(op, (((3, 4), "int64"),), {"axis": 0}, name="int64"))
    return cases


def _cumulative() -> list[OpCase]:
    cases = []
    for op in ("CumSum", "CumProd"):
        for exclusive in (0, 1):
            for reverse in (0, 1):
                attrs = {"exclusive": exclusive, "reverse": reverse}
                for axis in (0, 1, -1):
                    operands = (((3, 7, 5), "float32"), np.array(axis))
                    cases.append(OpCase(op, operands, attrs, name=f"{axis}{exclusive}{reverse}"))
        whole = np.array([[2**31 - 1, 2, -3], [5, 0, 7]], np.int32)
        cases.append(OpCase(op, (whole, np.array(1)), name="int32"))
        cases.append(OpCase(op, (((3, 0), "float32"), np.array(1)), oracle="fallback"))
    cases.append(OpCase("CumSum", (((2, 5000), "float32"), np.array(1)), name="long"))
    for attrs in ({}, {"exclusive": 1}, {"reverse": 1}):
        operands = (np.full((2, 50_000), 0.1, np.float32), np.array(-1))
        cases.append(OpCase("CumSum", operands, attrs, name="very-long"))
    zeros = np.full((1, 700), 4.0, np.float32)
    zeros[0, 3] = 0  # later factors alone overflow
    cases.append(OpCase("CumProd", (zeros, np.array(1)), name="zeros"))
    return cases


LONG = np.random.default_rng(4).standard_normal((2, 100003)).astype(np.float32) + np.float32(0.1)
CASES = [
    *_rows(),
    *_integers(),
    *_positions(),
    *_cumulative(),
    *(
        OpCase(op, (LONG, ints(1)), name="long")
        for op in FLOAT_OPS
        if op[6:] not in ("Prod", "LogSum")
    ),
    OpCase("ReduceSum", (((3, 4096), "float32"), ints(1)), name="vectors"),
    OpCase("ReduceSum", (((4096, 3), "float32"), ints(0)), name="columns"),
    OpCase("ReduceMax", (((6000, 132), "float32"), ints(1)), name="many-vectors"),
    OpCase("ReduceMean", (((2, 3, 2, 3, 2, 3, 2, 5), "float32"), ints(0, 2, 4, 6)), name="rank8"),
]
HOST = [
    OpCase("ReduceSum", (((9, 300), "float16"), ints(1)), tol=2e-3),
    OpCase("ReduceMean", (((9, 300), "float64"), ints(1)), tol=1e-14),
    OpCase("ReduceSum", (((9, 30), "int64"), ints(1))),
    OpCase(
        "ReduceL2",
        (((9, 30), "int32"), ints(1)),
        oracle=lambda x, a: np.sqrt((x.astype(float) ** 2).sum(1, keepdims=True)).astype(np.int32),
    ),
]
DYNAMIC = [
    OpCase("ReduceSum", (((5, 37, 113), "float32"), ints(1, 2)), name="long"),
    OpCase("ReduceMax", (((5, 40, 8), "float32"), ints(0)), name="columns"),
    OpCase("ReduceMean", (((5000, 8), "float32"), ints(1)), name="short"),
    OpCase("ArgMax", (((5, 300), "float32"),), {"axis": 1}),
    OpCase("ReduceSum", (np.full((2, 700_001), 0.1, np.float32), ints(1)), name="very-long"),
]


test_cpu = for_each([*CASES, *HOST], check_cpu)
test_infer = for_each([*CASES, *DYNAMIC], check_infer)
test_gpu = on_gpu(CASES)
test_gpu_with_symbolic_sizes = on_gpu(DYNAMIC, dynamic=True)


def test_engine_on_the_cpu() -> None:
    check_engine_cpu(CASES[0])


@st.composite
def shapes_and_axes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[int]]:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)))
    rank = len(shape)
    axes = draw(st.lists(st.integers(0, rank - 1), unique=True, max_size=rank))
    return shape, [a - rank if draw(st.booleans()) else a for a in axes]


@pytest.mark.gpu
@given(shapes_and_axes(), st.sampled_from(["ReduceSum", "ReduceMax"]), st.booleans(), st.booleans())
def test_any_axes(
    drawn: tuple[tuple[int, ...], list[int]], op: str, keep: bool, dynamic: bool
) -> None:
    shape, axes = drawn
    case = OpCase(op, ((shape, "float32"), ints(*axes)), {"keepdims": int(keep)})
    check_cpu(case)
    check_infer(case)
    check_gpu(case, dynamic=dynamic)


def stages(case: OpCase, *, dynamic: bool = False) -> list[Stage]:
    """What the operator's `lower` makes of a case."""
    graph, node, _ = inferred(case, dynamic=dynamic)
    op = definition(node)
    assert op is not None and op.lower is not None
    view = Lowering(graph, node, Target.baseline(), lambda kind: "scratch", lambda *_: "derived")
    return list(op.lower(view))


def described(call: KernelCall) -> str:
    return call.shader + ("+vec4" if "VEC4" in call.flags else "")


def test_workgroups_share_rows_sooner_on_a_gpu() -> None:
    def holds(rows: int, count: int, contiguous: bool, **of: Any) -> bool:
        guards = by_workgroup(rows, count, contiguous, Target(**of))
        return all(g.known for g in guards)

    assert holds(5000, 64, True) and not holds(5000, 63, True)
    for contiguous in (True, False):
        assert not holds(3, 4000, contiguous, software=True)
        assert not holds(2, 1024, contiguous, software=True)
        assert holds(2, 1025, contiguous, software=True)
    assert holds(256, 256, False) and not holds(257, 256, False)


@pytest.mark.parametrize(
    ("shape", "axis", "kernels"),
    [
        ((5000, 37), 1, ["reduce"]),
        ((5000, 40), 1, ["reduce+vec4"]),
        ((4, 4000), 1, ["reduce_workgroup+vec4"]),
        ((4, 4001), 1, ["reduce_workgroup"]),
        ((4000, 400), 0, ["reduce"]),
        ((4000, 4), 0, ["reduce_workgroup"]),
        ((2, 1 << 20), 1, ["reduce_workgroup+vec4", "reduce_workgroup+vec4"]),
    ],
)
def test_choice_of_kernels(shape: tuple[int, ...], axis: int, kernels: list[str]) -> None:
    made = stages(OpCase("ReduceSum", ((shape, "float32"), ints(axis))))
    assert [[described(c) for c in stage] for stage in made] == [[k] for k in kernels]


def test_symbolic_sizes_keep_every_kernel_open() -> None:
    (stage,) = stages(OpCase("ReduceSum", (((2, 3), "float32"), ints(1))), dynamic=True)
    assert [described(c) for c in stage] == [
        "reduce_workgroup+vec4",
        "reduce_workgroup",
        "reduce+vec4",
        "reduce",
        "reduce_workgroup+vec4",
        "reduce_workgroup",
    ]
    assert stage[-1].when == ()


def test_an_output_of_too_many_elements_is_refused() -> None:
    case = OpCase("ReduceLogSumExp", (((1, 2), "float32"), ints(1)))
    (guard,) = supported(case, dynamic=True).guards
    assert guard.holds({"d0_0": 1, "d0_1": 59000 * 64})
    assert not guard.holds({"d0_0": 1, "d0_1": 59000 * 64 + 1})


def test_axes_given_twice_or_outside_are_refused() -> None:
    for axes in (ints(0, -2), ints(2)):
        with pytest.raises(ShapeError, match=r"axis|axes"):
            inferred(OpCase("ReduceSum", (((2, 3), "float32"), axes)))


def test_products_of_sizes_are_known() -> None:
    h = dims.symbol("h")
    assert contents("ReduceProd", [h, 3, 2], keepdims=0) == [h * 6]
    assert contents("ReduceSum", [h, 3], np.array([0])) == [h + 3]
    assert contents("ReduceMax", [h, 0]) == [h]
