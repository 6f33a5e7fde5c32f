"""Types of the losses are those of what the NumPy functions return."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.harness import OpCase, case_id, check_cpu, check_engine_cpu, check_infer

TARGETS = np.array([[0, 2, 1], [3, 3, 0]])
CASES = [
    OpCase(op, (((2, 4, 3), "float32"), TARGETS), {"reduction": reduction}, outputs)
    for op, outputs in (("NegativeLogLikelihoodLoss", 1), ("SoftmaxCrossEntropyLoss", 2))
    for reduction in ("none", "sum", "mean")
]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_types(case: OpCase) -> None:
    check_cpu(case)
    check_engine_cpu(case)
    check_infer(case)
