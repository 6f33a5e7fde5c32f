"""Det."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import ShapeError
from tests.ops.harness import (
    OpCase,
    check_cpu,
    check_engine_cpu,
    check_infer,
    inferred,
    supported,
)
from tests.ops.standard import for_each, gpu_node_suite, on_gpu

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


test_cpu = for_each([*CASES, *LARGE], check_cpu, check_engine_cpu, check_infer)
test_gpu = on_gpu(CASES)


def test_what_is_refused() -> None:
    for case in LARGE:
        assert "known size" in supported(case).reason
    assert "known size" in supported(CASES[0], dynamic=True).reason
    with pytest.raises(ShapeError, match="square"):
        inferred(OpCase("Det", (((2, 3), F),)))
    with pytest.raises(ShapeError, match="two axes"):
        inferred(OpCase("Det", (((3,), F),)))


test_node_suite = gpu_node_suite("Det", require_gpu=True)
