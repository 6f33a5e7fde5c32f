"""Every direct case of the ONNX node suite, at the engine's opset, on the CPU operators."""

from __future__ import annotations

import pytest

from engine.ir import CONTROL_FLOW
from tests.cpu_fallback.node_cases import direct_cases, failures

DRAWN_FROM_ANOTHER_GENERATOR = {"test_bernoulli", "test_bernoulli_double", "test_bernoulli_seed"}


@pytest.mark.slow
def test_every_direct_case() -> None:
    cases = [
        case
        for case in direct_cases().values()
        if case.model.graph.node[0].op_type not in CONTROL_FLOW
        and case.name not in DRAWN_FROM_ANOTHER_GENERATOR
    ]
    assert len(cases) > 1380
    assert failures(cases) == {}
