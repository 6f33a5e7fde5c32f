"""Sliding windows over symbolic sizes: what convolutions and pools share."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from engine.dims import Dim, bounds, ceildiv, dmax, dmin, floordiv
from engine.errors import ShapeError
from engine.records import dataclass

SAME = frozenset({"SAME_UPPER", "SAME_LOWER"})
Sides = tuple[bool, bool]
"""Whether something may be in front of an axis, and whether behind it."""
BOTH: Sides = (True, True)


@dataclass(frozen=True)
class Windows:
    """Windows over the spatial axes of a tensor, one entry per axis.

    Attributes:
        size: elements of the input. kernel, strides, dilations: as in ONNX.
        begin: elements of padding before the input (negative: cropped).
        end: padding after it, as declared; windows may reach beyond it where sizes are rounded up.
        out: number of windows.
        outside: what a window meets before and behind an axis: "" for nothing (or zeros), or the
            mode of a Pad that repeats the axis' own elements; () for nothing along all axes.
    """

    size: tuple[Dim, ...]
    kernel: tuple[Dim, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[Dim, ...]
    end: tuple[Dim, ...]
    out: tuple[Dim, ...]
    outside: tuple[str, ...] = ()

    def repeats(self, axis: int) -> str:
        """The mode by which an axis repeats its elements outside of itself, "" if it does not."""
        return self.outside[axis] if self.outside else ""

    def lead(self, rank: int) -> Windows:
        """The same windows with axes of one element put in front, up to `rank` of them."""
        n = rank - len(self.size)
        ones, zeros = (1,) * n, (0,) * n
        return Windows(
            ones + self.size,
            ones + self.kernel,
            ones + self.strides,
            ones + self.dilations,
            zeros + self.begin,
            zeros + self.end,
            ones + self.out,
            ("",) * n + self.outside if self.outside else (),
        )

    def without_units(self) -> Windows:
        """The same without trailing axes of one element, as three axes: rows should be long."""
        keep = len(self.size)
        while keep > 1 and self._is_unit(keep - 1):
            keep -= 1
        cut = Windows(
            self.size[:keep],
            self.kernel[:keep],
            self.strides[:keep],
            self.dilations[:keep],
            self.begin[:keep],
            self.end[:keep],
            self.out[:keep],
            self.outside[:keep],
        )
        return cut.lead(3)

    def _is_unit(self, axis: int) -> bool:
        """Whether the only window of an axis holds its only element."""
        one = self.size[axis] == self.out[axis] == self.kernel[axis] == 1
        return one and self.begin[axis] == 0

    def edges(
        self, columns: int, fours: bool = False, axis: int = -1, any_size: bool = False
    ) -> frozenset[int]:
        """The elements that `columns` neighbouring windows of an axis meet outside of it.

        Counted from the first element of the first of these windows; for any such `columns` that
        begin at a multiple of them. Windows past the last one do not count. `fours`: the axis has
        a multiple of four. Sizes that are open may make it more elements than need be, and so do
        those between the taps of a dilated kernel. `any_size`: as if sizes were open.
        """
        kernel, stride = self.kernel[axis], self.strides[axis]
        begin, end = self.begin[axis], self.end[axis]
        size, out = self.size[axis], self.out[axis]
        assert isinstance(kernel, int)
        kernel = (kernel - 1) * self.dilations[axis] + 1
        count = (columns - 1) * stride + kernel
        if not isinstance(begin, int) or not isinstance(end, int):
            return frozenset(range(count))
        found = {i for i in range(min(begin, count)) if i % stride < kernel}
        step = gcd(columns, 4) if fours else 1
        beyond, ends, most = end, range(step - 1, columns, step), end
        if isinstance(size, int) and isinstance(out, int) and not any_size:
            beyond, ends = (out - 1) * stride + kernel - begin - size, range(out - 1, out)
            most = out
        for before in range(max(min(beyond, most), 0)):
            places = {(last - before) % columns for last in ends}
            taps = range(max(kernel - beyond + before * stride, 0), kernel)
            found.update(place * stride + tap for place in places for tap in taps)
        return frozenset(found)

    def sides(self, taps: range, axis: int = -1) -> Sides:
        """On which sides some of the taps of windows may meet places outside of an axis."""
        kernel, dilation = self.kernel[axis], self.dilations[axis]
        begin, end = self.begin[axis], self.end[axis]
        assert isinstance(kernel, int)
        front = not isinstance(begin, int) or taps[0] * dilation < begin
        return front, not isinstance(end, int) or (kernel - 1 - taps[-1]) * dilation < end

    def keeps_inside(self, axis: int) -> bool:
        """Whether no window meets anything outside of an axis but its own elements once more."""
        return bool(self.repeats(axis)) or self.begin[axis] == 0 == self.end[axis]

    def params(self) -> dict[str, Dim | float]:
        """Kernel parameters of three spatial axes: in_d, in_h, in_w, out_d, ..., pad_w."""
        fields: tuple[tuple[str, Sequence[Dim]], ...] = (
            ("in", self.size),
            ("out", self.out),
            ("kernel", self.kernel),
            ("stride", self.strides),
            ("dilation", self.dilations),
            ("pad", self.begin),
        )
        return {
            f"{name}_{axis}": values[i] for name, values in fields for i, axis in enumerate("dhw")
        }


def same_pads(total: Dim, auto_pad: str) -> tuple[Dim, Dim]:
    """`total` padding split in two: the odd one goes behind for SAME_UPPER, else in front."""
    half = floordiv(total, 2)
    return (half, total - half) if auto_pad == "SAME_UPPER" else (total - half, half)


def check_positive(kernel: Sequence[Dim], strides: Sequence[int], dilations: Sequence[int]) -> None:
    """Raises: ShapeError for a window without elements, or steps that lead nowhere."""
    if any(isinstance(n, int) and n < 1 for n in (*kernel, *strides, *dilations)):
        raise ShapeError(
            f"kernel {tuple(kernel)}, strides {tuple(strides)} and dilations {tuple(dilations)} "
            "must be positive"
        )


def windows(
    size: Sequence[Dim],
    kernel: Sequence[Dim],
    *,
    auto_pad: str = "NOTSET",
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    ceil_mode: int = 0,
) -> Windows:
    """The windows of an ONNX convolution or pool over axes of `size` elements.

    A window that would start behind the last element is left out (`ceil_mode`).
    Raises: ShapeError for attributes that do not fit, or where no window can fit.
    Source: ONNX MaxPool-22, Conv-22.
    """
    rank = len(size)
    strides = tuple(strides or (1,) * rank)
    dilations = tuple(dilations or (1,) * rank)
    pads = tuple(pads or (0,) * (2 * rank))
    if len(kernel) != rank or not len(strides) == len(dilations) == len(pads) / 2 == rank:
        raise ShapeError(
            f"kernel {tuple(kernel)}, strides {strides}, dilations {dilations} and pads {pads} "
            f"do not fit {rank} spatial axes"
        )
    check_positive(kernel, strides, dilations)
    begin: list[Dim] = []
    end: list[Dim] = []
    out: list[Dim] = []
    for axis in range(rank):
        n, s = size[axis], strides[axis]
        k = (kernel[axis] - 1) * dilations[axis] + 1
        b: Dim
        e: Dim
        if auto_pad in SAME:
            count = ceildiv(n, s)
            b, e = same_pads(dmax((count - 1) * s + k - n, 0), auto_pad)
        elif auto_pad in ("VALID", "NOTSET", ""):
            b, e = (0, 0) if auto_pad == "VALID" else (pads[axis], pads[rank + axis])
            count = floordiv(n + b + e - k, s) + 1
            if ceil_mode and auto_pad != "VALID":
                count = dmin(ceildiv(n + b + e - k, s) + 1, floordiv(n + b - 1, s) + 1)
        else:
            raise ShapeError(f"auto_pad {auto_pad!r} is unknown")
        highest = bounds(count)[1]
        if highest is not None and highest < 0:
            raise ShapeError(f"a window of {k} does not fit {n} elements padded by {b} and {e}")
        begin.append(b)
        end.append(e)
        out.append(count)
    return Windows(
        tuple(size), tuple(kernel), strides, dilations, tuple(begin), tuple(end), tuple(out)
    )
