"""Slice, Split, Concat."""

from __future__ import annotations

from functools import partial

import numpy as np

from cpu_fallback.numeric import distinct_axes
from cpu_fallback.registry import NO_MEMO, Memo, Tensor, cpu_op


def _ints(values: Tensor) -> list[int]:
    return [int(v) for v in values.reshape(-1)]


def _one_axis(start: int, end: int, step: int, size: int) -> slice:
    """A NumPy slice with ONNX's clamping: a start before the first element is the first one."""
    start += size if start < 0 else 0
    end += size if end < 0 else 0
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    begin, stop = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    if size == 0 or begin <= stop:
        return slice(0, 0)
    return slice(begin, stop if stop >= 0 else None, step)


_Cut = tuple[int, int, int, int]
"""Axis, start, end and step."""


def _cuts(
    rank: int, starts: Tensor, ends: Tensor, axes: Tensor | None, steps: Tensor | None
) -> list[_Cut]:
    first, last = _ints(starts), _ints(ends)
    where = list(range(len(first))) if axes is None else _ints(axes)
    stride = [1] * len(first) if steps is None else _ints(steps)
    if not len(first) == len(last) == len(where) == len(stride):
        raise ValueError(
            f"{len(first)} starts, {len(last)} ends, {len(where)} axes and {len(stride)} steps"
        )
    found = list(zip(distinct_axes(where, rank), first, last, stride, strict=True))
    for axis, _, _, step in found:
        if step == 0:
            raise ValueError(f"the step of axis {axis} is 0")
    return found


@cpu_op("Slice", since=10)
def slice_of(
    data: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
    *,
    memo: Memo = NO_MEMO,
) -> Tensor:
    """View of `data` cut along `axes` (default: the first ones), as Python slices are.

    Raises: ValueError if a step is 0. Source: ONNX Slice-13.
    """
    places = tuple(i for i, v in enumerate((starts, ends, axes, steps), 1) if v is not None)
    cuts = memo.of(places, data.ndim, partial(_cuts, data.ndim, starts, ends, axes, steps))
    index = [slice(None)] * data.ndim
    for axis, start, end, step in cuts:
        index[axis] = _one_axis(start, end, step, data.shape[axis])
    return data[tuple(index)]


@cpu_op("Split", since=13)
def split(
    x: Tensor,
    split: Tensor | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    n_outputs: int,
) -> tuple[Tensor, ...]:
    """Views of `x` cut along `axis` into the sizes `split` ([n] int64), or evenly.

    Raises: ValueError if the sizes do not add up. Source: ONNX Split-18.
    """
    size = x.shape[axis]
    if split is not None:
        sizes = _ints(split)
    else:
        count = num_outputs or n_outputs
        if num_outputs is None and size % count:
            raise ValueError(f"{count} outputs do not divide size {size}")
        chunk = -(-size // count)
        sizes = [min(chunk, max(size - k * chunk, 0)) for k in range(count)]
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise ValueError(f"the sizes {sizes} do not add up to {size}")
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis=axis))


@cpu_op("Concat", since=4)
def concat(*inputs: Tensor, axis: int) -> Tensor:
    """The inputs one after the other along `axis`. Source: ONNX Concat-13."""
    return np.concatenate(inputs, axis=axis)
