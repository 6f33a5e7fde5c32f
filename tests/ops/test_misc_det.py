"""Det."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import ShapeError
from tests.cpu_fallback.node_cases import cases_of
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
from tests.ops.node_suite import gpu_failures

F = "float32"
SINGULAR = np.array([[1, 2, 3], [2, 4, 6], [1, 0, 1]], np.float32)
ZERO_FIRST = np.array([[0, 1], [1, 0]], np.float32)
UNKNOWN = np.array([[np.nan, 1], [1, 2]], np.float32)

CASES = [
    *(OpCase("Det", (((65, n, n), F),)) for n in range(1, 9)),
    OpCase("Det", (((3, 3), F),)),
    OpCase("Det", (((2, 0, 3, 3), F),)),
    OpCase("Det", (((2, 3, 1, 4, 4), F),)),
    OpCase("Det", (((7, 3, 3), "float16"),), tol=2e-3),
    OpCase("Det", (SINGULAR,), name="singular"),
    OpCase("Det", (np.stack([ZERO_FIRST, -ZERO_FIRST, UNKNOWN]),), name="pivots"),
]
LARGE = [OpCase("Det", (((2, 9, 9), F),)), OpCase("Det", (((2, 0, 0), F),))]


@pytest.mark.parametrize("case", [*CASES, *LARGE], ids=case_id)
def test_cpu(case: OpCase) -> None:
    check_cpu(case)
    check_engine_cpu(case)
    check_infer(case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_gpu(case: OpCase) -> None:
    check_gpu(case)


def test_what_is_refused() -> None:
    for case in LARGE:
        assert "known size" in supported(case).reason
    assert "known size" in supported(CASES[0], dynamic=True).reason
    with pytest.raises(ShapeError, match="square"):
        inferred(OpCase("Det", (((2, 3), F),)))
    with pytest.raises(ShapeError, match="two axes"):
        inferred(OpCase("Det", (((3,), F),)))


@pytest.mark.gpu
@pytest.mark.slow
def test_node_suite() -> None:
    assert cases_of("Det")
    assert gpu_failures("Det", require_gpu=True) == {}
