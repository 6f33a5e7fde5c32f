"""What the command line shows: progress on a terminal, tables by rich."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

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


def bench_table(model: str, results: Sequence[Measurement]) -> Table:
    """One column per device, one row per figure."""
    table = Table(title=f"{model}: milliseconds", title_justify="left")
    table.add_column("")
    for result in results:
        table.add_column(f"{result.device}\n{result.name}", justify="right", overflow="fold")
    rows: list[tuple[str, list[str]]] = [
        ("cold start to first result", [_ms(r.cold_ms) for r in results]),
        ("session creation", [_ms(r.create_ms) for r in results]),
        ("first call", [_ms(r.first_ms) for r in results]),
        ("warm median", [_ms(r.median_ms) for r in results]),
        ("warm p90", [_ms(r.p90_ms) for r in results]),
    ]
    rows += [(f"  {p}", [_ms(r.phase_ms(p)) for r in results]) for p in PHASES]
    rows += [
        ("dispatches", [str(r.dispatches) for r in results]),
        ("bytes up / down", [f"{r.uploaded_nbytes} / {r.downloaded_nbytes}" for r in results]),
    ]
    for name, cells in rows:
        table.add_row(name, *cells)
    if len(results) == 2:
        slow, fast = sorted(results, key=lambda r: -r.median_ms)
        ratio = slow.median_ms / fast.median_ms
        table.caption = f"warm: {fast.device} is {ratio:.2f}x as fast as {slow.device}"
    return table


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


def devices_table(found: Sequence[AdapterInfo]) -> Table:
    """Adapters with kind, features and limits; limits below the baseline are named."""
    table = Table(title="adapters", title_justify="left")
    for name in ("", "name", "driver", "back end", "kind", "f16", "subgroups", "missing"):
        table.add_column(name, overflow="fold")
    for info in found:
        table.add_row(
            str(info.index),
            info.name,
            info.driver,
            info.backend,
            info.kind,
            "yes" if "shader-f16" in info.features else "no",
            "yes" if "subgroup" in info.features else "no",
            ", ".join(_missing(info)) or "nothing",
        )
    return table


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
