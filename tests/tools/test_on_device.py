"""The report on a device: what is wrong, slow or left out is in it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.bench.on_device import Report, arguments_of, share_of_peak


def test_steps_without_time_are_named_and_wrong_models_too(tmp_path: Path) -> None:
    report = Report(tmp_path, time.monotonic() + 60)
    slow = [sys.executable, "-c", "import time; time.sleep(30)"]
    quick = [sys.executable, "-c", "print('here')"]
    report.step("slow", lambda: void(report.run("slow", slow, 0.5)))
    report.step("quick", lambda: void(report.run("quick", quick, 30)))
    report.wrong.append("some model")
    report.say("- a line")
    report.end = time.monotonic()
    report.step("late", lambda: void(report.run("late", quick, 30)))
    text = (tmp_path / "README.md").read_text()
    assert "- a line" in text and "WRONG: some model" in text
    assert "Left out for lack of time: slow, late" in text
    assert (tmp_path / "quick.txt").read_text() == "here\n"


def void(result: object) -> None:
    """A step gives nothing back."""


def test_the_share_of_the_peak_is_weighted_by_time() -> None:
    kernels = [
        {"name": "Conv", "shader": "conv_dense", "ms": 3.0, "ceiling": 0.8},
        {"name": "Relu", "shader": "elementwise", "ms": 1.0, "ceiling": 0.4},
    ]
    text = share_of_peak({"kernels": kernels})
    assert text.startswith("70% of the device's ceilings over 4.00 ms")
    assert "slowest: Conv [conv_dense] 3.00 ms, 80%, Relu" in text
    assert share_of_peak({"kernels": []}) == "no kernel was timed"


@pytest.mark.slow
def test_a_model_is_given_its_inputs_as_files(tmp_path: Path) -> None:
    path, words = arguments_of("conv3x3", tmp_path)
    assert path.exists() and words[0] == "--input"
    name, file = words[1].split("=", 1)
    assert name == "x" and Path(file).exists()
