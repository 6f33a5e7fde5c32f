"""What the command line shows: progress on a terminal, tables by rich."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from engine.explain import size_text
from engine.runtime.device import AdapterInfo
from engine.target import Target
from engine.tools.bench import PHASES, Measurement
from engine.tools.operators import COLUMNS, Row


def console() -> Console:
    """Standard output."""
    return Console(soft_wrap=False)


@contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal's standard error while the block runs; nothing elsewhere.

    Yields a function that changes the text.
    """
    err = Console(stderr=True)
    if not sys.stderr.isatty():
        yield lambda new: None
        return
    with err.status(text) as spinner:
        yield spinner.update


def bench_table(results: Sequence[Measurement]) -> Table:
    """One column per device, one row per figure, in milliseconds."""
    table = Table(box=SIMPLE_HEAD, title="milliseconds", title_justify="left")
    table.add_column("")
    for result in results:
        table.add_column(result.device.upper(), justify="right")
    rows: list[tuple[str, list[str]]] = [
        ("cold: process start to first result", [_ms(r.cold_ms) for r in results]),
        ("session creation", [_ms(r.create_ms) for r in results]),
        ("first call", [_ms(r.first_ms) for r in results]),
        ("warm call, median", [_ms(r.median_ms) for r in results]),
        ("warm call, p90", [_ms(r.p90_ms) for r in results]),
    ]
    rows += [(f"  {text}", [_ms(_split(r, names)) for r in results]) for text, names in _SPLIT]
    rows.append(("  rest", [_ms(_rest(r)) for r in results]))
    for name, cells in rows:
        table.add_row(name, *cells)
    return table


_SPLIT = (
    ("bind sizes", ("bind",)),
    ("encode", ("encode",)),
    ("transfer", ("upload", "download")),
    ("compute: wait for the GPU", ("wait",)),
    ("compute: nodes on the CPU", ("host",)),
)


def _split(result: Measurement, names: Sequence[str]) -> float:
    return sum(result.phase_ms(n) for n in names)


def _rest(result: Measurement) -> float:
    return max(result.median_ms - _split(result, PHASES), 0.0)


def bench_notes(model: str, results: Sequence[Measurement]) -> list[str]:
    """What was measured, in lines around the table: before it, and the verdict last."""
    lines = [f"{model}, {results[0].inputs}"]
    for r in results:
        line = f"{r.device.upper()}: {r.name}" if r.device != "cpu" else "CPU: NumPy"
        if r.device != "cpu":
            line += (
                f"; {r.gpu_nodes} nodes in {r.dispatches} dispatches and {r.submits} submits, "
                f"{r.cpu_nodes} on the CPU; {size_text(r.uploaded_nbytes)} up, "
                f"{size_text(r.downloaded_nbytes)} down"
            )
        lines.append(line)
    slow, fast = max(results, key=_median), min(results, key=_median)
    if len(results) > 1:
        ratio = slow.median_ms / fast.median_ms
        lines.append(
            f"warm, the {fast.device.upper()} is {ratio:.2f} times as fast as the "
            f"{slow.device.upper()}"
        )
    return lines


def _median(result: Measurement) -> float:
    return result.median_ms


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def operators_table(rows: Sequence[Row]) -> Table:
    """One row per operator; operators outside ai.onnx with their domain."""
    table = Table()
    for name in COLUMNS:
        table.add_column(name, overflow="fold")
    for row in rows:
        name, *rest = row.cells
        table.add_row(f"{row.domain}:{name}" if row.domain else name, *rest)
    return table


def devices_text(found: Sequence[AdapterInfo]) -> str:
    """Adapters with what they are, their features, and their limits beside the baseline's."""
    lines = []
    for info in found:
        f16 = "yes" if "shader-f16" in info.features else "no"
        subgroups = "yes" if "subgroup" in info.features else "no"
        missing = _missing(info)
        lines += [
            f"{info.index}: {info.name}",
            f"   driver     {info.driver}, {info.backend}, {_KINDS.get(info.kind, info.kind)}",
            f"   features   f16 {f16}, subgroups {subgroups}",
            f"   limits     {_limits(info)}",
            "   missing    " + ("; ".join(missing) if missing else "nothing that the engine needs"),
        ]
    return "\n".join(lines)


_KINDS = {
    "IntegratedGPU": "integrated GPU",
    "DiscreteGPU": "discrete GPU",
    "CPU": "software on the CPU: slower than device='cpu', for tests",
}
_SHOWN = (
    ("max-storage-buffer-binding-size", "a binding"),
    ("max-buffer-size", "a buffer"),
    ("max-compute-workgroup-storage-size", "workgroup memory"),
)


def _limits(info: AdapterInfo) -> str:
    sizes = [f"{text} {size_text(info.limits[n])}" for n, text in _SHOWN if n in info.limits]
    threads = info.limits.get("max-compute-invocations-per-workgroup")
    return ", ".join([*sizes, *([f"{threads} invocations a workgroup"] if threads else [])])


def _missing(info: AdapterInfo) -> list[str]:
    """Limits of the baseline that the adapter does not reach."""
    baseline = Target.baseline()
    short = []
    for name in Target.limit_names():
        value, wanted = info.limits.get(name.replace("_", "-")), getattr(baseline, name)
        if value is None:
            continue
        if value > wanted if name.startswith("min_") else value < wanted:
            short.append(f"{name.replace('_', '-')} is {value}, the baseline {wanted}")
    return short
