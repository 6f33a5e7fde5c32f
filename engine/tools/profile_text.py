"""Profile for people: tables of kernels, nodes, operators and transfers, and the totals."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from engine.explain import size_text
from engine.tools.profile import Cost, Profile

_CLOCKS = {
    "timestamps": "kernels timed by the device's timestamps",
    "host": "kernels timed by the host's clock around single submits",
    "": "no kernel ran",
}
_WHY_NONE = {
    "auto": " (why: onnx-wgpu explain; --device gpu puts there what can be)",
    "gpu": " (why: onnx-wgpu explain)",
}
_PARTS = (
    ("gpu", "GPU busy"),
    ("cpu", "nodes on the CPU"),
    ("upload", "uploads"),
    ("download", "downloads"),
    ("bind", "bind sizes"),
    ("encode", "encode"),
    ("submit", "submit"),
    ("wait", "wait for the GPU"),
    ("rest", "rest"),
)


def header(found: Profile, model: str, asked: str = "cpu") -> list[str]:
    """What was measured, and by what ceilings kernels are judged; `asked` is --device."""
    why = "" if found.clock else _WHY_NONE.get(asked, "")
    lines = [
        f"{model}, {found.inputs}",
        f"{found.device}; {_CLOCKS[found.clock]}{why}",
        f"a call takes {found.call_ms:.2f} ms, {found.recorded_ms:.2f} ms while it is recorded",
    ]
    if found.rates is not None:
        gpu, cpu = found.rates.gpu, found.rates.cpu
        lines.append(
            f"ceilings: GPU {2 * gpu.fma_per_s / 1e9:.1f} GFLOP/s, "
            f"{gpu.bytes_per_s / 1e9:.1f} GB/s, launch {gpu.launch_ns / 1e3:.0f} us; "
            f"CPU {cpu.flops_per_s / 1e9:.1f} GFLOP/s, "
            f"{cpu.memory_bytes_per_s / 1e9:.1f} GB/s, overhead {cpu.node_ns / 1e3:.1f} us"
        )
    return lines


def cost_table(
    title: str, rows: Sequence[Cost], top: int, nodes: bool, narrow: bool = False
) -> Table:
    """The `top` slowest rows with their rates; with the model's nodes if asked.

    If it is to be narrow, nodes stand below their operators.
    """
    whole = sum(r.ms for r in rows) or 1.0
    table = Table(
        box=SIMPLE_HEAD,
        title=_title(title, rows, top),
        title_justify="left",
        collapse_padding=narrow,
    )
    for name in ("ms", "%", "runs", "GFLOP/s", "GB/s", "bound", "of it"):
        table.add_column(name, justify="left" if name == "bound" else "right", no_wrap=True)
    below = nodes and narrow
    name = "operators, nodes of the model" if below else "operators"
    table.add_column(name, overflow="fold", max_width=40)
    if nodes and not below:
        table.add_column("nodes of the model", overflow="fold", ratio=1)
    for row in rows[:top]:
        cells: list[RenderableType] = [
            f"{row.ms:.3f}",
            f"{100 * row.ms / whole:.1f}",
            f"{row.count:g}",
            f"{row.gflops_per_s:.2f}",
            f"{row.gb_per_s:.2f}",
            row.bound,
            _share(row),
            Text(_operators(row) + (f"\n{_where(row)}" if below else "")),
        ]
        table.add_row(*cells, *([Text(_where(row))] if nodes and not below else []))
    return table


def _title(title: str, rows: Sequence[Cost], top: int) -> str:
    left = len(rows) - top
    return f"{title}, slowest {top} of {len(rows)}" if left > 0 else title


def _share(row: Cost) -> str:
    """How near the ceiling it came; that of a launch is no rate."""
    if row.bound in ("", "launch", "overhead") or not row.ms:
        return ""
    return f"{100 * row.ceiling:.0f} %"


def _operators(row: Cost) -> str:
    where = "CPU: " if row.device == "cpu" else ""
    return f"{where}{row.name}" + (f" [{row.shader}]" if row.shader else "")


def _where(row: Cost) -> str:
    names = row.origin[:2]
    more = f", {len(row.origin) - 2} more" if len(row.origin) > 2 else ""
    inside = "".join(f"{key} / " for key in row.path)
    return f"{inside}{', '.join(names)}{more}"


NARROW = 100
"""Columns of a terminal below which tables are drawn to be narrow."""


def tables(found: Profile, top: int, width: int) -> list[Table]:
    """Kernels, nodes (where that says more than kernels do), operators and transfers.

    `width` is that of the terminal.
    """
    narrow = width < NARROW
    shown = []
    if found.kernels:
        shown.append(cost_table("kernels", found.kernels, top, True, narrow))
    if len(found.nodes) != len(found.kernels):
        title = "nodes, those of a kernel together"
        shown.append(cost_table(title, found.nodes, top, True, narrow))
    if found.types:
        shown.append(cost_table("operators", found.types, top, False, narrow))
    if found.transfers:
        shown.append(transfer_table(found.transfers, top))
    return shown


def transfer_table(rows: Sequence[Cost], top: int) -> Table:
    """Values that cross: time, bytes and bandwidth."""
    table = Table(box=SIMPLE_HEAD, title=_title("transfers", rows, top), title_justify="left")
    for name in ("ms", "runs", "bytes", "GB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("value", overflow="fold")
    for row in rows[:top]:
        size = size_text(row.nbytes)
        cells = (f"{row.ms:.3f}", f"{row.count:g}", size, f"{row.gb_per_s:.2f}", row.shader)
        table.add_row(*cells, Text("".join(f"{key} / " for key in row.path) + row.name))
    return table


def totals_text(found: Profile) -> str:
    """Where the time went; the GPU works while the host waits or goes on."""
    shown = [f"{text} {found.totals[name]:.2f}" for name, text in _PARTS if found.totals[name]]
    lines = ["a recorded call, in ms: " + ", ".join(shown)]
    bounds: dict[str, float] = {}
    for row in found.kernels:
        bounds[row.bound] = bounds.get(row.bound, 0.0) + row.ms
    if bounds:
        ranked = sorted(bounds.items(), key=lambda item: -item[1])
        lines.append(
            "kernels by their bound, in ms: " + ", ".join(f"{b} {t:.2f}" for b, t in ranked)
        )
    return "\n".join(lines)
