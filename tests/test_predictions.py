"""Predictions are of the right size and order, on whatever machine this is."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FACTOR = 8.0
"""How far a prediction may be off on a busy machine; the median is far nearer (tests/bench)."""
TYPICAL = 3.0
CLEARLY = 3.0
"""Times that are nearer say nothing about an order: other work on the machine swaps them."""

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


def agreement(found: Times) -> float:
    """Share of the pairs of cases, one clearly slower than the other, that are predicted so."""
    pairs = [
        (slow[0] > fast[0])
        for slow, fast in itertools.permutations(found.values(), 2)
        if slow[1] > CLEARLY * fast[1]
    ]
    assert pairs, "the cases differ enough for an order to mean something"
    return sum(pairs) / len(pairs)


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
