"""What convolution kernels share: their geometry, and what they can do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from engine.dims import Dim, Guard, at_least, bounds, ceildiv, divisible, floordiv, product
from engine.errors import ShapeError
from engine.ir import Shape
from engine.ops import YES, NodeView, Support, no, yes_if
from engine.ops._fit import same
from engine.records import dataclass
from engine.target import MAX_WORKGROUPS
from engine.windows import Windows


def attributes(view: NodeView) -> tuple[int, list[int] | None, list[int] | None]:
    """group, strides and dilations of a convolution."""
    return int(view.attr("group", 1)), view.attr("strides"), view.attr("dilations")


def kernel_of(view: NodeView) -> tuple[Dim, ...]:
    """Spatial kernel size: the attribute, or the shape of the weights."""
    given = view.attr("kernel_shape")
    shape = view.shape(1)[2:]
    if given is None:
        return shape
    if any(isinstance(d, int) and d != k for d, k in zip(shape, given, strict=True)):
        raise ShapeError(f"{view.describe()}: kernel_shape {given} differs from the weights")
    return tuple(given)


def agree_kernel(view: NodeView) -> Iterator[Guard]:
    """Weights have a kernel of the declared size, with elements; theirs may not be known before."""
    for dim, size in zip(view.shape(1)[2:], kernel_of(view), strict=True):
        yield from same(view, dim, size)
        if not isinstance(size, int):
            yield at_least(size, 1, f"the kernel of {view.describe()} has elements")


def check_ranks(view: NodeView) -> None:
    """Raises: ShapeError unless x and w have the same rank, at least 3."""
    if len(view.shape(0)) < 3 or len(view.shape(0)) != len(view.shape(1)):
        raise ShapeError(f"{view.describe()}: input and weights need the same rank, at least 3")


@dataclass(frozen=True)
class Geometry:
    """A convolution as the kernels see it: three spatial axes, weights in packs.

    Attributes:
        win: windows, `size` being that of the input.
        batch, group, group_in, group_out: channels are those of one group.
        pack: output channels that lie together in the packed weights.
        shared_columns: pixels of an invocation, where those of a subgroup of 8 share the loads of
            weights; 0 where they do not.
        style: the tile that tuning chose, a name in `STYLES`; "" for none.
        sums: where sums go if each `group` is a part of the input channels; "" if it is none.
        single: whether the input channels of the only output channel are the first axis of `win`.
    """

    win: Windows
    batch: Dim
    group: int
    group_in: Dim
    group_out: Dim
    pack: int
    shared_columns: int = 0
    style: str = ""
    sums: str = ""
    single: bool = False

    @property
    def shares(self) -> bool:
        """Whether the invocations of a subgroup share the loads of weights."""
        return self.shared_columns > 0

    def in_parts(self, parts: int, sums: str = "") -> Geometry:
        """The same of one group with parts of the input channels as groups, whose sums go there."""
        if not self.single:
            return replace(self, group=parts, group_in=floordiv(self.group_in, parts), sums=sums)
        size, kernel = self.win.size, self.win.kernel
        channels = floordiv(size[0], parts)
        win = replace(self.win, size=(channels, *size[1:]), kernel=(channels, *kernel[1:]))
        return replace(self, win=win, group=parts, sums=sums)

    @property
    def taps(self) -> Dim:
        return product(self.win.kernel)

    @property
    def packs(self) -> Dim:
        return ceildiv(self.group_out, self.pack)


def pack_of(group_out: Dim) -> int:
    """4 for few output channels a group, 16 where that leaves no gap, else 8."""
    if isinstance(group_out, int) and group_out % 16 == 0:
        return 16
    return 4 if (bounds(group_out)[1] or 8) <= 4 else 8


def trips_of(geo: Geometry, pointwise: bool = False) -> Dim:
    """Bound on the loop iterations of an invocation; pointwise kernels loop over channels only."""
    d, h, w = geo.win.kernel
    return geo.group_in * (1 if pointwise else d * h * (1 + w))


def geometry_support(view: NodeView, geo: Geometry, trips: Dim) -> Support:
    """Whether loops and grid are short enough."""
    limits = (
        (view.target.max_loop_trips, trips, "its reduction is longer than a loop may be"),
        (
            MAX_WORKGROUPS,
            geo.group * geo.packs * 2,
            "it has more channel blocks than a grid dimension",
        ),
    )
    guards = []
    for limit, value, reason in limits:
        guard = at_least(limit, value, f"{value} <= {limit}")
        if guard.known is False:
            return no(reason)
        if guard.known is None:
            guards.append(guard)
    return yes_if(*guards) if guards else YES


def grouped(view: NodeView, x: Shape, w: Shape) -> Iterator[Guard]:
    """Each group of output channels takes its share of the input's."""
    group = int(view.attr("group", 1))
    yield from same(view, x[1], w[1] * group)
    yield divisible(w[0], group, f"{group} divides {w[0]} in {view.describe()}")
