"""Pad."""

from __future__ import annotations

import functools

import numpy as np

from cpu_fallback.numeric import distinct_axes
from cpu_fallback.registry import Tensor, cpu_op
from cpu_fallback.sweeps import taken


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

    Negative pads cut: what was padded with a constant too, else before the others are filled from
    what is left. Modes: "constant", "reflect", "edge", "wrap".
    Raises: ValueError for other modes, where more is cut than there is, or for a `constant_value`
    that is not one value. Source: ONNX Pad-25.
    """
    if constant_value is not None and constant_value.size != 1:
        raise ValueError(f"constant_value is one value, not {constant_value.size}")
    amounts = [(0, 0)] * data.ndim
    given = range(data.ndim) if axes is None else axes.reshape(-1)
    where = distinct_axes(given, data.ndim)
    values = [int(v) for v in pads.reshape(-1)]
    if len(values) != 2 * len(where):
        raise ValueError(f"{len(values)} pads for {len(where)} axes")
    for k, axis in enumerate(where):
        amounts[axis] = (values[k], values[k + len(where)])
    for size, (before, after) in zip(data.shape, amounts, strict=True):
        left = min(before, 0) + min(after, 0) if mode != "constant" else before + after
        if size + left < 0:
            raise ValueError(f"pads {before} and {after} cut more than the {size} elements")
    if mode == "constant":
        return _pad_constant(data, amounts, constant_value)
    cut = tuple(
        slice(max(-a, 0), d - max(-b, 0)) for d, (a, b) in zip(data.shape, amounts, strict=True)
    )
    x = data[cut]
    grown = [(max(a, 0), max(b, 0)) for a, b in amounts]
    if mode not in ("reflect", "edge", "wrap"):
        raise ValueError(f"unknown mode {mode!r}")
    for axis, (before, after) in enumerate(grown):
        if before or after:
            size = x.shape[axis]
            places = _places(mode, size, before, after)
            ends = (taken(x, places[:before], axis), taken(x, places[before + size :], axis))
            x = np.concatenate((ends[0], x, ends[1]), axis)
    return x if any(map(any, grown)) else x.copy(order="K")


@functools.lru_cache(maxsize=256)
def _places(mode: str, size: int, before: int, after: int) -> Tensor:
    """Which element of an axis each element of the padded one is. Raises: ValueError for none."""
    if not size:
        raise ValueError(f"an empty axis can't be padded by {mode!r}")
    places = np.arange(-before, size + after)
    if mode == "edge":
        places = places.clip(0, size - 1)
    elif mode == "wrap":
        places %= size
    else:
        places %= max(2 * size - 2, 1)
        places = np.minimum(places, 2 * size - 2 - places)
    places.flags.writeable = False
    return places


def _pad_constant(x: Tensor, pads: list[tuple[int, int]], value: Tensor | None) -> Tensor:
    empty = "" if x.dtype == object else np.zeros((), x.dtype)[()]
    fill = empty if value is None else value.reshape(-1)[0]
    shape = [d + a + b for d, (a, b) in zip(x.shape, pads, strict=True)]
    out = np.full_like(x, fill, shape=shape)
    spans = [
        (max(a, 0), min(a + d, size)) for d, (a, _), size in zip(x.shape, pads, shape, strict=True)
    ]
    if all(first < last for first, last in spans):
        target = tuple(slice(first, last) for first, last in spans)
        source = (
            slice(first - a, last - a) for (first, last), (a, _) in zip(spans, pads, strict=True)
        )
        out[target] = x[tuple(source)]
    return out
