"""Reasons in groups: those that differ in names and numbers only are one, for people to read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from engine.records import dataclass

PREDICTED = "predicted "
"""How a reason begins that is only a matter of time."""

_QUOTED = re.compile(r"'[^']*'")
_BRACKETS = re.compile(r"\[[^\[\]]*\]")
_REPEATS = re.compile(r"'…'(?:(?:, | and |, and )'…')+")
_NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.])")
_NAME = re.compile(r"(?: of| as)? \(?'…'\)?")


def pattern(text: str) -> str:
    """`text` without names, numbers and shapes: the same for lines that say the same."""
    text = _BRACKETS.sub("[…]", _QUOTED.sub("'…'", text))
    return _NUMBER.sub("…", _REPEATS.sub("'…'", text))


def plain(text: str) -> str:
    """`pattern` for people: without the places where names were."""
    text = pattern(text)
    if text.startswith("'…'"):
        return "a value" + text[3:]
    return _NAME.sub("", text).removesuffix(":")


@dataclass(frozen=True)
class Entry:
    """A node and a reason.

    Attributes:
        key: the node's.
        op_type: its operator.
        name: how people call it.
        reason: as it was given.
    """

    key: str
    op_type: str
    name: str
    reason: str


@dataclass(frozen=True)
class ReasonGroup:
    """Nodes with one reason.

    Attributes:
        reason: in words that fit all of them; that of the node where there is one only.
        entries: in the order of the graph.
        faster: whether nothing but the predicted time speaks against the GPU.
    """

    reason: str
    entries: tuple[Entry, ...]
    faster: bool

    @property
    def ops(self) -> Counter[str]:
        """How many nodes of each operator there are."""
        return Counter(entry.op_type for entry in self.entries)

    def ops_text(self, most: int = 5) -> str:
        """The operators, most frequent first: "3 Mul, 1 Add and 2 more operators"."""
        ops = self.ops
        shown = ", ".join(f"{count} {op}" for op, count in ops.most_common(most))
        left = len(ops) - most
        return shown + (f" and {left} more operators" if left > 0 else "")

    def names_text(self, most: int = 3) -> str:
        """The operators without their number: "Mul, Add and 2 more operators"."""
        ops = [op for op, _ in self.ops.most_common()]
        more = f" and {len(ops) - most} more operators" if len(ops) > most else ""
        return ", ".join(ops[:most]) + more


def group_reasons(entries: Iterable[Entry]) -> list[ReasonGroup]:
    """The groups, largest first; what is only a matter of time is one, and comes last."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        faster = entry.reason.startswith(PREDICTED)
        found.setdefault("" if faster else pattern(entry.reason), []).append(entry)
    groups = [_group(key, members) for key, members in found.items()]
    return sorted(groups, key=lambda g: (g.faster, -len(g.entries)))


def _group(key: str, members: Sequence[Entry]) -> ReasonGroup:
    same = len({entry.reason for entry in members if key} or members) == 1
    general = plain(key) if key else "predicted to be faster on the CPU"
    return ReasonGroup(members[0].reason if same else general, tuple(members), not key)


def names_text(names: Sequence[str], most: int = 4) -> str:
    """The first names of several, and how many follow."""
    shown = ", ".join(names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
