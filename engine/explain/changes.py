"""What passes and fusion did and nearly did: grouped, since a model repeats itself."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from engine.explain.sizes import count_text
from engine.reasons import pattern, plain

if TYPE_CHECKING:
    from engine.explain.report import Changes

WIDTH = 108

_QUOTED = re.compile(r"'([^']*)'")


def grouped(lines: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Lines that say the same of other nodes together, the most frequent first: what, and all."""
    found: dict[str, list[str]] = {}
    for line in lines:
        found.setdefault(pattern(line), []).append(line)
    return sorted(found.items(), key=lambda item: -len(item[1]))


def changes_text(changes: Mapping[str, Changes]) -> list[str]:
    """A line for each pass that did something, or nearly: counts, and the first
    examples."""
    busy = {name: c for name, c in changes.items() if c.applied or c.near_misses}
    if not busy:
        return ["passes     nothing to do"]
    width = max(map(len, busy))
    lines = ["passes (--passes shows all that they did, and nearly did)"]
    for name, change in busy.items():
        text = f"  {name:{width}}  {len(change.applied):4} applied"
        if change.near_misses:
            text += f", {len(change.near_misses)} nearly"
        lines.append(_cut(f"{text}: {_examples(change.applied or change.near_misses)}"))
    idle = [name for name in changes if name not in busy]
    if idle:
        text = f"nothing to do for {', '.join(idle)}"
        lines += textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


def _examples(lines: Iterable[str], most: int = 3) -> str:
    """The most frequent kinds of change, with how often, and the first node of each."""
    shown = []
    for _, found in grouped(lines)[:most]:
        if len(found) == 1:
            shown.append(found[0])
        else:
            shown.append(f"{plain(found[0])} ({len(found)} times)")
    return "; ".join(shown)


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH + 12 else line[: WIDTH + 11].rstrip() + "…"


def full_changes_text(changes: Mapping[str, Changes]) -> list[str]:
    """All that passes did and nearly did, what is alike together with the names of its nodes."""
    lines = []
    for name, change in changes.items():
        if not change.applied and not change.near_misses:
            continue
        counts = f"{len(change.applied)} applied, {len(change.near_misses)} nearly"
        lines += [f"{name}: {counts}"]
        for sign, found in (("+", change.applied), ("-", change.near_misses)):
            for what, members in grouped(found):
                lines += _group_lines(sign, what, members)
        lines.append("")
    return lines[:-1]


def _group_lines(sign: str, what: str, members: list[str]) -> list[str]:
    indent = "      "
    if len(members) == 1:
        return textwrap.wrap(
            members[0], WIDTH, initial_indent=f"  {sign} ", subsequent_indent=indent
        )
    head = f"{count_text(len(members), 'time')}: {what}"
    lines = textwrap.wrap(head, WIDTH, initial_indent=f"  {sign} ", subsequent_indent=indent)
    names = dict.fromkeys(" ← ".join(_QUOTED.findall(m)) for m in members)
    text = "; ".join(filter(None, names))
    return lines + textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)
