"""TensorScatter."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.harness import OpCase, check_engine_cpu, check_infer, supported
from tests.ops.standard import for_each, node_suite, on_gpu_both_ways

F = "float32"


def scatter(
    past: tuple[int, ...], length: int, starts: list[int] | None, dtype: str = F, **attrs: Any
) -> OpCase:
    axis = attrs.get("axis", -2) % len(past)
    update = (*past[:axis], length, *past[axis + 1 :])
    inputs: list[Any] = [(past, dtype), (update, dtype)]
    if starts is not None:
        inputs.append(np.array(starts))
    return OpCase("TensorScatter", tuple(inputs), attrs, oracle="fallback")


CASES = [
    scatter((2, 3, 7, 5), 2, [0, 5]),
    scatter((2, 3, 7, 5), 1, None),
    scatter((3, 7, 5), 7, [0, 0, 0]),
    scatter((3, 7, 5), 3, [6, 2, 13], mode="circular"),
    scatter((2, 11, 3, 5), 4, [7, 1], axis=1),
    scatter((2, 11), 4, [7, 1], "int64", axis=-1),
    scatter((2, 7, 5), 2, [3, 1], "float16"),
    scatter((2, 7, 5), 2, [3, 1], "bool"),
    scatter((2, 7, 5), 0, [3, 1]),
]


test_cpu = for_each(CASES, check_engine_cpu, check_infer)
test_gpu = on_gpu_both_ways(CASES)


def test_writing_along_the_batch_is_refused() -> None:
    case = scatter((2, 7, 5), 2, None, axis=0)
    assert "along the batch" in supported(case).reason


test_node_suite = node_suite("TensorScatter")
