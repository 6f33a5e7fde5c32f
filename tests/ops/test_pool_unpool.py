"""MaxUnpool."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.harness import OpCase, check_engine_cpu, check_gpu, check_infer
from tests.ops.standard import for_each, node_suite, on_gpu_both_ways


def unpool(
    shape: tuple[int, ...], total: int, out: list[int] | None = None, dtype: str = "float32",
    **attrs: Any,
) -> OpCase:  # fmt: skip
    """Distinct places below `total`."""
    count = int(np.prod(shape))
    places = np.random.default_rng(count).permutation(total)[:count].reshape(shape)
    inputs: list[Any] = [(shape, dtype), places]
    if out is not None:
        inputs.append(np.array(out))
    return OpCase("MaxUnpool", tuple(inputs), attrs, oracle="fallback")


TWO = {"kernel_shape": [2, 2], "strides": [2, 2]}
CASES = [
    unpool((1, 1, 2, 2), 16, **TWO),
    unpool((2, 3, 5, 7), 2 * 3 * 10 * 14, **TWO),
    unpool((1, 2, 3, 3), 2 * 25, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    unpool((2, 3, 11), 2 * 3 * 13, kernel_shape=[3]),
    unpool((1, 2, 2, 3, 2), 2 * 4 * 6 * 4, kernel_shape=[2, 2, 2], strides=[2, 2, 2]),
    unpool((2, 3, 2, 3), 2 * 3 * 24, out=[2, 3, 5, 9], **TWO),
    unpool((0, 3, 2, 3), 1, **TWO),
    unpool((1, 3, 2, 3), 72, None, "float16", **TWO),
]


test_cpu = for_each(CASES, check_engine_cpu, check_infer)
test_gpu = on_gpu_both_ways(CASES)


@pytest.mark.gpu
def test_of_several_for_one_place_the_last_wins() -> None:
    x = np.arange(1, 65, dtype=np.float32).reshape(1, 1, 8, 8)
    places = np.arange(64).reshape(x.shape) % 5
    case = OpCase("MaxUnpool", (x, places), TWO, oracle="fallback")
    check_engine_cpu(case)
    check_gpu(case)


test_node_suite = node_suite("MaxUnpool")
