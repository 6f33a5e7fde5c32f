"""Tables of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Result = dict[str, Any]
"""What was found of a model."""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows under heads; all columns but the first are numbers."""
    lines = [f"| {' | '.join(heads)} |", "|---|" + "--:|" * (len(heads) - 1)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def titled(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A section that is a table."""
    return f"## {title}\n\n{table(heads, rows)}"
