"""Bench: the same model on the CPU and on the GPU, interleaved, with where the time goes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from engine.errors import EngineError
from engine.ir import Array
from engine.runtime.session import InferenceSession
from engine.tools.inputs import describe

PHASES = ("bind", "upload", "encode", "wait", "download", "host")


@dataclass
class Measurement:
    """Times of one device in milliseconds.

    Attributes:
        device: "cpu" or "gpu".
        name: the adapter, or NumPy.
        cold_ms: process start to first result, in a process of its own; None if not asked for.
        create_ms: making the session.
        first_ms: first call.
        inputs: names, dtypes and shapes of what was fed.
        gpu_nodes, cpu_nodes: nodes that a call ran there.
        warm_ms: later calls.
        phases_ms: of each warm call, by phase.
        dispatches, submits: kernels of a call, and in how many submits.
        uploaded_nbytes, downloaded_nbytes: bytes that crossed in a call.
    """

    device: str
    name: str
    cold_ms: float | None
    create_ms: float
    first_ms: float
    inputs: str = ""
    gpu_nodes: int = 0
    cpu_nodes: int = 0
    warm_ms: list[float] = field(default_factory=list)
    phases_ms: dict[str, list[float]] = field(default_factory=dict)
    dispatches: int = 0
    submits: int = 0
    uploaded_nbytes: int = 0
    downloaded_nbytes: int = 0

    @property
    def median_ms(self) -> float:
        return statistics.median(self.warm_ms)

    @property
    def p90_ms(self) -> float:
        return float(np.percentile(self.warm_ms, 90))

    def phase_ms(self, name: str) -> float:
        """Median time of a phase."""
        found = self.phases_ms.get(name)
        return statistics.median(found) if found else 0.0


def bench(
    model: str | Path,
    make_feeds: Callable[[InferenceSession], Mapping[str, Array]],
    devices: tuple[str, ...] = ("cpu", "gpu"),
    *,
    repeats: int = 10,
    cold: Sequence[str] | None = (),
    adapter: int | str | None = None,
    disable: Sequence[str] = (),
    target: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Measurement]:
    """Measures a model on each device; warm calls alternate between the devices.

    Args:
        model: path of the model.
        make_feeds: inputs for a session.
        devices: values of `device=` to compare.
        repeats: warm calls per device.
        cold: arguments of `onnx-wgpu run` that make the same inputs, to also time a new process
            from its start to the first result; None leaves that out.
        adapter, disable, target: as `InferenceSession` takes them.
        progress: is told what is being done.
    """
    sessions, measured = [], []
    for device in devices:
        cold_ms = None
        if cold is not None:
            progress(f"{device}: cold start in a new process")
            cold_ms = _cold(model, device, adapter, cold)
        progress(f"{device}: creating the session")
        start = time.perf_counter()
        session = InferenceSession(
            str(model), device=device, adapter=adapter, disable=disable, target=target
        )
        created = time.perf_counter()
        feeds = make_feeds(session)
        progress(f"{device}: first call")
        begin = time.perf_counter()
        session.run(None, feeds)
        first_ms = (time.perf_counter() - begin) * 1e3
        create_ms = (created - start) * 1e3
        result = Measurement(device, session.device_name, cold_ms, create_ms, first_ms)
        result.inputs = describe(feeds)
        places = [place for _, place in session.executed()]
        result.gpu_nodes, result.cpu_nodes = places.count("gpu"), places.count("cpu")
        measured.append(result)
        sessions.append((session, feeds))
    for repeat in range(repeats):
        progress(f"warm call {repeat + 1} of {repeats}")
        for (session, feeds), result in zip(sessions, measured, strict=True):
            session.run(None, feeds)
            _record(result, session)
    for session, _ in sessions:
        session.close()
    return measured


def _record(result: Measurement, session: InferenceSession) -> None:
    times = session.times
    result.warm_ms.append(times.total * 1e3)
    for phase in PHASES:
        result.phases_ms.setdefault(phase, []).append(times.phases.get(phase, 0.0) * 1e3)
    result.dispatches, result.submits = times.dispatches, times.submits
    result.uploaded_nbytes = times.uploaded_nbytes
    result.downloaded_nbytes = times.downloaded_nbytes


def _cold(model: str | Path, device: str, adapter: int | str | None, more: Sequence[str]) -> float:
    """Milliseconds of `onnx-wgpu run` in a process of its own."""
    command = [sys.executable, "-m", "engine", "run", str(model), "--device", device, *more]
    if adapter is not None:
        command += ["--adapter", str(adapter)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise EngineError(f"the cold start with device={device!r} failed: {last[0]}")
    return (time.perf_counter() - start) * 1e3
