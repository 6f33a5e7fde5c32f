"""What convolution kernels share: geometry, packed weights, and the choice of register tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.dims import Dim, Guard, at_least, bounds, ceildiv, divisible, dmin, is_static, product
from engine.dtypes import FLOAT32
from engine.errors import ShapeError
from engine.ir import Array
from engine.ops import YES, KernelCall, Lowering, NodeView, Stage, Support, linear, no, yes_if
from engine.ops._conv_tile import Tile
from engine.ops._variants import CLEARLY, SHARED_BY, loop_clocks, parts_clocks, shares_loads
from engine.target import MAX_WORKGROUPS, Target
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
        columns: pixels of an invocation, if those of a subgroup of 8 share weights; else 0.
        style: the tile that tuning chose, a name in `STYLES`; "" for none.
        sums: where sums go if each `group` is a part of the input channels; "" if it is none.
    """

    win: Windows
    batch: Dim
    group: int
    group_in: Dim
    group_out: Dim
    pack: int
    columns: int = 0
    style: str = ""
    sums: str = ""

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


_SHARED_TILES = ((16, 4, 100), (16, 7, 95), (8, 4, 70))
"""Output channels, pixels, and relative speed of tiles with shared weights.

Few and of moderate size: a driver takes 0.1 to 0.6 s to compile one.
"""


def shared_tile(group_out: Dim, rows: Dim, width: Dim) -> tuple[int, int]:
    """Output channels and pixels of an invocation, for `rows` rows of `width` pixels.

    The best tile is fast, and leaves few invocations of a subgroup and few channels idle.
    """

    def score(tile: tuple[int, int, int]) -> float:
        channels, columns, speed = tile
        if channels > 8 and (bounds(group_out)[1] or channels) <= channels // 2:
            return 0
        found = float(speed)
        if isinstance(group_out, int):
            found *= group_out / max(-(-group_out // channels) * channels, 1)
        if isinstance(width, int):
            count = -(-width // columns)
            found *= width / max(count * columns, 1)
            if isinstance(rows, int):
                found *= rows * count / max(-(-rows * count // SHARED_BY) * SHARED_BY, 1)
            found *= 0.9 if width % 4 and columns == 4 else 1
        elif columns != 4:
            return 0
        return found

    channels, columns, _ = max(_SHARED_TILES, key=score)
    return channels, columns


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


def packed_weights(view: Lowering, geo: Geometry, transposed: bool) -> tuple[list[Stage], str]:
    """Dispatches that pack weights (none for constants), and the name of the packed ones."""
    if view.const(1) is not None:
        kind = "-transposed" if transposed else "-parts" if geo.sums else ""
        make = _packer(geo.group, geo.pack, transposed, bool(geo.sums))
        return [], view.derived(1, f"conv-pack{geo.pack}-g{geo.group}{kind}", make)
    depth = geo.group_in * geo.taps
    size = geo.group * geo.packs * depth * geo.pack
    name = view.scratch(FLOAT32, (size,))
    rows = (geo.group_out * depth, geo.taps, geo.group_out * geo.taps)
    params: dict[str, Dim | float] = {
        "size": size,
        "packs": geo.packs,
        "group_in": geo.group_in,
        "group_out": geo.group_out,
        "taps": geo.taps,
        "group_stride": geo.group_out * depth,
        "row_stride": geo.taps if transposed else depth,
        "channel_stride": rows[2] if transposed else geo.taps,
    }
    call = KernelCall(
        "conv_pack",
        {"w": view.node.inputs[1], "packed": name},
        params,
        linear(size),
        overrides={"PACK": geo.pack},
    )
    return [(call,)], name


def _packer(group: int, pack: int, transposed: bool, parts: bool) -> Callable[[Array], Array]:
    def make(w: Array) -> Array:
        taps = int(np.prod(w.shape[2:]))
        if parts:
            # a group for each part of the input channels: all output channels, a part of each row
            inputs = w.shape[1] // group
            w = w.reshape(len(w), group, inputs, taps).swapaxes(0, 1).reshape(-1, inputs, taps)
        if transposed:
            w = w.reshape(group, w.shape[0] // group, w.shape[1], taps).swapaxes(1, 2)
            rows = w.reshape(group, w.shape[1], w.shape[2] * taps)
        else:
            rows = w.reshape(group, w.shape[0] // group, w.shape[1] * taps)
        rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % pack), (0, 0)))
        blocks = rows.reshape(group, rows.shape[1] // pack, pack, rows.shape[2])
        return np.ascontiguousarray(blocks.swapaxes(2, 3)).reshape(-1)

    return make


@dataclass(frozen=True)
class Variant:
    """A register tile, and how many tiles and blocks of channels a workgroup takes."""

    tile: Tile
    workgroup: tuple[int, int]
    when: tuple[Guard, ...] = ()


STYLES = {
    "uniform-8x4": Variant(Tile(8, 4), (64, 1)),
    "uniform-8x2": Variant(Tile(8, 2), (64, 1)),
    "uniform-16x1": Variant(Tile(16, 1), (64, 1)),
    "uniform-8x7": Variant(Tile(8, 7), (64, 1)),
    "uniform-8x8": Variant(Tile(8, 8), (64, 1)),
    "spread-4x4": Variant(Tile(4, 4), (8, 8)),
    **{
        f"subgroup-{rows}x{columns}": Variant(Tile(rows, columns, shared=True), (SHARED_BY, 1))
        for rows, columns, _ in _SHARED_TILES
    },
}
"""Tiles by the names that tuning knows them by."""


def styled(geo: Geometry, style: str, target: Target) -> Geometry:
    """A geometry for a style; as it is, if there are no such tiles for it."""
    wanted = STYLES.get(style)
    if wanted is None:
        return geo
    tile, most = wanted.tile, bounds(geo.group_out)[1] or 8
    if tile.shared:
        fits = shares_loads(target) and most >= 8
        return replace(geo, pack=tile.rows, columns=tile.columns) if fits else geo
    pack = max(pack_of(geo.group_out), tile.rows) if most > 4 else 4
    return replace(geo, pack=pack, columns=0, style=style)


def _styled_variants(geo: Geometry, width: Dim, wide: bool, step: str) -> list[Variant]:
    """The tile of a style, first as one that stores four pixels at once."""
    wanted = STYLES[geo.style]
    tile = replace(wanted.tile, rows=min(wanted.tile.rows, geo.pack), step=step)
    whole = divisible(width, 4)
    found = [replace(wanted, tile=tile)]
    if wide and tile.columns % 4 == 0 and whole.known is not False:
        found.insert(0, replace(wanted, tile=replace(tile, wide=True), when=(whole,)))
    return found


@dataclass(frozen=True)
class Loop:
    """The inner loop of a kernel of register tiles, to estimate its time.

    Attributes:
        trips: how often it runs. taps: products of a pixel and a channel in one trip.
        reach: pixels from the first to the last that `columns` neighbours meet in one trip are
            `columns * reach[0] + reach[1]`.
    """

    trips: Dim
    taps: int
    reach: tuple[int, int]

    def clocks(self, geo: Geometry, variant: Variant, rows: int, width: int) -> int:
        """Estimate for a geometry of known sizes."""
        tile, (lanes, stack) = variant.tile, variant.workgroup
        tiles, blocks = rows * -(-width // tile.columns), geo.group * blocks_of(geo, tile)
        assert isinstance(self.trips, int) and isinstance(blocks, int)
        waves = -(-tiles // lanes) * -(-blocks // stack)
        pixels = tile.columns * self.reach[0] + self.reach[1]
        loads = -(-pixels // 4) if tile.wide else pixels
        products = tile.rows * tile.columns * self.taps
        words = pixels + (tile.rows * self.taps if stack > 1 else 0)
        return loop_clocks(self.trips, waves, products + loads + 5, words)


def blocks_of(geo: Geometry, tile: Tile) -> Dim:
    """Blocks of channels of a group."""
    return ceildiv(geo.group_out, tile.rows)


def variants(
    geo: Geometry,
    rows: Dim,
    width: Dim,
    loop: Loop,
    target: Target,
    wide: bool = True,
    step: str = "",
) -> list[Variant]:
    """Tiles for `rows` rows of `width` pixels an output channel, best first.

    Channels are uniform over a workgroup where there are tiles enough, so that GPUs load weights
    once for all of it; of small maps an invocation takes one pixel, or a workgroup spreads over
    channels. Tiles are so small that four waves of a small GPU fit beside each other.
    `step` is the distance of neighbouring pixels in the output if it is not 1 (an expression).
    """
    if geo.style:
        return _styled_variants(geo, width, wide, step)
    if geo.columns:
        return _shared_variants(geo, width)
    pack, whole = min(geo.pack, 8), divisible(width, 4)
    usual = Variant(Tile(pack, 4, step=step), (64, 1))
    fours = [Variant(Tile(pack, 4, True), (64, 1), (whole,))] if wide else []
    if target.software:
        columns = software_columns(width)
        large = Variant(Tile(pack, columns, step=step), (64, 1))
        vector = replace(large, tile=Tile(pack, columns, True), when=(whole,))
        return [vector, large] if wide and columns % 4 == 0 else [large]
    few = [Variant(Tile(r, c, step=step), (64, 1)) for r, c in ((geo.pack, 1), (pack, 2))]
    spread = Variant(Tile(4, 4, step=step), (8, 8))
    ways = [*(fours if fours and whole.known else [usual]), usual, *few, spread]
    if is_static((rows, width, loop.trips, geo.group_out)):
        return [fastest(geo, ways, rows, width, loop)[1]]
    many = at_least(rows * ceildiv(width, 4), 48)
    found = [replace(v, when=(*v.when, many)) for v in (*fours, usual)]
    return [*found, spread]


def fastest(
    geo: Geometry, ways: Sequence[Variant], rows: Dim, width: Dim, loop: Loop
) -> tuple[int, Variant]:
    """The estimated clocks of the fastest way and the way: the first unless another is clearly so.

    Sizes must be known.
    """
    assert isinstance(rows, int) and isinstance(width, int)
    times = [loop.clocks(geo, way, rows, width) for way in ways]
    best = times.index(min(times))
    best = best if CLEARLY * times[best] < times[0] else 0
    return times[best], ways[best]


def parts_of(geo: Geometry, rows: Dim, width: Dim, loop: Loop) -> int:
    """Parts of the input channels, each a sum of its own, that a small GPU computes fastest.

    Sizes must be known.
    """
    size = geo.batch * geo.group_out * product(geo.win.out)
    channels, trips = geo.group_in, loop.trips
    assert isinstance(size, int) and isinstance(channels, int) and isinstance(trips, int)
    pack = min(geo.pack, 8)
    tiles = (Tile(pack, 4), Tile(geo.pack, 1), Tile(pack, 2))
    ways = [*(Variant(tile, (64, 1)) for tile in tiles), Variant(Tile(4, 4), (8, 8))]

    def clocks(parts: int) -> int:
        part = replace(geo, group=parts, group_in=channels // parts)
        found, _ = fastest(part, ways, rows, width, replace(loop, trips=trips // parts))
        return found + parts_clocks(size, parts)

    fitting = [n for n in (1, 2, 4, 8) if channels % (4 * n) == 0 and channels >= 32 * n] or [1]
    best = min(fitting, key=clocks)
    return best if CLEARLY * clocks(best) < clocks(1) else 1


def software_columns(width: Dim) -> int:
    """Pixels of an invocation that a CPU computes: few of them past the end of a row."""
    if not isinstance(width, int):
        return 8
    spare = {8: -(-width // 8) * 8, 7: -(-width // 7) * 7 * (1.15 if width % 4 == 0 else 1.0)}
    return min(spare, key=lambda columns: spare[columns])


def _shared_variants(geo: Geometry, width: Dim) -> list[Variant]:
    """Small workgroups fill small maps best, but each has its price."""
    depth = bounds(geo.group_in * geo.taps)[0] or 0
    lanes = SHARED_BY if depth >= 64 else 8 * SHARED_BY
    tile = Tile(geo.pack, geo.columns, shared=True)
    found = [Variant(tile, (lanes, 1))]
    if geo.columns == 4:
        found.insert(0, Variant(replace(tile, wide=True), (lanes, 1), (divisible(width, 4),)))
    return found


def tile_call(
    view: Lowering,
    shader: str,
    geo: Geometry,
    variant: Variant,
    rows: Dim,
    width: Dim,
    plane: Dim,
    text: str,
    weights: str,
    more: dict[str, Dim | float],
) -> KernelCall:
    """A dispatch of one of the kernels that compute register tiles.

    Args:
        rows, width: rows of tiles, and pixels in a row; plane: output pixels of a channel.
        text: the unrolled inner loop. more: params beyond those that all these kernels have.
    """
    tile, (lanes, stack) = variant.tile, variant.workgroup
    tiles_w = ceildiv(width, tile.columns)
    group_blocks = blocks_of(geo, tile)
    groups = ceildiv(rows * tiles_w, lanes)
    bias = view.has(2) and not geo.sums
    tensors = {"x": view.node.inputs[0], "w": weights, "y": geo.sums or view.node.outputs[0]}
    if bias:
        tensors["b"] = view.node.inputs[2]
    params: dict[str, Dim | float] = {
        "tiles": rows * tiles_w,
        "tiles_w": tiles_w,
        "columns": tile.columns,
        "blocks": geo.group * group_blocks,
        "group_blocks": group_blocks,
        "groups": geo.group,
        "group_in": geo.group_in,
        "group_out": geo.group_out,
        "plane": plane,
        **more,
    }
    return KernelCall(
        shader,
        tensors,
        params,
        (
            dmin(groups, MAX_WORKGROUPS),
            ceildiv(geo.group * group_blocks, stack),
            ceildiv(groups, MAX_WORKGROUPS),
        ),
        flags=frozenset({"BIAS"}) if bias else frozenset(),
        text={
            "BUILTINS": tile.builtins,
            "ENTER": tile.enter(),
            "START": tile.start(bias),
            "SUM": text,
            "STORE": tile.store(),
        },
        overrides={
            "WORKGROUP_X": lanes,
            "WORKGROUP_Y": stack,
            "PACK": geo.pack,
            "ROWS": tile.rows,
        },
        trips=trips_of(geo, shader == "conv_pointwise"),
        features=frozenset({"subgroups"}) if tile.shared else frozenset(),
        when=variant.when,
    )
