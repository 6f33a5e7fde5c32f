"""Nodes drawn for each operator with a GPU form: the same on the GPU, the CPU and an oracle."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.properties.cases import strategies
from tests.properties.check import CALLS, Tally, check_draws
from tests.properties.drawing import Drawn

EXAMPLES = 20
LONG = 200


def run(operator: str, examples: int) -> Tally:
    """Draws models and arrays for an operator until `examples` calls are checked."""
    tally = Tally()

    @seed(zlib.crc32(operator.encode()))
    @settings(
        max_examples=examples // CALLS,
        derandomize=True,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        check_draws(operator, Drawn(data.draw), tally)

    check()
    return tally


def must_have_run(operator: str, examples: int) -> None:
    tally = run(operator, examples)
    assert tally.on_gpu, f"none of {tally.calls} calls on the GPU: {sorted(tally.others)}"


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("operator", strategies())
def test_operator(operator: str) -> None:
    must_have_run(operator, EXAMPLES)


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.parametrize("operator", strategies())
def test_operator_thoroughly(operator: str) -> None:
    must_have_run(operator, LONG)
