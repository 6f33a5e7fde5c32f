"""Sizes of operands that must agree: a kernel would read past a buffer, or elsewhere, unasked."""

from __future__ import annotations

from collections.abc import Iterator

from engine import dims
from engine.dims import Guard
from engine.ops import InferView, NodeView, definition
from engine.ops._fit import fits
from engine.ops._index_ranges import index_ranges


def agreements(view: NodeView) -> Iterator[Guard]:
    """What must hold of symbolic sizes so that the operands of a node fit each other.

    NumPy checks that in each call. Kernels don't, and shape inference only does for numbers.
    """
    yield from _not_negative(view)
    op = definition(view.node)
    if op is not None and op.agree is not None:
        yield from op.agree(view)
    elif op is not None and op.elementwise is not None and op.elementwise.walks is None:
        yield from _broadcast(view)
    yield from _indices(view)


def requirements(view: InferView) -> None:
    """Gives `view` the guards on operands of an operator that others do the work of.

    Raises: ShapeError for what can't hold.
    """
    op = definition(view.node)
    if op is not None and op.infer is not None:
        op.infer(view)
    if op is not None and op.agree is not None:
        view.require(op.agree(view))


def _not_negative(view: NodeView) -> Iterator[Guard]:
    """Windows and cropping leave nothing where sizes are too small; less than that is an error."""
    for name in view.node.writes:
        tensor = view.graph.tensor(name)
        for dim in (tensor.shape or ()) if tensor is not None else ():
            lowest = dims.bounds(dim)[0]
            if lowest is None or lowest < 0:
                yield dims.at_least(dim, 0, f"{dim} >= 0, a size that {view.describe()} gives")


def _broadcast(view: NodeView) -> Iterator[Guard]:
    onto = view.out_shape()
    for index, name in enumerate(view.node.inputs):
        if name:
            yield from fits(view, view.shape(index), onto)


def _indices(view: NodeView) -> Iterator[Guard]:
    """Indices that are constant are in their ranges. Raises: ShapeError for one that can't be."""
    place, ranges = (0, ()) if view.node.domain else index_ranges(view.graph, view.node)
    indices = view.const(place) if ranges else None
    if indices is None or not indices.size:
        return
    rows = indices.reshape(-1, len(ranges))
    for column, (first, end) in enumerate(ranges):
        lowest, highest = int(rows[:, column].min()), int(rows[:, column].max())
        why = f"indices {lowest} to {highest} lie in [{first}, {end}) in {view.describe()}"
        yield dims.at_least(lowest, first, why)
        yield dims.at_least(end, highest + 1, why)
