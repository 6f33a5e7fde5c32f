"""Slice: elements at even steps along axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.dims import Dim, bounds, ceildiv, dmax, dmin
from engine.errors import ShapeError
from engine.indexing import Place, cut_place, row_major
from engine.ir import Array, Shape, TensorType, ValueType
from engine.ops import ALL, InferView, InPlace, Lowering, NodeView, OpDef, Stage, register
from engine.ops.layout import copy_stage
from engine.ops.shape import as_content, content, content_length
from engine.records import dataclass
from engine.work import CpuWork

FAR = (1 << 31) - 1
"""Slices end at this or later to say "to the end", whatever the size."""


@dataclass(frozen=True)
class AxisSlice:
    """One axis of a Slice: elements start, start + step, ..., `count` of them."""

    start: Dim
    step: int
    count: Dim


def _from_front(at: Dim, size: Dim) -> Dim:
    """A start or end counted from the front: `size` is added where it is negative."""
    low, high = bounds(at)
    if low is not None and low >= 0:
        return at
    if high is not None and high < 0:
        return at + size
    return at + size * dmin(dmax(0 - at, 0), 1)


def _place(at: Dim, size: Dim, low: Dim, high: Dim) -> Dim:
    """A start or end counted from the front and clamped to [low, high]."""
    if isinstance(at, int) and at >= FAR:
        return high
    if at == -1 and high == size - 1:
        return high
    if isinstance(at, int) and at < 0 and high == size:
        return dmax(at + size, low) if at > -FAR else low
    if isinstance(at, int) and at <= -FAR:
        return dmin(low, high)
    return dmin(dmax(_from_front(at, size), low), high)


def axis_slice(start: Dim, end: Dim, step: int, size: Dim) -> AxisSlice:
    """A slice of an axis of `size` with ONNX's rules for negative and outlying positions."""
    if step > 0:
        begin, stop = _place(start, size, 0, size), _place(end, size, 0, size)
        count = ceildiv(stop - begin, step)
        return AxisSlice(begin, step, count if stop == size else dmax(count, 0))
    begin = _place(start, size, 0, size - 1)
    stop = _place(end, size, -1, size - 1)
    return AxisSlice(begin, step, dmax(ceildiv(begin - stop, -step), 0))


def slices(view: NodeView, shape: Shape) -> dict[int, AxisSlice] | None:
    """The sliced axes of a Slice node; None where data decide."""
    starts, ends = view.dim_list(1), view.dim_list(2)
    if starts is None or ends is None:
        return None
    axes = slice_axes(view, len(shape), len(starts))
    steps = view.ints(4) if view.has(4) else [1] * len(starts)
    if axes is None or steps is None:
        return None
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ShapeError(f"{view.describe()}: starts, ends, axes and steps differ in length")
    if 0 in steps:
        raise ShapeError(f"{view.describe()}: a step is 0")
    return {
        axis: axis_slice(start, end, step, shape[axis])
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    }


def slice_axes(view: NodeView, rank: int, count: int) -> list[int] | None:
    """The axes input of a Slice counted from the front (default: the first ones)."""
    if not view.has(3):
        return list(range(count))
    axes = view.ints(3)
    return None if axes is None else view.normal_axes(axes, rank)


def _infer_slice(view: InferView) -> list[ValueType]:
    x = view.type(0)
    if x.shape is None:
        return [x]
    found = slices(view, x.shape)
    if found is not None:
        dims = tuple(found[i].count if i in found else d for i, d in enumerate(x.shape))
        return [TensorType(x.dtype, dims)]
    length = content_length(view, 1)
    axes = None if length is None else slice_axes(view, len(x.shape), length)
    moved = set(range(len(x.shape)) if axes is None else axes)
    dims = tuple(view.fresh(f"slice{i}") if i in moved else d for i, d in enumerate(x.shape))
    return [TensorType(x.dtype, dims)]


def _evaluate_slice(view: NodeView) -> list[Array | None] | None:
    x = content(view, 0)
    found = None if x is None else slices(view, x.shape)
    if x is None or found is None:
        return None
    for axis, part in found.items():
        if not (isinstance(part.start, int) and isinstance(part.count, int)):
            return None
        x = np.take(x, [part.start + k * part.step for k in range(part.count)], axis=axis)
    return [as_content(x)]


def _lower_slice(view: Lowering) -> Sequence[Stage]:
    shape = view.shape(0)
    found = slices(view, shape) or {}
    strides, sizes = list(row_major(shape)), list(view.out_shape())
    offset: Dim = 0
    for axis, part in found.items():
        offset = offset + part.start * strides[axis]
        strides[axis] = strides[axis] * part.step
    return [copy_stage(view, sizes, strides, offset)]


def _slice_parts(view: NodeView) -> Mapping[int, Place]:
    shape, place = list(view.shape(0)), Place()
    for axis, part in sorted((slices(view, view.shape(0)) or {}).items()):
        inner = cut_place(shape, axis, part.start, part.count).within(place)
        if part.step != 1 or inner is None:
            return {}
        place, shape[axis] = inner, part.count
    return {0: place}


register(
    OpDef(
        "Slice",
        10,
        infer=_infer_slice,
        evaluate=_evaluate_slice,
        lower=_lower_slice,
        dtypes=ALL,
        shape_inputs=(1, 2, 3, 4),
        epilogue=True,
        in_place=InPlace(False, _slice_parts, lambda view, _: _lower_slice(view)),
        tolerance=0.0,
        cpu=lambda view: CpuWork(6),
    )
)
