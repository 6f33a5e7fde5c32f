"""ReverseSequence."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cpu_fallback.node_cases import cases_of, failures
from tests.ops.harness import OpCase, case_id, check_cpu, check_engine_cpu, check_gpu, check_infer

F = "float32"
LENGTHS = np.array([0, 1, 4, 7, 3])
BATCH_FIRST = {"batch_axis": 0, "time_axis": 1}

CASES = [
    OpCase("ReverseSequence", (((7, 5), F), LENGTHS)),
    OpCase("ReverseSequence", (((5, 7), F), LENGTHS), BATCH_FIRST),
    OpCase("ReverseSequence", (((7, 5, 3, 5), F), LENGTHS)),
    OpCase("ReverseSequence", (((5, 7, 13), "int64"), LENGTHS), BATCH_FIRST),
    OpCase("ReverseSequence", (((5, 7, 2), "bool"), LENGTHS), BATCH_FIRST),
    OpCase("ReverseSequence", (((7, 5, 3), "float16"), LENGTHS)),
    OpCase("ReverseSequence", (((1, 1), F), np.array([1]))),
    OpCase("ReverseSequence", (((7, 5, 0), F), LENGTHS)),
]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_cpu(case: OpCase) -> None:
    check_cpu(case)
    check_engine_cpu(case)
    check_infer(case)


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_gpu(case: OpCase, dynamic: bool) -> None:
    check_gpu(case, dynamic=dynamic)


@pytest.mark.slow
def test_node_suite() -> None:
    assert failures(cases_of("ReverseSequence")) == {}
