"""Col2Im."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.harness import OpCase, check_cpu, check_engine_cpu, check_infer
from tests.ops.standard import for_each, node_suite, on_gpu


def col2im(
    lead: tuple[int, int], image: list[int], block: list[int], dtype: str = "float32", **attrs: Any
) -> OpCase:
    rank = len(image)
    steps, spread = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
    pads = attrs.get("pads", [0] * (2 * rank))
    windows = [
        (image[d] + pads[d] + pads[rank + d] - spread[d] * (block[d] - 1) - 1) // steps[d] + 1
        for d in range(rank)
    ]
    shape = (lead[0], lead[1] * int(np.prod(block)), int(np.prod(windows)))
    return OpCase(
        "Col2Im", ((shape, dtype), np.array(image), np.array(block)), attrs, oracle="fallback"
    )


CASES = [
    col2im((2, 3), [5, 7], [2, 3]),
    col2im((1, 2), [9, 11], [3, 3], strides=[2, 3]),
    col2im((1, 2), [9, 11], [3, 2], dilations=[2, 3]),
    col2im((1, 2), [9, 11], [3, 3], pads=[1, 0, 2, 1]),
    col2im((2, 1), [8, 9], [3, 4], strides=[2, 2], dilations=[1, 2], pads=[2, 1, 1, 3]),
    col2im((2, 3), [13], [4], strides=[2]),
    col2im((1, 2), [3, 4, 5], [2, 1, 3], pads=[0, 1, 0, 1, 0, 0]),
    col2im((1, 1), [1, 1], [1, 1]),
    col2im((0, 3), [5, 7], [2, 3]),
    col2im((2, 3), [5, 7], [2, 3], "float16"),
]


test_cpu = for_each(CASES, check_cpu, check_engine_cpu, check_infer)
test_gpu = on_gpu(CASES)
test_gpu_with_open_sizes = on_gpu([CASES[0], CASES[4]], dynamic=True)
test_node_suite = node_suite("Col2Im")
