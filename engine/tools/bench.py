"""Bench: a model on the CPU, on the GPU and in ONNX Runtime, interleaved; where the time goes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from engine.ir import Array
from engine.records import dataclass
from engine.runtime.device import adapters
from engine.runtime.session import InferenceSession
from engine.tools.bench_start import Start, starts
from engine.tools.inputs import describe

PHASES = ("bind", "upload", "encode", "wait", "download", "host")
COMPUTE, TRANSFER = ("wait", "host"), ("upload", "download")
ONNXRUNTIME = "onnxruntime"


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        devices: values of `device=` to compare.
        peer: whether ONNX Runtime's CPU provider is measured too, where it is installed.
        repeats: warm calls of each.
        cold: whether to start new processes as well, with empty caches and with filled ones.
        cool_down_s: pause before each warm call, in seconds.
        adapter, disable, target, require_gpu: as `InferenceSession` takes them; the last one is
            for the GPU only.
    """

    devices: tuple[str, ...] = ("cpu", "gpu")
    peer: bool = True
    repeats: int = 10
    cold: bool = True
    cool_down_s: float = 0.0
    adapter: int | str | None = None
    disable: tuple[str, ...] = ()
    target: str | None = None
    require_gpu: bool = False

    @property
    def any_gpu(self) -> bool:
        """Whether it does not matter which GPU there is, or if there is one."""
        return self.adapter is None and not self.require_gpu

    def arguments(self, device: str) -> dict[str, Any]:
        """What a session for a device is made with."""
        found: dict[str, Any] = {"device": device, "disable": self.disable}
        if device != "cpu":
            found |= {"adapter": self.adapter, "target": self.target}
            found["require_gpu"] = self.require_gpu
        return found


@dataclass
class Measurement:
    """Times of one contestant in milliseconds, sizes in bytes.

    Attributes:
        device: "cpu", "gpu" or "onnxruntime".
        name: the adapter, or what computes on the CPU.
        create_ms: making the session.
        first_ms: first call.
        cold, warm_start: a process from its start to its first result, with empty caches and with
            filled ones; None if not asked for.
        inputs: names, dtypes and shapes of what was fed.
        gpu_nodes, cpu_nodes: nodes that a call ran there.
        warm_ms, cpu_ms: later calls, by the clock and in CPU time of the process.
        hollow_ms: calls whose dispatches are empty: all that is not the kernels' work; none where
            a part runs in NumPy.
        moving_ms: what of each such call it took to convert and copy inputs and outputs.
        phases_ms: of each warm call, by phase; empty for ONNX Runtime, which does not tell.
        dispatches, submits: kernels of a call, and in how many submits.
        uploaded_nbytes, downloaded_nbytes: what crossed in a call.
        device_nbytes: weights, activations and staging on the device; 0 without one.
        error: largest difference to the first contestant's outputs, over their largest magnitude.
    """

    device: str
    name: str
    create_ms: float
    first_ms: float = 0.0
    cold: Start | None = None
    warm_start: Start | None = None
    inputs: str = ""
    gpu_nodes: int = 0
    cpu_nodes: int = 0
    warm_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    hollow_ms: list[float] = field(default_factory=list)
    moving_ms: list[float] = field(default_factory=list)
    phases_ms: dict[str, list[float]] = field(default_factory=dict)
    dispatches: int = 0
    submits: int = 0
    uploaded_nbytes: int = 0
    downloaded_nbytes: int = 0
    device_nbytes: int = 0
    error: float = 0.0

    @property
    def median_ms(self) -> float:
        return statistics.median(self.warm_ms)

    @property
    def p90_ms(self) -> float:
        return float(np.percentile(self.warm_ms, 90))

    @property
    def min_ms(self) -> float:
        return min(self.warm_ms)

    @property
    def peak_nbytes(self) -> int | None:
        """Most memory of a process that does nothing else; None if none was started."""
        return self.warm_start.peak_nbytes if self.warm_start is not None else None

    def phase_ms(self, *names: str) -> float:
        """Median time of phases, together."""
        calls = zip(*(self.phases_ms.get(n, []) for n in names), strict=True)
        return float(statistics.median([sum(c) for c in calls] or [0.0]))

    @property
    def overhead_ms(self) -> float | None:
        """Median host time of a call outside of compute and transfers; None if it is not told."""
        if not self.phases_ms:
            return None
        parts = [self.phases_ms[n] for n in (*COMPUTE, *TRANSFER)]
        rest = [whole - sum(call) for whole, *call in zip(self.warm_ms, *parts, strict=True)]
        return max(float(statistics.median(rest)), 0.0)


@dataclass(frozen=True)
class Results:
    """What was measured, and which contestants are missing and why."""

    measured: tuple[Measurement, ...]
    missing: Mapping[str, str]


class _Contestant(Protocol):
    result: Measurement

    def call(self) -> list[Any]: ...
    def record(self) -> None: ...
    def close(self) -> None: ...


def bench(
    model: str | Path,
    make_feeds: Callable[[InferenceSession], Mapping[str, Array]],
    settings: Settings | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Results:
    """Measures a model on each device; warm calls take turns, and who begins changes.

    Args:
        model: path of the model.
        make_feeds: inputs for a session.
        settings: what to measure.
        progress: is told what is being done.

    Raises: EngineError if a session of this engine or its process fails; ONNX Runtime's failure
        is a line of `Results.missing`.
    """
    settings = settings or Settings()
    feeds: Mapping[str, Array] | None = None
    missing: dict[str, str] = {}
    contestants: list[_Contestant] = []
    try:
        for device in settings.devices:
            if device == "gpu" and settings.any_gpu and not adapters():
                missing[device] = "no adapter was found"
                continue
            progress(f"{device}: creating the session")
            made = _Engine(model, device, settings)
            contestants.append(made)
            feeds = make_feeds(made.session) if feeds is None else feeds
            _first_call(made, feeds, progress)
        if settings.peer and feeds is not None:
            problem = _add_peer(model, feeds, contestants, progress)
            if problem:
                missing[ONNXRUNTIME] = problem
        wanted = [c.call() for c in contestants[:1]]
        for contestant in contestants[1:]:
            contestant.result.error = largest_error(contestant.call(), wanted[0])
        _take_turns(contestants, settings, progress)
        for contestant in contestants:
            contestant.record()
            if isinstance(contestant, _Engine):
                contestant.call_hollow(settings.repeats)
    finally:
        for contestant in contestants:
            contestant.close()
    if settings.cold and feeds is not None:
        for contestant in contestants:
            _start(contestant.result, model, feeds, settings, progress)
    return Results(tuple(c.result for c in contestants), missing)


def largest_error(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """Largest difference of values over the largest magnitude in the wanted one.

    NaN if shapes, lengths of sequences or strings differ, or one has a NaN where the other has not.
    """
    errors = [_error(mine, theirs) for mine, theirs in zip(found, wanted, strict=True)]
    return float(np.max(errors, initial=0.0))


def _error(mine: Any, theirs: Any) -> float:
    if isinstance(theirs, list):
        alike = isinstance(mine, list) and len(mine) == len(theirs)
        return largest_error(mine, theirs) if alike else float("nan")
    a, b = np.asarray(mine), np.asarray(theirs)
    if a.shape != b.shape:
        return float("nan")
    if b.dtype.kind in "OUST":
        return 0.0 if np.array_equal(a, b) else float("nan")
    if not b.size:
        return 0.0
    kind = np.complex128 if b.dtype.kind == "c" else np.float64
    a, b = a.astype(kind), b.astype(kind)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    size = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        gap = float(np.abs(np.where(same, 0.0, a - b)).max())
    return gap / max(size, 1e-30)


def _first_call(
    contestant: _Engine | _OnnxRuntime,
    feeds: Mapping[str, Array],
    progress: Callable[[str], None],
) -> None:
    result = contestant.result
    progress(f"{result.device}: first call")
    contestant.feeds, result.inputs = feeds, describe(feeds)
    begin = time.perf_counter()
    contestant.call()
    result.first_ms = (time.perf_counter() - begin) * 1e3


def _add_peer(
    model: str | Path,
    feeds: Mapping[str, Array],
    contestants: list[_Contestant],
    progress: Callable[[str], None],
) -> str:
    """Adds ONNX Runtime to the contestants; returns why not, or ""."""
    if find_spec(ONNXRUNTIME) is None:
        return "not installed"
    try:
        peer = _OnnxRuntime(model)
        _first_call(peer, feeds, progress)
    except Exception as error:  # its errors have no common class
        return str(error).strip().splitlines()[0]
    contestants.append(peer)
    return ""


def _take_turns(
    contestants: list[_Contestant], settings: Settings, progress: Callable[[str], None]
) -> None:
    for turn in range(settings.repeats):
        progress(f"warm call {turn + 1} of {settings.repeats}")
        first = turn % len(contestants)
        for contestant in (*contestants[first:], *contestants[:first]):
            if settings.cool_down_s:
                time.sleep(settings.cool_down_s)
            wall, cpu = time.perf_counter(), time.process_time()
            contestant.call()
            contestant.result.warm_ms.append((time.perf_counter() - wall) * 1e3)
            contestant.result.cpu_ms.append((time.process_time() - cpu) * 1e3)
            if isinstance(contestant, _Engine):
                contestant.note_phases()


def _start(
    result: Measurement,
    model: str | Path,
    feeds: Mapping[str, Array],
    settings: Settings,
    progress: Callable[[str], None],
) -> None:
    """Times new processes: the first finds empty caches, the second those that it filled."""
    progress(f"{result.device}: starts of new processes")
    arguments = {} if result.device == ONNXRUNTIME else settings.arguments(result.device)
    result.cold, result.warm_start = starts(result.device, str(model), arguments, feeds)


class _Engine:
    """A session of this engine."""

    def __init__(self, model: str | Path, device: str, settings: Settings) -> None:
        start = time.perf_counter()
        self.session = InferenceSession(str(model), **settings.arguments(device))
        created_ms = (time.perf_counter() - start) * 1e3
        name = "NumPy" if device == "cpu" else self.session.device_name
        self.result = Measurement(device, name, created_ms)
        self.feeds: Mapping[str, Array] = {}

    def call(self) -> list[Any]:
        return self.session.run(None, self.feeds)

    def call_hollow(self, times: int) -> None:
        """Times calls that leave out what kernels do; the first makes the empty dispatches.

        Not where NumPy's nodes would read what kernels did not write.
        """
        if self.result.cpu_nodes or not self.result.dispatches:
            return
        with self.session.hollow():
            for _ in range(times + 1):
                begin = time.perf_counter()
                self.call()
                self.result.hollow_ms.append((time.perf_counter() - begin) * 1e3)
                phases = self.session.times.phases
                moving = phases.get("upload", 0.0) + phases.get("download", 0.0)
                self.result.moving_ms.append(moving * 1e3)
        del self.result.hollow_ms[0], self.result.moving_ms[0]

    def note_phases(self) -> None:
        """The phases of the call just made."""
        for phase in PHASES:
            seconds = self.session.times.phases.get(phase, 0.0)
            self.result.phases_ms.setdefault(phase, []).append(seconds * 1e3)

    def record(self) -> None:
        """What a call did, and what the session holds."""
        places = [place for _, place in self.session.executed(views=False)]
        times = self.session.times
        self.result = replace(
            self.result,
            gpu_nodes=places.count("gpu"),
            cpu_nodes=places.count("cpu"),
            dispatches=times.dispatches,
            submits=times.submits,
            uploaded_nbytes=times.uploaded_nbytes,
            downloaded_nbytes=times.downloaded_nbytes,
            device_nbytes=self.session.device_nbytes,
        )

    def close(self) -> None:
        self.session.close()


class _OnnxRuntime:
    """A session of ONNX Runtime on the CPU, with its own choice of threads."""

    def __init__(self, model: str | Path) -> None:
        runtime = import_module(ONNXRUNTIME)
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        start = time.perf_counter()
        self._session: Any = runtime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        created_ms = (time.perf_counter() - start) * 1e3
        name = f"ONNX Runtime {runtime.__version__}, CPU"
        self.result = Measurement(ONNXRUNTIME, name, created_ms)
        self.feeds: Mapping[str, Array] = {}

    def call(self) -> list[Any]:
        return list(self._session.run(None, dict(self.feeds)))

    def record(self) -> None:
        """It does not tell more."""

    def close(self) -> None:
        self._session = None
