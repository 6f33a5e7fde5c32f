"""TopK."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.errors import ShapeError
from tests.ops.harness import (
    OpCase,
    check_cpu,
    check_engine_cpu,
    check_infer,
    inferred,
)
from tests.ops.standard import for_each, node_suite, on_gpu

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
]


test_cpu = for_each(CASES, check_cpu, check_engine_cpu, check_infer)
test_gpu = on_gpu(CASES)
test_gpu_with_open_sizes = on_gpu([CASES[0], CASES[5], CASES[8]], dynamic=True)


def test_k_past_the_axis_is_an_error() -> None:
    with pytest.raises(ShapeError, match="k is 6 of 5"):
        inferred(top(((3, 5), F), 6))


test_node_suite = node_suite("TopK")
