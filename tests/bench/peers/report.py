"""The page of a run: header, table, chart, means against targets, what lost and what failed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.explain import size_text
from engine.tools.drawing import Bar, grouped
from tests.bench.integrated import section as integrated
from tests.bench.peers import host, plans
from tests.bench.peers.engines import (
    CPU,
    GPU,
    GPU_BASELINE,
    NCNN,
    ORT_CPU,
    ORT_WEBGPU,
    PEERS,
    REFERENCE,
)
from tests.bench.peers.tables import Result, titled

Say = Callable[[str], None]


@dataclass(frozen=True)
class Goal:
    """How many times as fast `mine` is to be as `theirs`, in the geometric mean.

    `worst` is the least factor that a single model may have.
    """

    mine: str
    theirs: str
    factor: float
    worst: float = 0.0


GOALS = (
    Goal(GPU, ORT_WEBGPU, 8.0),
    Goal(GPU_BASELINE, ORT_WEBGPU, 5.0),
    Goal(GPU, NCNN, 3.5),
    Goal(CPU, ORT_CPU, 1 / 3, 1 / 8),
    Goal(CPU, REFERENCE, 20.0),
)

COLD_GOALS = {"empty_s": 1 / 2, "warm_s": 1 / 5}
"""Share of the time that ONNX Runtime WebGPU takes with empty caches."""


def time_of(result: Result, peer: str, figure: str = "median_ms") -> float | None:
    """A figure of a peer on a model, if it was right."""
    found = result["peers"].get(peer, {})
    value = found.get(figure)
    return None if "problem" in found or value is None else float(value)


def factors(
    results: Iterable[Result], mine: str, theirs: str, figure: str = "median_ms"
) -> dict[str, float]:
    """By model, how many times as fast `mine` is as `theirs`, where both were right."""
    found = {}
    for result in results:
        a, b = time_of(result, mine, figure), time_of(result, theirs, figure)
        if a is not None and b is not None:
            found[result["model"]] = b / a
    return found


def mean(values: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else float("nan")


def write(page: Path, results: Sequence[Result]) -> None:
    """Writes the page, and the chart beside it."""
    measured = [r for r in results if "problem" not in r]
    chart = page.with_suffix(".svg")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text(results, chart.name), encoding="utf-8")
    names = present(measured)
    groups = [
        (
            result["model"],
            [
                Bar(name, (value,), short(value), names.index(name))
                for name in names
                if (value := time_of(result, name)) is not None
            ],
        )
        for result in measured
    ]
    title = "A warm call, NumPy in to NumPy out; less is better"
    grouped(title, names, groups, "ms").save(chart)


def present(results: Sequence[Result]) -> list[str]:
    """Peers with a figure for some model, in the order of `PEERS`."""
    return [p.name for p in PEERS if any(time_of(r, p.name) is not None for r in results)]


def short(value: float) -> str:
    """Three digits or so."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def text(results: Sequence[Result], chart: str) -> str:
    """The page."""
    measured = [r for r in results if "problem" not in r]
    blocks = [
        "# Benchmarks\n\nWritten by `./dev.sh bench`; `./dev.sh bench --install` installs the "
        "other engines, each in an environment of its own.",
        *(_header(measured[0]) if measured else []),
        f"![A warm call of each engine on each model, in milliseconds]({chart})",
        _table(measured, "Milliseconds of a warm call, median", "median_ms"),
        _table(
            measured,
            "CPU milliseconds of a warm call over the threads, median: what it would take if "
            "nothing else ran, where the GPU is a CPU",
            "cpu_ms",
        ),
        _goals(measured),
        _lost(measured),
        _plans(measured),
        host.section(measured),
        integrated.section(measured),
        _cold(measured),
        _starts(measured),
        _failures(results),
    ]
    return "\n\n".join(b for b in blocks if b) + "\n"


def _header(first: Result) -> list[str]:
    found, threads = first["machine"], first["threads"]
    lines = [
        f"- Machine: {found['processor']}, {found['cores']} cores, {found.get('memory', '')}; "
        f"{found['system']}; load before the run {found.get('load', 'unknown')}",
        f"- GPU: {first['adapter']}"
        + (
            "; a CPU in truth: times rank engines otherwise than a GPU does. No real GPU was at "
            "hand; `tests/on_device.sh` reports on one" * first["software"]
        ),
        "- Versions: " + ", ".join(f"{k} {v}" for k, v in first["versions"].items()),
        f"- Date: {first['date']}",
        f"- Method: a process for each engine and model, {threads} threads each, batch 1, float32. "
        "Each engine's outputs for two inputs are first compared with those of ONNX Runtime's CPU "
        "provider; wrong ones are not timed. Then the engines take turns, a few calls each, and "
        "who begins changes. A call goes from NumPy arrays to NumPy arrays.",
    ]
    peers = [f"- {name}: {note}" for name, note in first["engines"].items()]
    return ["\n".join(lines), "\n".join(peers)]


def _table(results: Sequence[Result], title: str, figure: str) -> str:
    names = [n for n in present(results) if any(time_of(r, n, figure) is not None for r in results)]
    rows = []
    for result in results:
        cells = []
        for name in names:
            value = time_of(result, name, figure)
            if value is not None and figure == "cpu_ms":
                value /= result["threads"]
            cells.append("-" if value is None else short(value))
        rows.append([result["model"], *cells])
    return titled(title, ["model", *names], rows) if names else ""


def _goals(results: Sequence[Result]) -> str:
    rows = []
    for goal in GOALS:
        by_clock = factors(results, goal.mine, goal.theirs)
        by_cpu = factors(results, goal.mine, goal.theirs, "cpu_ms")
        if not by_clock:
            continue
        value, worst = mean(by_clock.values()), min(by_clock, key=lambda n: by_clock[n])
        met = value >= goal.factor and by_clock[worst] >= goal.worst
        least = f", none under {goal.worst:.3g}" if goal.worst else ""
        rows.append(
            [
                f"{goal.mine} against {goal.theirs}",
                str(len(by_clock)),
                f"{value:.2f}",
                f"{mean(by_cpu.values()):.2f}" if by_cpu else "-",
                f"{by_clock[worst]:.2f} ({worst})",
                f"{goal.factor:.3g}{least}",
                "yes" if met else "no",
            ]
        )
    heads = ["times as fast", "models", "mean", "by CPU time", "worst", "goal", "met"]
    return titled("Geometric means and goals", heads, rows) if rows else ""


def _lost(results: Sequence[Result]) -> str:
    """Every case in which another engine is faster than this one on the GPU."""
    lines = []
    for name in present(results):
        if name in (GPU, GPU_BASELINE):
            continue
        slower = {m: f for m, f in factors(results, GPU, name).items() if f < 1}
        if slower:
            cases = ", ".join(f"{m} ({1 / f:.1f})" for m, f in sorted(slower.items()))
            lines.append(f"- {name}: {cases}")
    if not lines:
        return ""
    title = "## Where the GPU path of this engine is slower"
    return f"{title}\n\nTimes as slow as each other engine:\n\n" + "\n".join(lines)


def _plans(results: Sequence[Result]) -> str:
    """What plans cost against the least, and the means against `plans.GOALS`."""
    rows, shares = [], []
    for result in results:
        found = result.get("plan")
        if found:
            shares.append([found[k][0] / max(found[k][1], 1) for k in plans.GOALS])
            (kernels, least), *sizes = (found[k] for k in plans.GOALS)
            cells = [f"{kernels} / {least}", *(" / ".join(map(size_text, s)) for s in sizes)]
            rows.append([result["model"], *cells, *(f"{s:.2f}" for s in shares[-1])])
    if not rows:
        return ""
    means = [mean(column) for column in zip(*shares, strict=True)]
    rows.append(["mean", "", "", "", *(f"{m:.2f}" for m in means)])
    rows.append(["goal", "", "", "", *(f"{g:g}" for g in plans.GOALS.values())])
    heads = ["kernels", "bytes moved", "memory of activations", *plans.GOALS]
    title = "Plans for what every device guarantees, against the least that each model needs"
    return titled(title, ["model", *heads], rows)


def _cold(results: Sequence[Result]) -> str:
    """Starts of new processes, and their means against `COLD_GOALS`."""
    rows, shares = [], []
    for result in results:
        found = result.get("starts")
        if found:
            mine, theirs = found[GPU], found[ORT_WEBGPU]
            shares.append([mine[k] / theirs["empty_s"] for k in COLD_GOALS])
            cells = [*mine.values(), *theirs.values(), *shares[-1]]
            rows.append([result["model"], *(f"{c:.2f}" for c in cells)])
    if not rows:
        return ""
    means = [mean(column) for column in zip(*shares, strict=True)]
    rows.append(["mean", *[""] * 6, *(f"{m:.2f}" for m in means)])
    rows.append(["goal", *[""] * 6, *(f"{g:.2g}" for g in COLD_GOALS.values())])
    figures = ("empty", "warm", "device")
    heads = [f"{name}, {figure}" for name in (GPU, ORT_WEBGPU) for figure in figures]
    title = (
        "Seconds from a new process to the first result, caches of plans and shaders empty and "
        "warm, less interpreter and device, where ONNX Runtime needs over a second"
    )
    return titled(title, ["model", *heads, "empty / theirs", "warm / theirs"], rows)


def _starts(results: Sequence[Result]) -> str:
    names = [n for n in present(results) if n != REFERENCE]
    rows = []
    for result in results:
        cells = []
        for name in names:
            found = result["peers"].get(name, {})
            if "problem" in found or "create_s" not in found:
                cells.append("-")
            else:
                peak = found.get("peak_nbytes")
                size = f", {size_text(peak)}" if peak else ""
                cells.append(f"{found['create_s'] * 1e3:.0f} + {found['first_ms']:.0f}{size}")
        rows.append([result["model"], *cells])
    title = (
        "Session creation + first call in ms, and peak memory of the process (caches of drivers as "
        "they were)"
    )
    return titled(title, ["model", *names], rows) if names else ""


def _failures(results: Sequence[Result]) -> str:
    lines = [f"- {r['model']}: {r['problem']}" for r in results if "problem" in r]
    for result in results:
        for name, found in result["peers"].items():
            problem = found.get("problem")
            if problem and problem != "not installed":
                lines.append(f"- {result['model']}, {name}: {problem}")
    return "## What did not run, or ran wrong\n\n" + "\n".join(lines) if lines else ""
