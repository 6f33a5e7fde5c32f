"""Warm latency of models on the GPU, for each target: a table of CPU and wall milliseconds.

    python -m tests.bench.gpu_speed MODEL.onnx ... [--target baseline adapter] [--repeats 5]

All sessions are made first; then calls of all models and targets take turns, and the least of each
counts. With software Vulkan the CPU time of the process is the steadier figure, as it does not
depend on what else the machine does: idle, the wall time is about the CPU time over the cores used.
`error` is the largest difference to ONNX Runtime over the largest magnitude. A model that ends in a
saturated softmax shows no error whatever it computes: look at the value before it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

import engine
from engine.ir import Array
from engine.tools.inputs import make_inputs


@dataclass
class Case:
    """A model on a target, and the least times of its calls in milliseconds."""

    model: str
    target: str
    session: engine.InferenceSession
    feeds: Mapping[str, Array]
    error: float
    cpu_ms: float = float("inf")
    wall_ms: float = float("inf")
    encode_ms: float = float("inf")

    def call(self) -> None:
        """One call."""
        cpu, wall = time.process_time(), time.perf_counter()
        self.session.run(None, self.feeds)
        self.cpu_ms = min(self.cpu_ms, (time.process_time() - cpu) * 1e3)
        self.wall_ms = min(self.wall_ms, (time.perf_counter() - wall) * 1e3)
        self.encode_ms = min(self.encode_ms, self.session.times.phases.get("encode", 0.0) * 1e3)

    def row(self) -> str:
        """The case as a line of the table."""
        dispatches = self.session.times.dispatches
        encode_us = self.encode_ms * 1e3 / max(dispatches, 1)
        return (
            f"{self.model:24} {self.target:9} {self.cpu_ms:9.1f} {self.wall_ms:9.1f} "
            f"{dispatches:10} {encode_us:9.1f} {self.error:9.1e}"
        )


def make_case(path: Path, target: str) -> Case:
    """A session on the GPU after its first call, compared with ONNX Runtime."""
    session = engine.InferenceSession(str(path), device="gpu", target=target)
    feeds = make_inputs(session, {}, {})
    found = session.run(None, feeds)
    oracle = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    error = 0.0
    for mine, theirs in zip(found, oracle.run(None, dict(feeds)), strict=True):
        size = max(float(np.abs(theirs).max(initial=0.0)), 1e-30)
        error = max(error, float(np.abs(mine - theirs).max(initial=0.0)) / size)
    return Case(path.stem, target, session, feeds, error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--target", nargs="+", default=["baseline", "adapter"])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    cases = [make_case(path, t) for path in arguments.models for t in arguments.target]
    for _ in range(arguments.repeats):
        for case in cases:
            case.call()
    print(cases[0].session.device_name)
    columns = ("cpu ms", "wall ms", "dispatches", "encode us", "error")
    print(
        f"{'model':24} {'target':9} {columns[0]:>9} {columns[1]:>9} {columns[2]:>10} "
        f"{columns[3]:>9} {columns[4]:>9}"
    )
    for case in cases:
        print(case.row())


if __name__ == "__main__":
    main()
