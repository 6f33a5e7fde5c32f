"""Bench: the same model on the CPU and on the GPU, interleaved, with where the time goes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from engine.errors import EngineError
from engine.ir import Array
from engine.runtime.session import InferenceSession

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
        warm_ms: later calls.
        phases_ms: of each warm call, by phase.
        dispatches: kernels of a call.
        uploaded_nbytes, downloaded_nbytes: bytes that crossed in a call.
    """

    device: str
    name: str
    cold_ms: float | None
    create_ms: float
    first_ms: float
    warm_ms: list[float] = field(default_factory=list)
    phases_ms: dict[str, list[float]] = field(default_factory=dict)
    dispatches: int = 0
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
    cold: bool = True,
    adapter: int | str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Measurement]:
    """Measures a model on each device; warm calls alternate between the devices.

    Args:
        model: path of the model.
        make_feeds: inputs for a session.
        devices: values of `device=` to compare.
        repeats: warm calls per device.
        cold: also time a new process from start to first result, on inputs of zeros.
        adapter: as `InferenceSession` takes it.
        progress: is told what is being done.
    """
    sessions, measured = [], []
    for device in devices:
        cold_ms = None
        if cold:
            progress(f"{device}: cold start in a new process")
            cold_ms = _cold(model, device, adapter)
        progress(f"{device}: creating the session")
        start = time.perf_counter()
        session = InferenceSession(str(model), device=device, adapter=adapter)
        created = time.perf_counter()
        feeds = make_feeds(session)
        progress(f"{device}: first call")
        begin = time.perf_counter()
        session.run(None, feeds)
        first_ms = (time.perf_counter() - begin) * 1e3
        create_ms = (created - start) * 1e3
        measured.append(Measurement(device, session.device_name, cold_ms, create_ms, first_ms))
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
    result.dispatches = times.dispatches
    result.uploaded_nbytes = times.uploaded_nbytes
    result.downloaded_nbytes = times.downloaded_nbytes


_COLD = """
import sys
from engine.runtime.session import InferenceSession
from engine.tools.inputs import make_inputs
adapter = sys.argv[3] or None
adapter = int(adapter) if adapter and adapter.isdigit() else adapter
session = InferenceSession(sys.argv[1], device=sys.argv[2], adapter=adapter)
session.run(None, make_inputs(session, {}, {}))
"""


def _cold(model: str | Path, device: str, adapter: int | str | None) -> float:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _COLD, str(model), device, "" if adapter is None else str(adapter)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise EngineError(f"the cold start with device={device!r} failed: {last[0]}")
    return (time.perf_counter() - start) * 1e3
