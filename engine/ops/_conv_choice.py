"""The choice of kernels and of register tiles for convolutions, for lowering and for costs."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import replace

from engine.dims import Dim, Guard, at_least, bounds, ceildiv, divisible, is_static, product
from engine.ops._clocks import CLEARLY, UNITS, clearly_fastest, loop_clocks, parts_clocks
from engine.ops._conv_tile import Tile
from engine.ops._convolution import Geometry, pack_of
from engine.ops._variants import MUCH, SHARED_BY, shares_loads
from engine.records import dataclass
from engine.target import Target
from engine.windows import Windows

_SHARED_TILES = ((16, 4), (32, 4), (16, 7), (8, 4))
_LARGE_TILES = ((16, 8), (32, 7), (32, 8))
"""Output channels and pixels of tiles with shared weights, the usual one first.

Large ones take half to nine tenths of the time, but a driver takes 0.1 s longer to compile one, and
a model has more kernels if it has both: so they are for convolutions of `MUCH` products.
"""
MOST_UNROLLED = 1024
"""Products in a trip of a large tile: one of twice as many takes a driver twice as long, and a call
as long as before."""
ENOUGH_PRODUCTS, MOST_WEIGHTS = 128, 96
"""In a trip of a loop on a GPU."""
LOAD, LOAD_FOUR = 24, 52
"""What software takes for eight loads or stores, of one or of four neighbours, in products."""


class Kind(enum.Enum):
    """The kernel that a Conv takes.

    Winograd's way, and sums over parts of the channels, are ways to run `POINTWISE` and `DENSE`
    ones that follow from more than the geometry; costs do not know of them.
    """

    STRIPS = "one channel in or out a group: strips of a channel in registers"
    PRODUCT = "images of one pixel: a product of two matrices"
    POINTWISE = "one tap and no pads: register tiles over whole planes"
    DENSE = "register tiles over rows of pixels"


def kind_of(geo: Geometry) -> Kind:
    """The kernel for a geometry."""
    if geo.single or (geo.group_in == 1 and geo.group > 1):
        return Kind.STRIPS
    if not is_pointwise(geo.win):
        return Kind.DENSE
    one_pixel = geo.group == 1 and set(geo.win.size) == {1}
    return Kind.PRODUCT if one_pixel else Kind.POINTWISE


def is_pointwise(win: Windows) -> bool:
    """Whether every window is one pixel of the input."""
    return all(
        k == 1 and b == e == 0 for k, b, e in zip(win.kernel, win.begin, win.end, strict=True)
    )


@dataclass(frozen=True)
class Loop:
    """The inner loop of a kernel of register tiles, to estimate its time.

    Attributes:
        trips: how often it runs. taps: products of a pixel and a channel in one trip.
        reach: pixels from the first to the last that `columns` neighbours meet in one trip are
            `columns * reach[0] + reach[1]`.
        channels: how many trips follow each other in the innermost loop, so that a GPU may take
            several at once.
        front: operators that are computed for each pixel that is loaded.
    """

    trips: Dim
    taps: int
    reach: tuple[int, int]
    channels: Dim = 1
    front: int = 0

    def at_once(self, tile: Tile) -> int:
        """Trips that a tile for GPUs takes at once.

        Each has a price, which `ENOUGH_PRODUCTS` make up for, and one wave alone waits for the
        loads of each. Weights must fit the registers that are shared by a wave.
        """
        weights = tile.rows * self.taps
        most = min(ENOUGH_PRODUCTS // (weights * tile.columns), MOST_WEIGHTS // weights, 8)
        return max((n for n in range(2, most + 1) if divisible(self.channels, n).known), default=1)

    def pixels(self, columns: int) -> int:
        """Pixels that a tile of `columns` meets in one trip."""
        return columns * self.reach[0] + self.reach[1]

    def clocks(self, geo: Geometry, way: Way, rows: int, width: int) -> int:
        """Estimate for a geometry of known sizes."""
        tile, (lanes, stack) = way.tile, way.workgroup
        tiles, blocks = rows * -(-width // tile.columns), geo.group * blocks_of(geo, tile)
        assert isinstance(self.trips, int) and isinstance(blocks, int)
        waves = -(-tiles // lanes) * -(-blocks // stack)
        pixels = self.pixels(tile.columns)
        loads = -(-pixels // 4) if tile.wide else pixels
        products = tile.rows * tile.columns * self.taps + pixels * self.front
        words = pixels + (tile.rows * self.taps if stack > 1 else 0)
        n = self.at_once(tile)
        return loop_clocks(-(-self.trips // n), waves, n * (products + loads) + 5, n * words)


def shared_tile(group_out: Dim, rows: Dim, width: Dim, loop: Loop) -> tuple[int, int]:
    """Output channels and pixels of an invocation, for `rows` rows of `width` pixels.

    The best tile has few loads for its products, and leaves few invocations of a subgroup and few
    channels idle. Of sizes that are open, an output of whole tiles is assumed.
    """
    trips = bounds(loop.trips)[0] or 1

    def price(tile: tuple[int, int]) -> float:
        """Products that would take as long as one that counts does."""
        channels, columns = tile
        fours = columns % 4 == 0 and divisible(width, 4).known is not False
        each = LOAD_FOUR / 4 if fours else LOAD
        shared = channels * loop.taps * LOAD_FOUR / 32
        trip = channels * columns * loop.taps + loop.pixels(columns) * each + shared
        ends = channels * (columns * each + LOAD)
        found = (trips * trip + ends) / (channels * columns)
        if isinstance(group_out, int):
            found *= -(-group_out // channels) * channels / max(group_out, 1)
        if isinstance(width, int):
            count = -(-width // columns)
            found *= count * columns / max(width, 1)
            if isinstance(rows, int):
                found *= -(-rows * count // SHARED_BY) * SHARED_BY / max(rows * count, 1)
        return found

    sure = isinstance(group_out, int), isinstance(width, int)
    fitting = [
        (channels, columns)
        for channels, columns in _SHARED_TILES
        if (sure[0] or channels <= 16) and (sure[1] or columns == 4)
    ]
    products = product((group_out, rows, width, loop.trips, loop.taps))
    if isinstance(products, int) and products >= MUCH:
        most = MOST_UNROLLED // loop.taps
        fitting += [tile for tile in _LARGE_TILES if tile[0] * tile[1] <= most]
    return min(fitting, key=price)


@dataclass(frozen=True)
class Way:
    """A register tile, and how many tiles and blocks of channels a workgroup takes."""

    tile: Tile
    workgroup: tuple[int, int]
    when: tuple[Guard, ...] = ()

    @property
    def rolled(self) -> Way:
        """The same as software drivers compile it fast."""
        return replace(self, tile=replace(self.tile, rolled=True))


STYLES = {
    "uniform-8x4": Way(Tile(8, 4), (64, 1)),
    "uniform-8x2": Way(Tile(8, 2), (64, 1)),
    "uniform-16x1": Way(Tile(16, 1), (64, 1)),
    "uniform-16x2": Way(Tile(16, 2), (64, 1)),
    "uniform-8x7": Way(Tile(8, 7), (64, 1)),
    "uniform-8x8": Way(Tile(8, 8), (64, 1)),
    "spread-4x4": Way(Tile(4, 4), (8, 8)),
    **{
        f"subgroup-{rows}x{columns}": Way(Tile(rows, columns, shared=True), (SHARED_BY, 1))
        for rows, columns in (*_SHARED_TILES, *_LARGE_TILES)
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
        return replace(geo, pack=tile.rows, shared_columns=tile.columns) if fits else geo
    pack = max(pack_of(geo.group_out), tile.rows) if most > 4 else 4
    return replace(geo, pack=pack, shared_columns=0, style=style)


def _styled_ways(geo: Geometry, width: Dim, wide: bool, step: str) -> list[Way]:
    """The tile of a style, first as one that stores four pixels at once."""
    wanted = STYLES[geo.style]
    tile = replace(wanted.tile, rows=min(wanted.tile.rows, geo.pack), step=step)
    whole = divisible(width, 4)
    found = [replace(wanted, tile=tile)]
    if wide and tile.columns % 4 == 0 and whole.known is not False:
        found.insert(0, replace(wanted, tile=replace(tile, wide=True), when=(whole,)))
    return found


def blocks_of(geo: Geometry, tile: Tile) -> Dim:
    """Blocks of channels of a group."""
    return ceildiv(geo.group_out, tile.rows)


def usual_way(
    geo: Geometry, width: Dim, target: Target, step: str = "", front: bool = False
) -> Way:
    """The tile that `ways_of` gives where sizes are no reason for another; costs count it.

    `front`: something is computed for each pixel that is loaded. Where a pixel meets each channel
    once only, tiles of more channels and fewer pixels do that less often.
    """
    if geo.shares:
        # small workgroups fill small maps best
        return Way(Tile(geo.pack, geo.shared_columns, shared=True), (SHARED_BY, 1))
    if target.software:
        return Way(Tile(min(geo.pack, 8), software_columns(width), step=step), (64, 1))
    rows, columns = (16, 2) if front and is_pointwise(geo.win) and geo.pack == 16 else (8, 4)
    return Way(Tile(min(geo.pack, rows), columns, step=step), (64, 1))


def _small_ways(geo: Geometry, step: str = "") -> tuple[Way, ...]:
    """Tiles of fewer pixels or sums than the usual one, for small maps."""
    tiles = (geo.pack, 1), (min(geo.pack, 8), 2)
    return tuple(Way(Tile(*tile, step=step), (64, 1)) for tile in tiles)


def ways_of(
    geo: Geometry,
    rows: Dim,
    width: Dim,
    loop: Loop,
    target: Target,
    wide: bool = True,
    step: str = "",
) -> list[Way]:
    """Tiles for `rows` rows of `width` pixels an output channel, best first.

    Channels are uniform over a workgroup, so that GPUs load weights once for all of it; of small
    maps an invocation takes one pixel. Tiles are so small that four waves of a small GPU fit
    beside each other.
    `step` is the distance of neighbouring pixels in the output if it is not 1 (an expression).
    """
    found = _ways_of(geo, rows, width, loop, target, wide, step)
    return [way.rolled for way in found] if target.software else found


def _ways_of(
    geo: Geometry, rows: Dim, width: Dim, loop: Loop, target: Target, wide: bool, step: str
) -> list[Way]:
    if geo.style:
        return _styled_ways(geo, width, wide, step)
    usual = usual_way(geo, width, target, step, loop.front > 0)
    columns, whole = usual.tile.columns, divisible(width, 4)
    vector = replace(usual, tile=replace(usual.tile, wide=True), when=(whole,))
    fours = [vector] if wide and columns % 4 == 0 else []
    if target.software or geo.shares:
        return [*fours, usual]
    few = _small_ways(geo, step)
    ways = [*(fours if fours and whole.known else [usual]), usual, *few]
    if is_static((rows, width, loop.trips, geo.group_out)):
        return [fastest(geo, ways, rows, width, loop)[1]]
    one, two = few
    # of 16 channels, one pixel makes as much of a load as two pixels do of 8
    found = [*fours, usual, *([two] if geo.pack < 16 else [])]
    return [*(replace(w, when=(*w.when, _busy(geo, w.tile, rows, width))) for w in found), one]


def _busy(geo: Geometry, tile: Tile, rows: Dim, width: Dim) -> Guard:
    """Whether there are so many tiles that each unit has a wave."""
    waves = ceildiv(rows * ceildiv(width, tile.columns), 64)
    return at_least(waves * geo.group * blocks_of(geo, tile), UNITS)


def fastest(
    geo: Geometry, ways: Sequence[Way], rows: Dim, width: Dim, loop: Loop
) -> tuple[int, Way]:
    """The estimated clocks of the fastest way and the way: the first unless another is clearly so.

    Sizes must be known.
    """
    assert isinstance(rows, int) and isinstance(width, int)
    times = [loop.clocks(geo, way, rows, width) for way in ways]
    best = times.index(min(times))
    best = best if CLEARLY * times[best] < times[0] else 0
    return times[best], ways[best]


def parts_of(geo: Geometry, rows: Dim, width: Dim, loop: Loop, target: Target) -> int:
    """Parts of the input channels, each a sum of its own, that a small GPU computes fastest.

    Sizes must be known.
    """
    size = geo.batch * geo.group_out * product(geo.win.out)
    channels, trips = geo.group_in, loop.trips
    assert isinstance(size, int) and isinstance(channels, int) and isinstance(trips, int)
    ways = [usual_way(geo, width, target, front=loop.front > 0), *_small_ways(geo)]

    def clocks(parts: int) -> int:
        found, _ = fastest(
            geo.in_parts(parts), ways, rows, width, replace(loop, trips=trips // parts)
        )
        return found + parts_clocks(size, parts)

    fitting = [n for n in (1, 2, 4, 8) if channels % (4 * n) == 0 and channels >= 32 * n] or [1]
    return clearly_fastest(fitting, clocks)


def software_columns(width: Dim) -> int:
    """Pixels of an invocation that a CPU computes: few of them past the end of a row."""
    if not isinstance(width, int):
        return 8
    spare = {8: -(-width // 8) * 8, 7: -(-width // 7) * 7 * (1.15 if width % 4 == 0 else 1.0)}
    return min(spare, key=lambda columns: spare[columns])
