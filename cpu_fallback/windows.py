"""Sliding windows: sizes and pads of convolutions and pools, and strided views of their taps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from cpu_fallback.registry import Tensor

SAME = frozenset({"SAME_UPPER", "SAME_LOWER"})


class WindowAttributes(TypedDict, total=False):
    """How ONNX places windows; each has the default of `windows`."""

    auto_pad: str
    dilations: Sequence[int] | None
    pads: Sequence[int] | None
    strides: Sequence[int] | None


class ConvAttributes(WindowAttributes, total=False):
    """Attributes of ONNX Conv; `group` is 1 if omitted, the kernel that of the weights."""

    group: int
    kernel_shape: Sequence[int] | None


@dataclass(frozen=True)
class Windows:
    """Windows over the spatial axes of a tensor, one entry per axis.

    Attributes:
        size: elements of the input. kernel, strides, dilations: as in ONNX.
        begin: elements of padding before the input (negative: cropped).
        end: padding after it, as declared; windows may reach beyond it where sizes are rounded up.
        out: number of windows.
    """

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def reach(self) -> tuple[int, ...]:
        """Elements past the input's last that the windows touch (negative: they stop before)."""
        return tuple(
            (o - 1) * s + (k - 1) * d + 1 - b - n
            for o, s, k, d, b, n in zip(
                self.out,
                self.strides,
                self.kernel,
                self.dilations,
                self.begin,
                self.size,
                strict=True,
            )
        )

    def along(self, axis: int) -> Windows:
        """The windows of `axis` alone, over an input whose axes before it are reduced already."""
        size = self.out[:axis] + self.size[axis:]

        def only(values: tuple[int, ...], other: int) -> tuple[int, ...]:
            return tuple(v if i == axis else other for i, v in enumerate(values))

        return Windows(
            size,
            only(self.kernel, 1),
            only(self.strides, 1),
            only(self.dilations, 1),
            only(self.begin, 0),
            only(self.end, 0),
            (*size[:axis], self.out[axis], *size[axis + 1 :]),
        )

    def taps(self) -> Iterator[tuple[int, ...]]:
        """Every position in the kernel, row-major."""
        return itertools.product(*map(range, self.kernel))

    def tap_slices(self, tap: Sequence[int]) -> tuple[slice, ...]:
        """Where a tap reads in a padded input, one slice an axis."""
        return tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s) if o > 0 else slice(0, 0)
            for t, d, o, s in zip(tap, self.dilations, self.out, self.strides, strict=True)
        )

    def tap(self, tap: Sequence[int]) -> Any:
        """Index that reads a tap of every window from the last axes of a padded input."""
        return (..., *self.tap_slices(tap))

    def padded(self, x: Tensor, value: float | int, trail: int = 0) -> Tensor:
        """`x` [..., spatial, and `trail` more axes] with `value` around it, just as far as the
        windows reach; in memory in the order of `x`."""
        lead = x.ndim - len(self.size) - trail
        shape = list(x.shape[:lead])
        source: list[Any] = [slice(None)] * lead
        target: list[Any] = [slice(None)] * lead
        for size, begin, end in zip(self.size, self.begin, self.reach, strict=True):
            first, last = max(0, -begin), size - max(0, -end)
            source.append(slice(first, last))
            count = max(0, last - first)
            target.append(slice(max(0, begin), max(0, begin) + count))
            shape.append(max(0, begin) + count + max(0, end))
        shape += x.shape[x.ndim - trail :]
        x = x[tuple(source)]
        if x.shape == tuple(shape):
            return x
        result = np.full_like(x, value, shape=shape)
        result[tuple(target)] = x
        return result


def same_pads(total: int, auto_pad: str) -> tuple[int, int]:
    """`total` padding split in two: the odd one goes behind for SAME_UPPER, else in front."""
    half = total // 2
    return (half, total - half) if auto_pad == "SAME_UPPER" else (total - half, half)


def windows(
    size: Sequence[int],
    kernel: Sequence[int],
    *,
    auto_pad: str = "NOTSET",
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    ceil_mode: int = 0,
) -> Windows:
    """The windows of an ONNX convolution or pool over axes of `size` elements.

    A window that would start behind the last element is left out (`ceil_mode`).
    Raises: ValueError for an unknown `auto_pad`, or if no window fits. Source: ONNX MaxPool-22.
    """
    rank = len(size)
    strides = tuple(strides or (1,) * rank)
    dilations = tuple(dilations or (1,) * rank)
    pads = tuple(pads or (0,) * (2 * rank))
    if len(kernel) != rank or not len(strides) == len(dilations) == len(pads) / 2 == rank:
        raise ValueError(
            f"kernel {tuple(kernel)}, strides {strides}, dilations {dilations} and pads {pads} "
            f"do not fit {rank} spatial axes"
        )
    if min((*kernel, *strides, *dilations), default=1) < 1:
        raise ValueError(
            f"kernel {tuple(kernel)}, strides {strides} and dilations {dilations} must be positive"
        )
    begin, end, out = [], [], []
    for axis in range(rank):
        n, k, s = size[axis], (kernel[axis] - 1) * dilations[axis] + 1, strides[axis]
        if auto_pad in SAME:
            count = -(-n // s)
            b, e = same_pads(max((count - 1) * s + k - n, 0), auto_pad)
        elif auto_pad in ("VALID", "NOTSET", ""):
            b, e = (0, 0) if auto_pad == "VALID" else (pads[axis], pads[rank + axis])
            count = (n + b + e - k) // s + 1
            if ceil_mode and auto_pad != "VALID":
                count = min(-(-(n + b + e - k) // s) + 1, (n + b - 1) // s + 1)
        else:
            raise ValueError(f"auto_pad {auto_pad!r} is unknown")
        if count < 0:
            raise ValueError(f"a window of {k} does not fit {n} elements padded by {b} and {e}")
        begin.append(b)
        end.append(e)
        out.append(count)
    return Windows(
        tuple(size), tuple(kernel), strides, dilations, tuple(begin), tuple(end), tuple(out)
    )
