"""What `bench` measured, as rows for a table, plain data, and a chart."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from engine.explain import size_text
from engine.explain.sizes import count_text
from engine.tools.bench import COMPUTE, ONNXRUNTIME, PHASES, TRANSFER, Measurement, Results
from engine.tools.drawing import Bar, Drawing, stacked

PACKAGES = ("onnx-wgpu", "wgpu", "numpy", "onnx", "onnxruntime")
TITLES = {ONNXRUNTIME: "ORT CPU"}
UNSTEADY = 2.0
"""Medians that are so many times the least say more of the machine than of the model."""
BUSY = 0.5
"""Load beyond the cores, that of the measurement itself included, which is other work."""
_PARTS = (
    ("compute on the GPU", ("wait",)),
    ("compute on the CPU", ("host",)),
    ("upload", ("upload",)),
    ("download", ("download",)),
    ("encode", ("encode",)),
    ("bind sizes", ("bind",)),
)

Cell = str | None
Row = tuple[str, list[Cell]]


def title(device: str) -> str:
    """What a contestant is called, as at its column."""
    return TITLES.get(device, device.upper())


def machine() -> dict[str, str]:
    """The processor, its cores, memory and load, and the operating system."""
    found = {
        "processor": _processor(),
        "cores": str(os.cpu_count() or "unknown"),
        "system": platform.platform(),
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        found["memory"] = f"{memory / (1 << 30):.0f} GiB"
    if hasattr(os, "getloadavg"):
        found["load"] = f"{os.getloadavg()[0]:.1f}"
    return found


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Python's version, and those of packages that are installed."""
    found = {"Python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    listed = Path("/proc/cpuinfo")
    if listed.exists():
        for line in listed.read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def heading(model: str, results: Results, cool_down_s: float = 0.0) -> list[str]:
    """The lines above the table: model, inputs, machine, versions, who takes part, method."""
    measured = results.measured
    found = machine()
    load = f", load {found['load']}" if "load" in found else ""
    memory = f", {found['memory']}" if "memory" in found else ""
    lines = [
        f"{model}, {measured[0].inputs}",
        f"machine: {found['processor']}, {found['cores']} cores{memory}{load}; {found['system']}",
        "versions: " + ", ".join(f"{k} {v}" for k, v in versions().items()),
        *(_taking_part(r) for r in measured),
        *(f"{title(name)}: {why}" for name, why in results.missing.items()),
    ]
    pause = f", {cool_down_s:g} s of rest before each" if cool_down_s else ""
    calls = len(measured[0].warm_ms)
    lines.append(
        f"{time.strftime('%Y-%m-%d %H:%M')}; {calls} warm calls each, taking turns{pause}; "
        "NumPy in, NumPy out"
    )
    return lines


def _taking_part(result: Measurement) -> str:
    line = f"{title(result.device)}: {result.name}"
    if result.device in ("cpu", ONNXRUNTIME):
        return line
    return (
        f"{line}; {count_text(result.gpu_nodes, 'node')} in "
        f"{count_text(result.dispatches, 'kernel')} and {count_text(result.submits, 'submit')}, "
        f"{result.cpu_nodes} on the CPU; "
        f"{size_text(result.uploaded_nbytes)} up, {size_text(result.downloaded_nbytes)} down"
    )


def rows(results: Sequence[Measurement]) -> list[Row]:
    """One row per figure, one cell per contestant; None where nothing was measured."""
    made: list[Row] = []

    def add(name: str, value: Callable[[Measurement], float | None]) -> None:
        found = [value(r) for r in results]
        if any(v is not None for v in found):
            made.append((name, [None if v is None else f"{v:.2f}" for v in found]))

    def add_size(name: str, value: Callable[[Measurement], int | None]) -> None:
        found = [value(r) for r in results]
        if any(v is not None for v in found):
            made.append((name, [None if v is None else size_text(v) for v in found]))

    add("process start to result, caches empty", lambda r: r.cold.total_ms if r.cold else None)
    add(
        "process start to result, caches filled",
        lambda r: r.warm_start.total_ms if r.warm_start else None,
    )
    add("session creation", lambda r: r.create_ms)
    add("first call", lambda r: r.first_ms)
    add("warm call, median", lambda r: r.median_ms)
    add("warm call, p90", lambda r: r.p90_ms)
    add("warm call, least", lambda r: r.min_ms)
    for text, names in _PARTS:
        add(f"  {text}", _phases(names))
    add("  rest", _rest)
    add("host overhead a call", lambda r: r.overhead_ms)
    add("call of empty dispatches, least", lambda r: min(r.hollow_ms) if r.hollow_ms else None)
    add("  of it upload and download", lambda r: min(r.moving_ms) if r.moving_ms else None)
    add("CPU time a call", lambda r: statistics.median(r.cpu_ms) if r.cpu_ms else None)
    add_size("peak memory of a process", lambda r: r.peak_nbytes)
    add_size("memory on the device", lambda r: r.device_nbytes or None)
    first, *others = results
    if others:
        errors = [None, *(f"{r.error:.1e}" for r in others)]
        made.append((f"error against {_named(first)}", errors))
    return made


def _phases(names: Sequence[str]) -> Callable[[Measurement], float | None]:
    return lambda result: result.phase_ms(*names) if result.phases_ms else None


def _rest(result: Measurement) -> float | None:
    if not result.phases_ms:
        return None
    known = [sum(call) for call in zip(*(result.phases_ms[p] for p in PHASES), strict=True)]
    spare = [w - k for w, k in zip(result.warm_ms, known, strict=True)]
    return max(float(statistics.median(spare)), 0.0)


def verdict(results: Sequence[Measurement]) -> list[str]:
    """Who is faster, said of the GPU whether it wins or loses, and where a loser's time goes."""
    gpu = next((r for r in results if r.device == "gpu"), None)
    if gpu is not None and not gpu.gpu_nodes:
        where = "all run in NumPy (why: onnx-wgpu explain)" if gpu.cpu_nodes else "nothing has to"
        return [f"no node runs on the GPU: {where}, so times say nothing of it"]
    lines, slower = [], False
    for other in results:
        if gpu is None or other is gpu:
            continue
        ratio = other.median_ms / gpu.median_ms
        slower = slower or ratio < 1
        if ratio >= 1:
            lines.append(f"warm, the GPU is {ratio:.2f} times as fast as {_named(other)}")
        else:
            lines.append(f"warm, the GPU takes {1 / ratio:.2f} times as long as {_named(other)}")
    if gpu is not None and slower:
        lines.append(f"the time of the GPU's calls: {_shares(gpu)}")
    return lines


def _shares(result: Measurement) -> str:
    """Percents of all warm calls together, which add up: the host's own work is what is left."""
    whole = max(sum(result.warm_ms), 1e-9)
    compute, transfers = (
        round(100 * sum(sum(result.phases_ms[name]) for name in names) / whole)
        for names in (COMPUTE, TRANSFER)
    )
    own = 100 - compute - transfers
    return f"{compute}% compute, {transfers}% transfers, {own}% the host's own work"


def disturbances(results: Sequence[Measurement]) -> list[str]:
    """Whether the machine had other work to do, in which case figures say less."""
    lines = []
    load, cores = machine().get("load"), os.cpu_count() or 1
    if load is not None and float(load) > cores + BUSY:
        lines.append(f"the machine was busy: load {load} on {count_text(cores, 'core')}")
    for result in results:
        ratio = result.median_ms / max(result.min_ms, 1e-9)
        if ratio > UNSTEADY:
            lines.append(
                f"calls of {_named(result)} were unsteady: the median is {ratio:.1f} times the "
                "least; other work may have held the cores"
            )
    return [*lines, "so compare the least times, or measure again"] if lines else []


def _named(result: Measurement) -> str:
    return "ONNX Runtime" if result.device == ONNXRUNTIME else f"the {title(result.device)}"


def as_json(model: str, results: Results) -> dict[str, Any]:
    """All of it as plain data: machine, versions, and each contestant with its figures."""
    return {
        "model": model,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "machine": machine(),
        "versions": versions(),
        "missing": dict(results.missing),
        "measured": [
            {
                **asdict(r),
                "median_ms": r.median_ms,
                "p90_ms": r.p90_ms,
                "min_ms": r.min_ms,
                "overhead_ms": r.overhead_ms,
                "peak_nbytes": r.peak_nbytes,
            }
            for r in results.measured
        ],
    }


def chart(model: str, results: Sequence[Measurement]) -> Drawing:
    """A bar per contestant of its median warm call, in parts where they are known."""
    legend = ["compute", "transfers", "the host's own work", "not told apart"]
    bars = []
    for result in results:
        if result.phases_ms:
            pieces = [
                result.phase_ms(*COMPUTE),
                result.phase_ms(*TRANSFER),
                result.overhead_ms or 0.0,
            ]
        else:
            pieces = [0.0, 0.0, 0.0, result.median_ms]
        note = f"{result.median_ms:.2f} ms, p90 {result.p90_ms:.2f}"
        bars.append(Bar(title(result.device), tuple(pieces), note))
    return stacked(f"{model}: a warm call, median in ms", legend, bars)
