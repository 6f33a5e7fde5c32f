"""The tests that most families have, made from a list of cases or of operators.

Each function returns a test; a module names it: `test_gpu = on_gpu(CASES)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.cpu_fallback.node_cases import cases_of, failures
from tests.ops.harness import OpCase, case_id, check_gpu
from tests.ops.node_suite import gpu_failures


def for_each(cases: Sequence[OpCase], *checks: Callable[[OpCase], None]) -> Callable[..., None]:
    """A test of every case: all the checks, in turn."""

    @pytest.mark.parametrize("case", cases, ids=case_id)
    def test(case: OpCase) -> None:
        for check in checks:
            check(case)

    return test


def on_gpu(cases: Sequence[OpCase], *, dynamic: bool = False) -> Callable[..., None]:
    """A test of every case by `check_gpu`, with sizes known or all of them open."""

    @pytest.mark.gpu
    @pytest.mark.parametrize("case", cases, ids=case_id)
    def test(case: OpCase) -> None:
        check_gpu(case, dynamic=dynamic)

    return test


def on_gpu_both_ways(cases: Sequence[OpCase]) -> Callable[..., None]:
    """A test of every case by `check_gpu`, with sizes known and again with all of them open."""

    @pytest.mark.gpu
    @pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
    @pytest.mark.parametrize("case", cases, ids=case_id)
    def test(case: OpCase, dynamic: bool) -> None:
        check_gpu(case, dynamic=dynamic)

    return test


def node_suite(*op_types: str) -> Callable[..., None]:
    """A slow test of onnx's node cases of every operator through the NumPy functions."""

    @pytest.mark.slow
    @pytest.mark.parametrize("op_type", op_types)
    def test(op_type: str) -> None:
        cases = cases_of(op_type)
        assert cases, f"no cases of {op_type}"
        failed = failures(cases)
        assert not failed, failed

    return test


def gpu_node_suite(*op_types: str, require_gpu: bool = False) -> Callable[..., None]:
    """A slow test of onnx's node cases of every operator through the engine on the GPU."""

    @pytest.mark.gpu
    @pytest.mark.slow
    @pytest.mark.parametrize("op_type", op_types)
    def test(op_type: str) -> None:
        assert cases_of(op_type), f"no cases of {op_type}"
        failed = gpu_failures(op_type, require_gpu=require_gpu)
        assert not failed, failed

    return test
