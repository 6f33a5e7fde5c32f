"""Predictions are of the right size and order, on whatever machine this is."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FACTOR = 6.0
"""How far a prediction may be off on a busy machine; the median is far nearer (tests/bench)."""
TYPICAL = 2.5

Times = dict[str, tuple[float, float]]


@pytest.fixture(scope="module")
def times() -> dict[str, Times]:
    """Predicted and measured milliseconds by device and case, of a process with one thread."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "LP_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-m", "tests.prediction_cases", "--gpu"],
        cwd=ROOT,
        env={**os.environ, **threads},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Times] = json.loads(done.stdout.splitlines()[-1])
    return found


def off(pair: tuple[float, float]) -> float:
    """By which factor the smaller of two times is smaller."""
    return max(pair) / max(min(pair), 1e-9)


def ranks(values: list[float]) -> list[int]:
    order = sorted(range(len(values)), key=lambda i: values[i])
    return [order.index(i) for i in range(len(values))]


def agreement(found: Times) -> float:
    """Spearman's rank correlation of predicted and measured times."""
    said, took = (ranks([pair[i] for pair in found.values()]) for i in (0, 1))
    count = len(found)
    distance = sum((a - b) ** 2 for a, b in zip(said, took, strict=True))
    return 1 - 6 * distance / (count * (count**2 - 1))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_predictions_are_of_the_right_size_and_order(times: dict[str, Times], device: str) -> None:
    if device not in times:
        pytest.skip("this GPU is no software: its times are not CPU time")
    found = times[device]
    factors = sorted(map(off, found.values()))
    assert factors[len(factors) // 2] < TYPICAL, found
    assert factors[-1] < FACTOR, found
    assert agreement(found) > 0.75, found
    spread = max(p[0] for p in found.values()) / min(p[0] for p in found.values())
    assert math.log10(spread) > 1, "the cases differ enough for an order to mean something"
