"""Quantities for people: bytes, milliseconds, shares."""

from __future__ import annotations


def size_text(nbytes: int) -> str:
    """Bytes for people: "12 B", "3.4 KiB", "1.2 MiB"."""
    if nbytes < 1 << 10:
        return f"{nbytes} B"
    return f"{nbytes / 1024:.1f} KiB" if nbytes < 1 << 20 else f"{nbytes / (1 << 20):.1f} MiB"


def ms_text(ms: float) -> str:
    """Milliseconds with three digits that count: "0.042 ms", "7.71 ms", "201 ms"."""
    if ms < 1:
        return f"{ms:.3f} ms"
    return f"{ms:.2f} ms" if ms < 100 else f"{ms:.0f} ms"


def share_text(part: float, whole: float) -> str:
    """A share in percent, never rounded to all or nothing: "99.9 %"."""
    if not whole:
        return "0 %"
    percent = 100 * part / whole
    if percent in (0, 100):
        return f"{percent:.0f} %"
    return f"{min(max(percent, 0.1), 99.9):.{0 if 1 <= percent <= 99 else 1}f} %"


def short(text: str, width: int) -> str:
    """`text` cut in the middle to at most `width` characters."""
    if len(text) <= width:
        return text
    half = (width - 1) // 2
    return f"{text[: width - 1 - half]}…{text[-half:]}"


def count_text(count: int, noun: str) -> str:
    """ "1 node", "3 nodes", "2 switches"."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}{'' if count == 1 else ending}"
