"""What a loop of GCN machine code is made of, and which share of the peak it can reach at most."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

WAVE = 64
"""Lanes of a wave."""
LANES, CACHE_NBYTES, WORKGROUP_NBYTES = 64, 64, 128
"""What a compute unit does in a clock: lanes of vector arithmetic, bytes that its vector cache
(`l1`) moves, and bytes that workgroup memory (`lds`) moves. Source: AMD, "Vega" Instruction Set
Architecture and GCN whitepaper; peak figures, not measured."""

_LABEL = re.compile(r"(BB\d+):")
_JUMP = re.compile(r"s_c?branch\S*\s+(BB\d+)")
_FMA = re.compile(r"v_(pk_)?(fma|fmac|mad|mac|madak|madmk)_(mix_|mixlo_|mixhi_|legacy_)?f(16|32)")
_HALF_FMA = re.compile(r"v_(pk_)?(add|sub|subrev|mul)_(legacy_)?f(16|32)")
_CACHE = re.compile(r"(buffer|tbuffer|global|flat|scratch|image)_")
_NBYTES = {
    **dict.fromkeys(("ubyte", "sbyte", "byte", "u8", "i8", "b8"), 1),
    **dict.fromkeys(("ushort", "sshort", "short", "u16", "i16", "b16"), 2),
    **{"dwordx2": 8, "b64": 8, "dwordx3": 12, "b96": 12, "dwordx4": 16, "b128": 16},
}
"""By part of an instruction's name; 4 without any of them."""


@dataclass(frozen=True)
class Mix:
    """The instructions of a loop, or of all of a program without one; each counts once a trip.

    Attributes:
        vector: operations of the vector ALU.
        fma: multiply-adds of a lane among them: two in a packed one, half of one in a lone addition
            or multiplication.
        cache_nbytes, workgroup_nbytes: bytes that a lane loads and stores through the vector cache,
            and in workgroup memory.
        scalar: all other instructions, which a unit of their own runs, or none.
    """

    vector: int = 0
    fma: float = 0.0
    cache_nbytes: int = 0
    workgroup_nbytes: int = 0
    scalar: int = 0

    @property
    def clocks(self) -> dict[str, float]:
        """Clocks that each unit of a compute unit needs for a trip of a wave, on its own."""
        return {
            "valu": self.vector * WAVE / LANES,
            "l1": self.cache_nbytes * WAVE / CACHE_NBYTES,
            "lds": self.workgroup_nbytes * WAVE / WORKGROUP_NBYTES,
        }

    @property
    def limit(self) -> str:
        """The unit that sets the bound."""
        return max(self.clocks, key=self.clocks.__getitem__)

    @property
    def bound(self) -> float:
        """The largest share of the peak of multiply-adds that the loop can reach.

        Cache misses, conflicts of banks and latencies are not in it; lanes that load from one
        address count as if they loaded from many.
        """
        clocks = self.clocks[self.limit]
        return self.fma * WAVE / LANES / clocks if clocks else 0.0


def hot_loop(text: str) -> Mix:
    """The innermost loop with most multiply-adds; all of a program without loops.

    Of loops with as many, the one with most instructions, such as a convolution's at a border.

    Args:
        text: of a program as RADV disassembles it: an instruction a line, `;` begins a comment, and
            labels such as `BB3:` begin blocks.
    """
    lines: list[str] = []
    labels: dict[str, int] = {}
    for raw in text.splitlines():
        line = raw.split(";")[0].strip()
        if label := _LABEL.fullmatch(line):
            labels[label[1]] = len(lines)
        elif line:
            lines.append(line)
    inner = [mix(lines[begin:end]) for begin, end in _innermost(lines, labels)]
    return max(inner or [mix(lines)], key=lambda m: (m.fma, m.vector + m.scalar))


def _innermost(lines: Sequence[str], labels: dict[str, int]) -> list[tuple[int, int]]:
    """Where loops begin and end that have no other loop in them."""
    ends: dict[int, int] = {}
    for place, line in enumerate(lines):
        jump = _JUMP.match(line)
        if jump and (begin := labels.get(jump[1], place + 1)) <= place:
            ends[begin] = place + 1  # the last jump back closes the loop, others continue it
    loops = list(ends.items())
    return [
        (begin, end)
        for begin, end in loops
        if not any((b, e) != (begin, end) and begin <= b and e <= end for b, e in loops)
    ]


def mix(lines: Sequence[str]) -> Mix:
    """The instructions of lines."""
    vector = cache = workgroup = scalar = 0
    fma = 0.0
    for line in lines:
        name = line.split()[0]
        if name.startswith("v_"):
            vector += 1
            fma += _multiply_adds(name)
        elif _CACHE.match(name):
            cache += _nbytes(name)
        elif name.startswith("ds_"):
            workgroup += _nbytes(name)
        else:
            scalar += 1
    return Mix(vector, fma, cache, workgroup, scalar)


def _multiply_adds(name: str) -> float:
    if found := _FMA.match(name):
        return 2.0 if found[1] else 1.0
    if found := _HALF_FMA.match(name):
        return 1.0 if found[1] else 0.5
    return 0.0


def _nbytes(name: str) -> int:
    """Bytes of a lane that an instruction such as `ds_read2_b64` moves."""
    sizes = [_NBYTES[part] for part in name.split("_") if part in _NBYTES]
    twice = re.search(r"(read|write)2", name)
    return (sizes[0] if sizes else 4) * (2 if twice else 1)
