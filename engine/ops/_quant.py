"""Scales and zero points: one for all, or one for each index of an axis."""

from __future__ import annotations

import dataclasses

from engine import dims
from engine.dims import Dim
from engine.ops import YES, NodeView, Support, no, yes_if


def zero_word(view: NodeView, index: int) -> int | None:
    """The zero point in input `index` as a number: 0 if omitted; None if it is in a buffer."""
    if not view.has(index):
        return 0
    points = view.const(index)
    if points is None or (points.size != 1 and points.any()):
        return None
    return int(points.reshape(-1)[0]) if points.size else 0


def is_single(view: NodeView, index: int) -> bool:
    """Whether input `index` is omitted or known to have one element."""
    return not view.has(index) or all(d == 1 for d in view.shape(index))


def along(view: NodeView, index: int, size: Dim | None) -> Support:
    """Whether input `index` has one element, or one for each of `size` (None: not possible)."""
    if is_single(view, index):
        return YES
    shape = view.shape(index)
    guard = dims.equal(shape[0], size, "") if len(shape) == 1 and size is not None else None
    if guard is None or guard.known is False:
        return no(f"its kernel takes no input {index} of shape [{', '.join(map(str, shape))}]")
    why = f"input {index} of {view.describe()} has {size} elements"
    return YES if guard.known else yes_if(dataclasses.replace(guard, why=why))


def every(*found: Support) -> Support:
    """Supported if all are, under all their guards."""
    refused = next((s for s in found if not s.ok), None)
    return refused or yes_if(*(g for s in found for g in s.guards))
