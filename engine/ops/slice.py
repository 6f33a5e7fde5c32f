"""Operators that cut and pad: Slice, Split, Pad."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.dims import Dim, bounds, ceildiv, dmax, dmin, is_static
from engine.errors import ShapeError
from engine.ir import Array, Shape, TensorType, ValueType
from engine.ops import InferView, NodeView, OpDef, object_array, register
from engine.ops.shape import as_content, content, content_length, fresh_dims

FAR = (1 << 31) - 1
"""Slices end at this or later to say "to the end", whatever the size."""


def split_sizes(view: NodeView, size: Dim) -> list[Dim] | None:
    """Sizes along the axis of each output of a Split; None where data decide."""
    count = len(view.node.outputs)
    if view.has(1):
        sizes = view.dim_list(1)
        if sizes is not None and len(sizes) != count:
            raise ShapeError(f"{view.describe()}: {len(sizes)} sizes for {count} outputs")
        return sizes
    if view.attr("num_outputs") is None and isinstance(size, int) and size % count:
        raise ShapeError(f"{view.describe()}: {count} outputs do not divide size {size}")
    chunk = ceildiv(size, count)
    return [dmin(chunk, dmax(size - k * chunk, 0)) for k in range(count)]


def _infer_split(view: InferView) -> list[ValueType]:
    x, count = view.type(0), len(view.node.outputs)
    if x.shape is None:
        return [x] * count
    axis = view.axis(len(x.shape))
    sizes = split_sizes(view, x.shape[axis]) or fresh_dims(view, "split", count)
    if is_static(sizes) and isinstance(x.shape[axis], int) and sum(sizes) != x.shape[axis]:
        raise ShapeError(f"{view.describe()}: sizes {list(sizes)} do not add up")
    return [TensorType(x.dtype, (*x.shape[:axis], s, *x.shape[axis + 1 :])) for s in sizes]


def _evaluate_split(view: NodeView) -> list[Array | None] | None:
    x = content(view, 0)
    if x is None:
        return None
    axis = view.axis(x.ndim)
    sizes = split_sizes(view, x.shape[axis])
    if sizes is None or not is_static(sizes):
        return None
    cuts = np.cumsum([int(s) for s in sizes])[:-1]  # type: ignore[arg-type]
    return [as_content(part) for part in np.split(x, cuts, axis=axis)]


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
    return None if axes is None else [view.normal_axis(a, rank) for a in axes]


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


def pad_amounts(view: NodeView, rank: int) -> list[tuple[Dim, Dim]] | None:
    """(before, after) of each axis of a Pad; None where data decide."""
    pads = view.dim_list(1)
    axes = list(range(rank)) if not view.has(3) else view.ints(3)
    if pads is None or axes is None:
        return None
    if len(pads) != 2 * len(axes):
        raise ShapeError(f"{view.describe()}: {len(pads)} pads for {len(axes)} axes")
    amounts: list[tuple[Dim, Dim]] = [(0, 0)] * rank
    for k, axis in enumerate(axes):
        amounts[view.normal_axis(axis, rank)] = (pads[k], pads[k + len(axes)])
    return amounts


def _infer_pad(view: InferView) -> list[ValueType]:
    x = view.type(0)
    if x.shape is None:
        return [x]
    amounts = pad_amounts(view, len(x.shape))
    if amounts is None:
        return [TensorType(x.dtype, fresh_dims(view, "pad", len(x.shape)))]
    dims = tuple(d + a + b for d, (a, b) in zip(x.shape, amounts, strict=True))
    if any(isinstance(d, int) and d < 0 for d in dims):
        raise ShapeError(f"{view.describe()}: pads leave sizes {list(dims)}")
    return [TensorType(x.dtype, dims)]


def _pad_mode(view: NodeView) -> str:
    return str(view.attr("mode", "constant"))


def _evaluate_pad(view: NodeView) -> list[Array | None] | None:
    x = content(view, 0)
    amounts = None if x is None else pad_amounts(view, x.ndim)
    value = content(view, 2) if view.has(2) else object_array(0)
    if x is None or amounts is None or value is None or _pad_mode(view) != "constant":
        return None
    sizes = [int(d) for pair in amounts for d in pair if isinstance(d, int) and d >= 0]
    if len(sizes) < 2 * x.ndim:
        return None
    pairs = list(zip(sizes[::2], sizes[1::2], strict=True))
    shape = [d + before + after for d, (before, after) in zip(x.shape, pairs, strict=True)]
    padded = np.full(shape, value.reshape(-1)[0], dtype=object)
    padded[tuple(slice(p[0], p[0] + d) for d, p in zip(x.shape, pairs, strict=True))] = x
    return [as_content(padded)]


register(OpDef("Split", 13, infer=_infer_split, evaluate=_evaluate_split))
register(
    OpDef("Slice", 10, infer=_infer_slice, evaluate=_evaluate_slice, shape_inputs=(1, 2, 3, 4))
)
register(OpDef("Pad", 11, infer=_infer_pad, evaluate=_evaluate_pad, shape_inputs=(1, 3)))
