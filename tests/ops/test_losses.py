"""Types of the losses are those of what the NumPy functions return."""

from __future__ import annotations

import numpy as np

from tests.ops.harness import OpCase, check_cpu, check_engine_cpu, check_infer
from tests.ops.standard import for_each

TARGETS = np.array([[0, 2, 1], [3, 3, 0]])
CASES = [
    OpCase(op, (((2, 4, 3), "float32"), TARGETS), {"reduction": reduction}, outputs)
    for op, outputs in (("NegativeLogLikelihoodLoss", 1), ("SoftmaxCrossEntropyLoss", 2))
    for reduction in ("none", "sum", "mean")
]


test_types = for_each(CASES, check_cpu, check_engine_cpu, check_infer)
