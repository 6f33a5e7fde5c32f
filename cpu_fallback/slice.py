"""Slice, Split, Pad."""

from __future__ import annotations

import numpy as np

from cpu_fallback.registry import Tensor, cpu_op


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


@cpu_op("Slice", since=10)
def slice_of(
    data: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    """View of `data` cut along `axes` (default: the first ones), as Python slices are.

    Raises: ValueError if a step is 0. Source: ONNX Slice-13.
    """
    first, last = _ints(starts), _ints(ends)
    where = list(range(len(first))) if axes is None else _ints(axes)
    stride = [1] * len(first) if steps is None else _ints(steps)
    cut = [slice(None)] * data.ndim
    for axis, start, end, step in zip(where, first, last, stride, strict=True):
        if step == 0:
            raise ValueError(f"the step of axis {axis} is 0")
        cut[axis] = _one_axis(start, end, step, data.shape[axis])
    return data[tuple(cut)]


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


@cpu_op("Pad", since=11)
def pad(
    data: Tensor,
    pads: Tensor,
    constant_value: Tensor | None = None,
    axes: Tensor | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    """`data` with `pads` ([2 * axes] int64, before each axis, then after each) elements added.

    Negative pads cut, before the others are filled from what is left. Modes: "constant",
    "reflect", "edge", "wrap".
    Raises: ValueError for other modes. Source: ONNX Pad-25.
    """
    amounts = [(0, 0)] * data.ndim
    where = list(range(data.ndim)) if axes is None else _ints(axes)
    values = _ints(pads)
    for k, axis in enumerate(where):
        amounts[axis] = (values[k], values[k + len(where)])
    cut = tuple(
        slice(max(-a, 0), d - max(-b, 0)) for d, (a, b) in zip(data.shape, amounts, strict=True)
    )
    x = data[cut]
    grown = [(max(a, 0), max(b, 0)) for a, b in amounts]
    if mode == "constant":
        return _pad_constant(x, grown, constant_value)
    if mode not in ("reflect", "edge", "wrap"):
        raise ValueError(f"unknown mode {mode!r}")
    return np.pad(x, grown, mode=mode)  # type: ignore[call-overload, no-any-return]


def _pad_constant(x: Tensor, pads: list[tuple[int, int]], value: Tensor | None) -> Tensor:
    empty = "" if x.dtype == object else np.zeros((), x.dtype)[()]
    fill = empty if value is None else value.reshape(-1)[0]
    shape = [d + a + b for d, (a, b) in zip(x.shape, pads, strict=True)]
    out = np.full(shape, fill, dtype=x.dtype)
    out[tuple(slice(a, a + d) for d, (a, _) in zip(x.shape, pads, strict=True))] = x
    return out
