"""What the command line shows: progress on a terminal, tables by rich."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.explain import size_text
from engine.progress import listening
from engine.runtime.device import AdapterInfo
from engine.target import Target
from engine.tools import bench_report
from engine.tools.bench import Measurement
from engine.tools.operators import COLUMNS, Row, types_text

WIDE = 240
"""Columns of what is no terminal, unless COLUMNS has another number."""


class _Console(Console):
    """Leaves it to `engine.cli` what a closed pipe means: rich would end with the status 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """Standard output; where it is no terminal, tables have room."""
    out = _Console(soft_wrap=False)
    if out.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return out
    return _Console(soft_wrap=False, width=WIDE)


def show(table: Table) -> None:
    """Prints a table, to a file or a pipe without blanks at the ends of lines."""
    out = console()
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as captured:
        out.print(table)
    say(*(line.rstrip() for line in captured.get().splitlines()))


def say(*lines: str, fold: bool = True) -> None:
    """Prints lines as they are; but on a terminal, those that are too long are folded.

    `fold=False` is for what people copy, such as paths and commands.
    """
    out = console()
    text = "\n".join(lines)
    if fold and out.is_terminal:
        text = "\n".join(piece for line in text.split("\n") for piece in folded(line, out.width))
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def folded(line: str, width: int) -> list[str]:
    """A line in pieces, the later ones below the last column that leaves them room.

    A last column that leaves none stands there as a whole.
    """
    if len(line) <= width:
        return [line]
    columns = [found.end() for found in re.finditer(r"\S  +(?=\S)", line)]
    indent = max((c for c in columns if c <= width * 2 // 3), default=4)
    last = max(columns, default=0)
    if indent < last and len(line[:last].rstrip()) <= width:  # the last column gets its own lines
        rest = textwrap.wrap(line[last:], width - indent, break_on_hyphens=False)
        return [line[:last].rstrip(), *(" " * indent + piece for piece in rest)]
    return textwrap.wrap(line, width, subsequent_indent=" " * indent, break_on_hyphens=False)


@contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal's standard error while the block runs; nothing elsewhere.

    Behind the text stands what the engine tells of its work. Yields a function that changes the
    text.
    """
    if sys.stderr is None or not sys.stderr.isatty():  # None where it was closed
        yield lambda new: None
        return
    err = Console(stderr=True)
    with err.status(Text(text)) as spinner:
        line = _Line(text, err.width - 4, spinner.update)
        with listening(line.add):
            yield line.start


class _Line:
    """What `status` shows: a headline, and what is being done for it."""

    def __init__(self, text: str, width: int, show: Callable[[Text], None]) -> None:
        self.text = text
        self.width = width
        self.show = show

    def start(self, text: str) -> None:
        self.text = text
        self.show(Text(text))

    def add(self, detail: str) -> None:
        line = Text(f"{self.text}: {detail}")
        line.truncate(self.width, overflow="ellipsis")
        self.show(line)


def bench_table(results: Sequence[Measurement]) -> Table:
    """One column per contestant, one row per figure, in milliseconds but for sizes and errors."""
    table = Table(box=SIMPLE_HEAD, title="milliseconds", title_justify="left")
    table.add_column("")
    for result in results:
        table.add_column(bench_report.title(result.device), justify="right")
    for name, cells in bench_report.rows(results):
        table.add_row(name, *("-" if cell is None else cell for cell in cells))
    return table


def operators_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """A table for each domain, one row per operator."""
    for domain in dict.fromkeys(row.domain for row in rows):
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        table.title, table.title_justify = domain or "ai.onnx", "left"
        for name in COLUMNS:
            table.add_column(name, overflow="fold", no_wrap=name in ("GPU", "CPU"))
        for row in rows:
            if row.domain == domain:
                name, forms, gpu, _, *rest = row.cells
                table.add_row(name, forms, gpu, types_text(row.dtypes), *rest)
        yield table


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
