"""Windows of one value that a Concat joins are taken out together: `n x (Slice -> Pad) -> Concat =>
Pad -> Gather -> Transpose`.

Harmonics of a spectrum, or frames around the present one, are written as copies of a value, each
moved by some places and padded with zeros, side by side. A Pad for each writes what the Concat is
made of; one Gather along the axis takes each place of each window from where it is, zeros from one
element that is added behind the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.dims import Dim
from engine.ir import Graph, Node
from engine.ops import NodeView
from engine.ops.pad import pad_amounts
from engine.ops.slice import slices
from engine.passes.base import PassResult
from engine.passes.build import Builder, Rule, replace_nodes
from engine.passes.chains import reshape_target
from engine.passes.match import is_op, text
from engine.records import dataclass

Places = np.ndarray[Any, np.dtype[np.int64]]

MIN_PADS = 2
"""Below, a Gather moves no less than what it replaces."""


def join_windows(graph: Graph) -> PassResult:
    """Takes padded windows of one value out of it together, where a Concat joins them."""
    return replace_nodes(graph, _rule_of)


def _rule_of(node: Node) -> Rule | None:
    if is_op(node, "Concat"):
        return _join
    return _join_cut if is_op(node, "Slice") else None


@dataclass(frozen=True)
class _Windows:
    """What a Concat joins.

    Attributes:
        source: the value that all are taken from, along `axis`.
        places: of the elements of each window, -1 for a zero.
    """

    source: str
    axis: int
    places: tuple[Places, ...]


def _join(b: Builder) -> str | None:
    found = _windows(b.graph, b.node)
    if found is None:
        return None
    readers = b.graph.consumers.get(b.node.key, ())
    if len(readers) == 1 and not b.graph.is_output(b.node.key):
        if is_op(readers[0], "Slice") and _cut(b.graph, readers[0], found) is not None:
            return None
    return _build(b, b.node, found)


def _join_cut(b: Builder) -> str | None:
    """A Slice that cuts all windows of the Concat in front of it."""
    concat = b.graph.producer.get(b.node.inputs[0])
    if concat is None or not is_op(concat, "Concat") or b.graph.is_output(concat.key):
        return None
    if len(b.graph.consumers.get(concat.key, ())) > 1:
        return None
    found = _windows(b.graph, concat)
    cut = None if found is None else _cut(b.graph, b.node, found)
    return None if cut is None else _build(b, concat, cut)


def _windows(graph: Graph, concat: Node) -> _Windows | None:
    """The windows that a Concat joins; None if it joins something else, or few that are padded."""
    pads = [pad for name in concat.inputs if (pad := graph.producer.get(name)) is not None]
    pads = [p for p in pads if is_op(p, "Pad") and graph.consumers.get(p.key, ()) == (concat,)]
    if len(pads) < MIN_PADS or any(graph.is_output(p.key) for p in pads):
        return None
    rank = len(graph.shape(concat.key) or ())
    axes = [axis for axis in range(rank) if _moves(graph, pads[0], axis)]
    if len(axes) != 1 or int(concat.attrs["axis"]) % rank == axes[0]:
        return None
    found = [_window(graph, name, axes[0]) for name in concat.inputs]
    sources = {source for source, _ in found}
    places = tuple(p for _, p in found if p is not None)
    if len(sources) > 1 or len(places) < len(found) or len({len(p) for p in places}) > 1:
        return None
    return _Windows(sources.pop(), axes[0], places)


def _window(graph: Graph, name: str, axis: int) -> tuple[str, Places | None]:
    """What a value is taken from by Slices and Pads of one axis, and its places there."""
    node = graph.producer.get(name)
    if node is not None and is_op(node, "Slice", "Pad") and _moves(graph, node, axis):
        source, places = _window(graph, node.inputs[0], axis)
        return source, None if places is None else _moved(graph, node, axis, places)
    shape = graph.shape(name)
    size = shape[axis] if shape is not None and axis < len(shape) else None
    return name, np.arange(size) if isinstance(size, int) else None


def _moves(graph: Graph, node: Node, axis: int) -> bool:
    """Whether a Slice or Pad takes whole rows along all axes but one, by known numbers."""
    shape, made = graph.shape(node.inputs[0]), graph.shape(node.key)
    if shape is None or made is None or not isinstance(shape[axis], int):
        return False
    view = NodeView(graph, node)
    if is_op(node, "Slice"):
        cuts = slices(view, shape)
        if cuts is None:
            return False
        whole = {k: (c.start, c.step, c.count) == (0, 1, shape[k]) for k, c in cuts.items()}
        kept = all(done for k, done in whole.items() if k != axis)
        if not kept or axis not in cuts:
            return False
        return isinstance(cuts[axis].start, int) and isinstance(cuts[axis].count, int)
    amounts, value = pad_amounts(view, len(shape)), view.const(2)
    if amounts is None or text(node, "mode", "constant") != "constant":
        return False
    if view.has(2) and (value is None or value.size != 1 or value.tobytes().strip(b"\0")):
        return False
    if any(pair != (0, 0) for k, pair in enumerate(amounts) if k != axis):
        return False
    return amounts[axis] != (0, 0) and all(isinstance(n, int) and n >= 0 for n in amounts[axis])


def _moved(graph: Graph, node: Node, axis: int, places: Places) -> Places:
    view, shape = NodeView(graph, node), graph.shape(node.inputs[0]) or ()
    if is_op(node, "Pad"):
        before, after = (_number(n) for n in (pad_amounts(view, len(shape)) or [])[axis])
        return np.pad(places, (before, after), constant_values=-1)
    cut = (slices(view, shape) or {})[axis]
    return places[_number(cut.start) + cut.step * np.arange(_number(cut.count))]


def _number(size: Dim) -> int:
    assert isinstance(size, int)
    return size


def _cut(graph: Graph, node: Node, windows: _Windows) -> _Windows | None:
    """The windows of which a Slice takes the same places."""
    if not _moves(graph, node, windows.axis):
        return None
    places = tuple(_moved(graph, node, windows.axis, p) for p in windows.places)
    return _Windows(windows.source, windows.axis, places)


def _build(b: Builder, concat: Node, windows: _Windows) -> str | None:
    shape, end = b.graph.shape(windows.source), b.graph.shape(b.node.key)
    if shape is None or end is None:
        return None
    axis, rank, size = windows.axis, len(shape), _number(shape[windows.axis])
    count, length = len(windows.places), len(windows.places[0])
    joined = int(concat.attrs["axis"]) % rank
    order = [k + (k >= axis) for k in range(rank)]
    order.insert(joined, axis)
    taken = (*shape[:axis], count, length, *shape[axis + 1 :])
    target = reshape_target(tuple(taken[k] for k in order), end)
    if target is None:
        return None
    index = np.stack(windows.places)
    source = windows.source
    if (index < 0).any():
        sizes = [0] * (2 * rank)
        sizes[rank + axis] = 1
        source = b.op("Pad", source, b.int_constant(*sizes))
    places = b.constant(np.where(index < 0, size, index).astype(np.int64))
    value = b.op("Gather", source, places, axis=axis)
    value = b.op("Transpose", value, perm=order)
    attrs = {"allowzero": 1} if target.allow_zero else {}
    b.op("Reshape", value, b.int_constant(*target.sizes), output=b.node.key, **attrs)
    return ""
