"""ReverseSequence."""

from __future__ import annotations

import numpy as np

from tests.ops.harness import OpCase, check_cpu, check_engine_cpu, check_infer
from tests.ops.standard import for_each, node_suite, on_gpu_both_ways

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


test_cpu = for_each(CASES, check_cpu, check_engine_cpu, check_infer)
test_gpu = on_gpu_both_ways(CASES)
test_node_suite = node_suite("ReverseSequence")
