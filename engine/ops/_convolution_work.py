"""What convolutions do, for costs: NumPy's routes, and the kernels' tiles."""

from __future__ import annotations

from math import prod

from cpu_fallback.conv import COLUMN_NBYTES, PIECE_NBYTES, Route, route
from cpu_fallback.planes import Layout, layout
from cpu_fallback.windows import Windows, windows
from engine.ops import NodeView
from engine.ops._conv_choice import software_columns
from engine.ops._convolution import Geometry
from engine.ops._work import FLOAT_NBYTES, ceil_to, in_shape, integers, out_shape
from engine.work import CpuWork, GpuWork, Products

FMA_OPS = 2
LANES = 64


def host_windows(view: NodeView) -> Windows:
    """The windows of a Conv as NumPy sees them."""
    return windows(
        in_shape(view, 0)[2:],
        in_shape(view, 1)[2:],
        auto_pad=view.attr("auto_pad", "NOTSET"),
        strides=view.attr("strides"),
        dilations=view.attr("dilations"),
        pads=view.attr("pads"),
    )


def conv_cpu(view: NodeView) -> CpuWork:
    """Conv by the route that NumPy takes."""
    x, w, y = in_shape(view, 0), in_shape(view, 1), out_shape(view)
    if not prod(y):
        return CpuWork(2)
    group = int(view.attr("group", 1))
    win, channels, each = host_windows(view), w[1], w[0] // group
    way = route(win, channels, each, group, view.dtype(0).nbytes)
    batch, parts = (x[0], group) if group > 1 else (1, x[0])
    written = prod(y) * FLOAT_NBYTES
    if way is Route.POINTWISE:
        products = (Products(x[0] * group, each, channels, prod(win.out)),)
        moved = (2 * prod(x) * FLOAT_NBYTES,) if prod(win.strides) > 1 or any(win.begin) else ()
        bias = (2 * written,) if view.has(2) else ()
        return CpuWork(8, products=products, passes=(*moved, *bias, written))
    if way is Route.EXACT:
        return _exact(view, win, channels, each, group)
    flat = _Flat(layout(win), channels, each, parts, plain=_is_plain(win))
    one = {Route.TAPS: flat.by_taps, Route.LINES: flat.by_lines}.get(way, flat.by_columns)()
    return (one + CpuWork(30, passes=(written // batch,))).times(batch)


def _is_plain(win: Windows) -> bool:
    return not any(win.begin) and set(win.strides) == {1} and layout(win).size == win.size


def _exact(view: NodeView, win: Windows, channels: int, each: int, group: int) -> CpuWork:
    x, y = in_shape(view, 0), out_shape(view)
    taps, row = prod(win.kernel), prod(win.out[1:])
    row_nbytes = FLOAT_NBYTES * x[1] * taps * row
    rows = min(max(1, COLUMN_NBYTES // max(1, row_nbytes)), win.out[0])
    pieces = -(-win.out[0] // rows)
    columns = group * channels * taps * prod(win.out)
    padded = (2 * prod(x) // x[0] * FLOAT_NBYTES,) if any(win.begin) or any(win.reach) else ()
    near = columns * 2 * FLOAT_NBYTES if win.strides[-1] == 1 else 0
    image = CpuWork(
        12 + 5 * pieces,
        products=(Products(group * pieces, each, channels * taps, rows * row),),
        strided=0 if near else columns,
        passes=(*padded, near, 3 * prod(y) // y[0] * FLOAT_NBYTES),
    )
    return image.times(x[0])


class _Flat:
    """A convolution over rows with their padding: `parts` groups (or images) of one kind."""

    def __init__(self, lay: Layout, channels: int, each: int, parts: int, plain: bool) -> None:
        self.lay, self.channels, self.each, self.parts = lay, channels, each, parts
        self.taps = len(lay.taps)
        self.positions = lay.win.out[0] * lay.row
        self.filled = 0 if plain else channels * len(lay.phases) * (lay.win.out[0] + lay.halo)
        self.filled *= lay.row * parts

    def pieces(self, per_position: int) -> tuple[int, int]:
        """How many groups are computed together, and in how many pieces each is."""
        nbytes = per_position * self.positions * FLOAT_NBYTES
        together = max(1, PIECE_NBYTES // max(1, nbytes))
        return min(together, self.parts), max(1, -(-nbytes // PIECE_NBYTES))

    def work(self, per_position: int, calls: int, near: int, products: Products) -> CpuWork:
        """`calls` and `near` bytes a position of a group, with the planes and the result."""
        together, cut = self.pieces(per_position)
        pieces = cut * -(-self.parts // together)
        columns = -(-products.columns // cut)
        each = Products(products.count * cut, products.rows, products.inner, columns)
        stored = 3 * self.each * self.positions * self.parts * FLOAT_NBYTES
        near = near * self.positions * self.parts * FLOAT_NBYTES + stored
        steps = pieces * (calls + 4 + (4 * len(self.lay.phases) if self.filled else 0))
        strided = self.lay.win.strides[-1] > 1
        near += 0 if strided else 2 * FLOAT_NBYTES * self.filled
        return CpuWork(steps, products=(each,), near=near, strided=self.filled if strided else 0)

    def by_taps(self) -> CpuWork:
        product = Products(self.taps * self.parts, self.each, self.channels, self.positions)
        per_position = 2 * self.each + self.channels * len(self.lay.phases)
        adds = 3 * self.each * (self.taps - 1)
        return self.work(per_position, 4 * self.taps, adds, product)

    def by_columns(self) -> CpuWork:
        copied = self.channels * self.taps
        product = Products(self.parts, self.each, copied, self.positions)
        per_position = self.channels * (self.taps + len(self.lay.phases)) + self.each
        return self.work(per_position, 2 * self.taps + 2, 2 * copied, product)

    def by_lines(self) -> CpuWork:
        wide, leads = self.lay.win.kernel[-1], len(self.lay.leads)
        product = Products(leads * self.parts, 1, wide, self.positions)
        lines = len(self.lay.lines)
        per_position = wide * lines + len(self.lay.phases) + 2
        near = 2 * wide * lines + 3 * (leads - 1)
        return self.work(per_position, 2 * wide * lines + 5 * leads, near, product)


def conv_transpose_cpu(view: NodeView) -> CpuWork:
    """One product, then a sum over taps into every position."""
    x, w, y = in_shape(view, 0), in_shape(view, 1), out_shape(view)
    group, taps, pixels = int(view.attr("group", 1)), prod(w[2:]), prod(x[2:])
    each = w[1] * taps
    added = x[0] * group * each * pixels
    return CpuWork(
        10 + 4 * taps,
        products=(Products(x[0] * group, each, x[1] // group, pixels),),
        strided=2 * added,
        passes=(4 * prod(y) * FLOAT_NBYTES,),
    )


def columns_of(view: NodeView, geo: Geometry, width: int) -> int:
    """Pixels of an invocation."""
    return geo.columns or (software_columns(width) if view.target.software else 4)


def tiles_gpu(view: NodeView, geo: Geometry, rows: int, width: int, loads: int) -> GpuWork:
    """Register tiles over `rows` rows of `width` pixels: those that stick out count.

    `loads` is how many loads of pixels a tile makes for all that it sums up, a block of channels.
    """
    columns = columns_of(view, geo, width)
    tiles = rows * -(-width // columns)
    depth, group_out = integers((geo.group_in * geo.taps, geo.group_out))
    lanes = LANES if not geo.columns else (8 if depth >= LANES else LANES)
    pack = geo.pack if geo.columns else min(geo.pack, 8)
    blocks = geo.group * -(-group_out // pack)
    if not geo.columns and not view.target.software and tiles < 48:
        pack, blocks = 4, geo.group * ceil_to(-(-group_out // 4), 8)
        tiles = ceil_to(tiles, 8)
    else:
        tiles = ceil_to(tiles, lanes)
    return GpuWork(
        launches=1 if view.const(1) is not None else 2,
        fmas=tiles * columns * blocks * pack * depth,
        loads=tiles * blocks * loads,
        nbytes=prod(out_shape(view)) * FLOAT_NBYTES,
    )


def dense_gpu(view: NodeView, geo: Geometry) -> GpuWork:
    """Rows of the kernel: a tile loads each pixel once where the loop over them is unrolled."""
    win = geo.win
    batch, depth, height, wide, group_in = integers((geo.batch, *win.kernel, geo.group_in))
    out, step, in_width = integers(win.out), win.strides[2], integers(win.size)[2]
    columns = columns_of(view, geo, out[2])
    unrolled = step <= wide <= 7 and step <= 2 and win.dilations[2] == 1
    row = (columns - 1) * step + wide if unrolled else columns * wide
    together = 4 if in_width % 4 == 0 and columns % 4 == 0 and step == 1 else 2
    rows = batch * out[0] * out[1]
    return tiles_gpu(view, geo, rows, out[2], group_in * depth * height * -(-row // together))


def pointwise_gpu(view: NodeView, geo: Geometry) -> GpuWork:
    """Pixels by fours where planes are multiples of four."""
    batch, group_in = integers((geo.batch, geo.group_in))
    plane = prod(integers(geo.win.out))
    columns = columns_of(view, geo, plane)
    fours = plane % 4 == 0 and max(geo.win.strides) == 1 and columns % 4 == 0
    loads = group_in * (columns // 4 if fours else columns)
    return tiles_gpu(view, geo, batch, plane, loads)


def depthwise_gpu(view: NodeView, geo: Geometry) -> GpuWork:
    """Strips of one channel: loads of the rows of the input that they see, and of the weights."""
    win = geo.win
    depth, height, width = integers(win.kernel)
    out_d, out_h, out_w = integers(win.out)
    _, step_h, step_w = win.strides
    known = max(height, width) <= 5 and max(step_h, step_w) <= 2
    rows = 1 if not known or out_h == 1 else 4 // step_h
    columns = 4 if rows > 1 or not known else 8
    (planes,) = integers((geo.batch * geo.group * geo.group_out * out_d,))
    strips = ceil_to(planes * -(-out_h // rows) * -(-out_w // columns), LANES)
    taps = height * width
    seen = ((rows - 1) * step_h + height) * ((columns - 1) * step_w + width)
    loads = strips * depth * (seen + taps if known else taps * (columns + 1))
    fmas = strips * depth * rows * columns * taps
    return GpuWork(1, loads=loads, ops=FMA_OPS * fmas, nbytes=prod(out_shape(view)) * FLOAT_NBYTES)
