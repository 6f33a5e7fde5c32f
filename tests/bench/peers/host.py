"""What the host adds to a call: all but the work of kernels, and copying inputs and outputs."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from engine import EngineError, InferenceSession
from engine.ir import Array
from engine.runtime.device import READBACK, STORAGE, Device, open_device
from tests.bench.peers.contest import Case, Found, store
from tests.bench.peers.engines import ROOT
from tests.bench.peers.tables import Result, titled
from tests.bench.peers.worker import stored

CALLS = 200
GOAL_MS, GOAL_DISPATCH_MS = 0.3, 0.008
"""Most that the host may add to a call, and to each dispatch of it."""


def host_costs(case: Case, say: Callable[[str], None]) -> Found:
    """Figures of calls on the GPU whose dispatches have no workgroups, in a process of their own:
    what other sessions left on a device makes its calls longer.

    Returns: `dispatches` and `submits` of a call, `host_ms`, the median of what it takes but for
        conversions and copies by the host, and `idle_ms`, the median of a submit that is waited
        for and copies 16 bytes: what the driver takes at the least. Nothing for a model whose
        nodes in NumPy fail on what kernels did not compute, and where the process fails.
    """
    with tempfile.TemporaryDirectory(prefix="onnx-wgpu-") as name:
        store(case, Path(name))
        command = [sys.executable, "-m", "tests.bench.peers.host", case.path, name]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        say(f"{case.name}: what the host adds is left out: {said[-1]}")
        return {}
    found: Found = json.loads(done.stdout)
    return found


def _measured(model: str, feeds: Mapping[str, Array]) -> Found:
    with InferenceSession(model, device="gpu") as session:
        with session.recording() as recording:
            session.run(None, feeds)
        dispatches = sum(e.kind == "kernel" for e in recording.events)
        session.run(None, feeds)
        try:
            with session.hollow():
                host_ms = [_host_ms(session, feeds) for _ in range(CALLS)]
        except EngineError:
            return {}
        idle = _Idle(open_device())
        idle_ms = [idle.submit_ms() for _ in range(CALLS)]
        return {
            "dispatches": dispatches,
            "submits": session.times.submits,
            "host_ms": statistics.median(host_ms),
            "idle_ms": statistics.median(idle_ms),
        }


def _host_ms(session: InferenceSession, feeds: Mapping[str, Array]) -> float:
    """Time of a call, less that of moving its inputs and outputs."""
    begin = time.perf_counter()
    results = session.run(None, feeds)
    took = time.perf_counter() - begin
    del results  # which takes time of its own where they are large
    phases = session.times.phases
    return (took - phases.get("upload", 0.0) - phases.get("download", 0.0)) * 1e3


def section(results: Sequence[Result]) -> str:
    """What the host adds, against `GOAL_MS` and `GOAL_DISPATCH_MS`."""
    rows, met = [], 0
    for result in results:
        found = result.get("host")
        if found:
            goal_ms = GOAL_MS + GOAL_DISPATCH_MS * found["dispatches"]
            met += found["host_ms"] <= goal_ms
            figures = (found["host_ms"], goal_ms, found["idle_ms"])
            counts = (str(found["dispatches"]), str(found["submits"]))
            rows.append([result["model"], *counts, *(f"{f:.2f}" for f in figures)])
    if not rows:
        return ""
    rows.append(["within the goal", "", "", f"{met} of {len(rows)}", "", ""])
    title = (
        "Milliseconds that the host adds to a call of the GPU: all but the work of kernels, and "
        "converting and copying inputs and outputs"
    )
    heads = ("dispatches", "submits", "host", "goal", "of it, a submit that does nothing")
    return titled(title, ["model", *heads], rows)


class _Idle:
    """Submits that copy a few bytes on a device, and nothing else."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._source = device.buffer("idle", 16, STORAGE)
        self._staging = device.buffer("read idle", 16, READBACK)

    def submit_ms(self) -> float:
        """Time of one, and of mapping what it copied."""
        device, begin = self._device, time.perf_counter()
        encoder = device.calls.encoder(device.wgpu)
        device.calls.copy(encoder, self._source, self._staging, 16)
        device.submit(encoder)
        with device.mapped(self._staging, 16, "idle"):
            return (time.perf_counter() - begin) * 1e3


if __name__ == "__main__":
    MODEL, FOLDER = sys.argv[1:3]
    json.dump(_measured(MODEL, stored(FOLDER, 0)), sys.stdout)
