"""Softmax, LogSoftmax, Hardmax: axes, rows of infinities and NaN, long rows, choice of kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.ops import Lowering, definition
from engine.runtime import targets
from engine.target import Target
from tests.ops.harness import (
    OpCase,
    case_id,
    check_cpu,
    check_engine_cpu,
    check_gpu,
    check_infer,
    inferred,
    supported,
)
from tests.ops.standard import for_each, on_gpu

OPS = ("Softmax", "LogSoftmax", "Hardmax")
EDGES = np.array(
    [
        [1, 2, 3, 4],
        [-np.inf, -np.inf, -np.inf, -np.inf],
        [-np.inf, 0, 1, -np.inf],
        [np.inf, 0, 1, 2],
        [np.nan, 0, 1, 2],
        [3.4e38, 3.4e38, -3.4e38, 0],
        [1000, 999, -1000, 0],
        [1e-40, -1e-40, 0, -0.0],
        [5, 5, 5, 5],
    ],
    np.float32,
)


def softmax_by_definition(x: Any, axis: int, log: bool) -> Any:
    wide = x.astype(np.float64)
    shifted = wide - np.max(wide, axis=axis, keepdims=True)
    total = np.sum(np.exp(shifted), axis=axis, keepdims=True)
    return shifted - np.log(total) if log else np.exp(shifted) / total


def _cases() -> list[OpCase]:
    cases = []
    for op in OPS:
        for axis in (0, 1, -1):
            cases.append(OpCase(op, (((5, 37, 113), "float32"),), {"axis": axis}))
        cases.append(OpCase(op, (((3, 4, 8), "float32"),), {"axis": -1}))
        cases.append(OpCase(op, (((7, 1, 3), "float32"),), {"axis": 1}))
        cases.append(OpCase(op, (((3, 0, 2), "float32"),), {"axis": 1}, oracle="fallback"))
        cases.append(OpCase(op, (((0, 3), "float32"),), {"axis": 1}, oracle="fallback"))
        cases.append(OpCase(op, (((2, 1, 2, 1, 2, 1, 2, 3), "float32"),), {"axis": 3}))
        cases += [OpCase(op, (((1, n), "float32"),), {"axis": -1}) for n in (1000, 1031, 2052)]
        cases.append(OpCase(op, (((3, 1001), "float32"),), {"axis": -1}))
        oracle = None
        if op != "Hardmax":
            log = op == "LogSoftmax"
            oracle = lambda x, log=log: softmax_by_definition(x, 1, log)  # noqa: E731
        cases.append(OpCase(op, (EDGES,), {"axis": 1}, oracle=oracle, name="edges"))
        cases.append(
            OpCase(op, (np.tile(EDGES, (1, 50)),), {"axis": 1}, oracle=oracle, name="wide")
        )
        turned = np.ascontiguousarray(EDGES.T)
        if op == "Hardmax":
            cases.append(OpCase(op, (turned,), {"axis": 0}, name="columns"))
    cases.append(OpCase("Softmax", (((2, 200000), "float32"),), name="longest"))
    cases.append(OpCase("Softmax", (((400, 3), "float32"),), {"axis": 0}, name="tall"))
    return cases


CASES = _cases()
HOST = [
    OpCase("Softmax", (((5, 40), "float16"),), tol=2e-3),
    OpCase("LogSoftmax", (((5, 40), "float64"),), tol=1e-14),
    OpCase("Hardmax", (((5, 40), "float16"),)),
]
DYNAMIC = [
    OpCase("Softmax", (((2, 3, 16), "float32"),), {"axis": -1}),
    OpCase("LogSoftmax", (((2, 300), "float32"),), {"axis": -1}),
    OpCase("Softmax", (((5, 7, 3), "float32"),), {"axis": 1}),
    OpCase("Hardmax", (((5, 7, 3), "float32"),), {"axis": 1}),
]


test_cpu = for_each([*CASES, *HOST], check_cpu)
test_infer = for_each(CASES, check_infer)
test_gpu = on_gpu(CASES)
test_gpu_with_symbolic_sizes = on_gpu(DYNAMIC, dynamic=True)


def test_engine_on_the_cpu() -> None:
    check_engine_cpu(CASES[0])


@pytest.mark.parametrize(
    ("shape", "axis", "lanes", "software_lanes", "wide"),
    [
        ((128, 64), 1, 16, 1, True),
        ((5000, 1000), 1, 64, 1, True),
        ((128, 37), 1, 16, 1, False),
        ((128, 31), 1, 1, 1, False),
        ((128, 768), 1, 64, 1, True),
        ((2, 1024), 1, 64, 1, True),
        ((1, 1023), 1, 64, 1, False),
        ((2, 1028), 1, 64, 64, True),
        ((2, 1025), 1, 64, 64, False),
        ((64, 1000, 100), 1, 1, 1, False),
        ((2, 1000, 100), 1, 64, 1, False),
        ((2, 1100, 1), 1, 64, 64, True),
    ],
)
def test_choice_of_kernel(
    shape: tuple[int, ...], axis: int, lanes: int, software_lanes: int, wide: bool
) -> None:
    case = OpCase("Softmax", ((shape, "float32"),), {"axis": axis})
    graph, node, _ = inferred(case)
    op = definition(node)
    assert op is not None and op.lower is not None
    for target, wanted in ((Target(), lanes), (Target(software=True), software_lanes)):
        view = Lowering(graph, node, target, lambda kind: "", lambda *_: "")
        (stage,) = op.lower(view)
        found = [(c.overrides.get("LANES", 1), "VEC4" in c.flags) for c in stage]
        assert found == [(wanted, wide)]
        assert stage[0].when == () and (stage[0].shader == "softmax") == (wanted == 1)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_rows_as_software_takes_them(case: OpCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "is_software", lambda kind: True)
    check_gpu(case)


def test_a_row_that_is_too_long_is_refused() -> None:
    for op in OPS:
        guard = supported(OpCase(op, (((1, 2), "float32"),)), dynamic=True).guards[0]
        assert guard.holds({"d0_1": 29000})
        assert not guard.holds({"d0_1": 1 << 24})
