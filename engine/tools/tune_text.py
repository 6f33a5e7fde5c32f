"""What `onnx-wgpu tune` shows."""

from __future__ import annotations

import re

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from engine.tools.tune import GAIN, Tuned

_USUAL = re.compile(
    r" (?:(?:dilations|strides)=\[1(?:, 1)*\]|pads=\[0(?:, 0)*\]|group=1(?!\d)|auto_pad=NOTSET)"
)
"""Attributes in what an operator is tuned as, which say what holds without them."""
_NARROW = 100
"""Columns of a terminal below which the second fastest style is left out."""


def table(found: Tuned, top: int, width: int) -> Table:
    """A row for each operator and its sizes, slowest first: times of all such nodes in a call.

    `width` is that of the terminal.
    """
    wide = width >= _NARROW
    made = Table(
        box=SIMPLE_HEAD,
        title="milliseconds a call, by style (which kernel, and how large its tiles are)",
        title_justify="left",
        collapse_padding=not wide,
    )
    made.add_column("operator and sizes", overflow="fold")
    for name in ("nodes", "default", "fastest"):
        made.add_column(name, justify="right")
    made.add_column("style", no_wrap=True)
    if wide:
        made.add_column("next", no_wrap=True)
    for choice in found.choices[:top]:
        others = sorted((ms, name) for name, ms in choice.measured.items() if name != choice.style)
        following = ", ".join(f"{name} {ms:.2f}" for ms, name in others[:1])
        made.add_row(
            Text(_USUAL.sub("", choice.tuned_as)),
            str(choice.count),
            f"{choice.default_ms:.2f}",
            f"{choice.style_ms:.2f}" if choice.style else "-",
            choice.style or "default",
            *([following] if wide else []),
        )
    return made


def summary(found: Tuned, budget_s: int) -> list[str]:
    """What tuning changed in all, and whether it was cut short."""
    if not found.choices:
        return ["nothing to tune: none of its operators has kernels to choose from"]
    faster = sum(bool(choice.style) for choice in found.choices)
    lines = [
        f"kernels take {found.default_ms:.2f} ms a call in the default style, "
        f"{found.tuned_ms:.2f} ms tuned; another style is faster for {faster} "
        f"of {len(found.choices)} operators and sizes"
    ]
    again = sum(
        not choice.style
        and min(choice.measured.values(), default=choice.default_ms) <= GAIN * choice.default_ms
        for choice in found.choices
    )
    if again:
        lines.append(
            f"for {again} more one was faster at first, but not when measured again: "
            "the default stays"
        )
    if found.rounds < found.all_rounds:
        lines.append(
            f"{found.rounds} of {found.all_rounds} styles fitted into {budget_s} s: see --budget"
        )
    return lines
