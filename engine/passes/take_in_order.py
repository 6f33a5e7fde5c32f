"""Elements that are all taken in order are a view: `Range -> Expand -> Concat -> GatherND`.

Transformers so ask whether a token counts, for grids of the numbers of sentences and tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.ir import Array, Graph, Node, Shape
from engine.passes.base import PassResult
from engine.passes.build import Builder, Rule, replace_nodes
from engine.passes.match import is_op

MOST_STEPS = 8
"""How many operators that only move numbers are looked through."""


def take_in_order(graph: Graph) -> PassResult:
    """Replaces each GatherND whose ids count along axes of their own by Unsqueeze."""
    return replace_nodes(graph, _rule_of)


def _rule_of(node: Node) -> Rule | None:
    return _unsqueeze if is_op(node, "GatherND") and not node.attrs.get("batch_dims", 0) else None


def _unsqueeze(b: Builder) -> str | None:
    data, ids = b.type(0).shape, b.type(1).shape
    axes = list(_axes_of_columns(b.graph, b.node.inputs[1]))
    if data is None or ids is None or not axes or None in axes:
        return None
    space, counted = ids[:-1], [axis for axis in axes if axis is not None]
    if any(space[axis] != size for axis, size in zip(counted, data, strict=False)):
        return "its ids may count to less or more than there is"
    if counted != sorted(set(counted)):
        return "its ids take axes in another order"
    others = [axis for axis in range(len(space)) if axis not in counted]
    if any(space[axis] != 1 for axis in others):
        return "its ids take elements more than once"
    if others:
        b.op("Unsqueeze", b.node.inputs[0], b.int_constant(*others), output=b.node.key)
    else:
        b.op("Identity", b.node.inputs[0], output=b.node.key)
    return ""


def _axes_of_columns(graph: Graph, ids: str) -> Iterator[int | None]:
    """For each place along the last axis: the axis along which its numbers count from 0 on."""
    array, node = graph.constant(ids), graph.producer.get(ids)
    if array is not None:
        for column in range(array.shape[-1]):
            yield _axis_of_array(array[..., column])
    elif node is not None and is_op(node, "Concat"):
        for part in node.inputs:
            shape = graph.shape(part) or ()
            last = node.attrs["axis"] in (-1, len(shape) - 1)
            yield _counted(graph, part) if last and shape[-1] == 1 else None
    elif (graph.shape(ids) or ())[-1:] == (1,):
        yield _counted(graph, ids)


def _axis_of_array(array: Array) -> int | None:
    for axis, size in enumerate(array.shape):
        counting = np.arange(size).reshape(-1, *(1,) * (array.ndim - axis - 1))
        if size > 1 and (array == counting).all():
            return axis
    return None


def _counted(graph: Graph, name: str, steps: int = MOST_STEPS) -> int | None:
    """The axis along which integers count from 0 on, alike along others; None if none is known."""
    array, node = graph.constant(name), graph.producer.get(name)
    if array is not None:
        return _axis_of_array(array)
    if node is None or not steps:
        return None
    if is_op(node, "Range"):
        start, step = graph.constant(node.inputs[0]), graph.constant(node.inputs[2])
        return 0 if start is not None and start == 0 and step is not None and step == 1 else None
    if not is_op(node, "Reshape", "Unsqueeze", "Squeeze", "Expand", "Identity"):
        return None
    axis = _counted(graph, node.inputs[0], steps - 1)
    if axis is None:
        return None
    before, after = graph.shape(node.inputs[0]), graph.shape(name)
    if before is None or after is None:
        return None
    if is_op(node, "Expand"):
        moved = axis + len(after) - len(before)
        return moved if after[moved] == before[axis] else None
    return _same_axis(before, after, axis)


def _same_axis(before: Shape, after: Shape, axis: int) -> int | None:
    """Where an axis is if axes of size 1 come and go."""
    mine, now = ([i for i, d in enumerate(shape) if d != 1] for shape in (before, after))
    same = [before[i] for i in mine] == [after[i] for i in now]
    return now[mine.index(axis)] if same and axis in mine else None
