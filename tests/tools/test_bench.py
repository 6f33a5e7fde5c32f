"""Bench: what is measured, and how a failing process is reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from engine.errors import EngineError
from engine.tools.bench import PHASES, Measurement, bench
from engine.tools.inputs import make_inputs
from tests.runtime.models import AFFINE, parse


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(parse(AFFINE), tmp_path / "affine.onnx")
    return tmp_path / "affine.onnx"


@pytest.mark.gpu
def test_every_warm_call_is_recorded_by_phase(model: Path) -> None:
    told: list[str] = []
    cpu, gpu = bench(
        model,
        lambda session: make_inputs(session, {}, {"n": "4"}),
        repeats=4,
        cold=None,
        progress=told.append,
    )
    for result in (cpu, gpu):
        assert len(result.warm_ms) == 4 and result.cold_ms is None
        assert {p: len(v) for p, v in result.phases_ms.items()} == dict.fromkeys(PHASES, 4)
        assert 0 < result.median_ms <= result.p90_ms <= max(result.warm_ms)
        assert sum(result.phase_ms(p) for p in PHASES) <= 1.5 * max(result.warm_ms)
    assert (cpu.cpu_nodes, cpu.gpu_nodes, cpu.dispatches) == (3, 0, 0)
    assert (gpu.cpu_nodes, gpu.gpu_nodes, gpu.dispatches, gpu.submits) == (0, 3, 1, 1)
    assert (gpu.uploaded_nbytes, gpu.downloaded_nbytes) == (60, 96)
    assert gpu.inputs == "x float32[4, 3], b float32[3]"
    assert told[0] == "cpu: creating the session" and told[-1] == "warm call 4 of 4"


def test_the_p90_is_not_the_median() -> None:
    result = Measurement("cpu", "NumPy", None, 0.0, 0.0, warm_ms=[float(i) for i in range(1, 12)])
    assert result.median_ms == 6.0
    assert result.p90_ms == pytest.approx(np.percentile(range(1, 12), 90))


def test_a_cold_start_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"cold start with device='cpu' failed: error: .*absent"):
        bench(tmp_path / "absent.onnx", lambda session: {}, ("cpu",))
