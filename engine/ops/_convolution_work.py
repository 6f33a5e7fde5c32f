"""What convolutions do, for costs: NumPy's routes, and the kernels' tiles."""

from __future__ import annotations

from math import prod

from cpu_fallback import convolve, convolve_depthwise, convolve_taps, convolve_winograd
from cpu_fallback.convolve import Route
from cpu_fallback.convolve_depthwise import lines, raised, width_of, windows_together
from cpu_fallback.convolve_winograd import NUMBERS, TILE, tiles
from cpu_fallback.planes import planes_of
from cpu_fallback.windows import Windows, windows
from engine.ops import NodeView
from engine.ops._conv_choice import Kind, kind_of, usual_way
from engine.ops._conv_depthwise import usual_strip
from engine.ops._conv_strip import TAPS_AT_ONCE
from engine.ops._convolution import Geometry
from engine.ops._work import FLOAT_NBYTES, ceil_to, in_shape, integers, out_shape
from engine.work import CpuWork, GpuWork, Products

FMA_OPS = 2
"""Operations of a multiply-add."""
LANES = 64
"""Invocations of a workgroup, all of which take as long as the busiest."""
RUNS_A_CALL = 64
"""How many runs of numbers NumPy begins with in the time of a call."""


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
    way = convolve.route(win, channels, each, group, view.const(1) is not None)
    written = prod(y) * FLOAT_NBYTES
    bias = 2 * written if view.has(2) else 0
    if way is Route.POINTWISE:
        products = (Products(x[0] * group, each, channels, prod(win.out)),)
        moved = (2 * prod(x) * FLOAT_NBYTES,) if prod(win.strides) > 1 or any(win.begin) else ()
        return CpuWork(8, products=products, near=bias, passes=(*moved, written))
    one = {
        Route.COLUMNS: _by_columns,
        Route.DEPTHWISE: _depthwise,
        Route.TAPS: _by_taps,
        Route.WINOGRAD: _winograd,
    }[way]
    image = one(win, channels, each, group)
    return (image + CpuWork(20, near=bias // x[0], passes=(written // x[0],))).times(x[0])


def _by_columns(win: Windows, channels: int, each: int, group: int) -> CpuWork:
    taps, row = prod(win.kernel), prod(win.out[1:])
    inner = channels * taps
    parts = convolve.bands(win, group, channels, each, FLOAT_NBYTES)
    columns = group * inner * prod(win.out)
    padded = 2 * group * channels * prod(win.size) * FLOAT_NBYTES
    in_runs = channels >= convolve.MIN_RUN or win.strides[-1] == 1
    near = columns * 2 * FLOAT_NBYTES if in_runs else 0
    rows = max(at.stop - at.start for _, at in parts)
    return CpuWork(
        12 * len(parts),
        products=(Products(group * -(-win.out[0] // rows), each, inner, rows * row),),
        strided=0 if near else columns,
        near=near + padded,
    )


def _winograd(win: Windows, channels: int, each: int, group: int) -> CpuWork:
    """Tiles copied and transformed, products of their numbers, and the way back."""
    parts = convolve_winograd.bands(win, 1, channels, each, FLOAT_NBYTES)
    count = max(rows.stop - rows.start for _, rows in parts) * tiles(win)[1]
    results = TILE * TILE
    return CpuWork(
        16 * len(parts),
        products=(
            Products(len(parts), NUMBERS, NUMBERS, channels * count),
            Products(len(parts) * NUMBERS, each, channels, count),
            Products(len(parts), each * count, NUMBERS, results),
        ),
        near=4 * FLOAT_NBYTES * (NUMBERS * channels + results * each) * count * len(parts),
    )


def _depthwise(win: Windows, channels: int, each: int, group: int) -> CpuWork:
    """Rows padded, once for each phase of the columns, and then summed up."""
    if len(win.out) == 1:
        win = raised(win)
    phases, parts = len(lines(win)), convolve_depthwise.bands(win, group, FLOAT_NBYTES)
    halo = (win.kernel[0] - 1) * win.dilations[0]
    filled = (win.out[0] * win.strides[0] + len(parts) * halo) * width_of(win) * group
    runs = prod(win.out) // windows_together(win, group) * prod(win.kernel)
    # a sum reads a pixel and a weight, and the result so far stays near
    summed = 2 * group * prod(win.out) * prod(win.kernel)
    return CpuWork(
        len(parts) * phases * 16 + runs // RUNS_A_CALL,
        near=FLOAT_NBYTES * (2 * phases * filled + summed),
    )


def _by_taps(win: Windows, channels: int, each: int, group: int) -> CpuWork:
    lie, taps = planes_of(win), prod(win.kernel)
    positions = win.out[0] * lie.row
    parts = convolve_taps.bands(win, group, channels, each, FLOAT_NBYTES)
    cut = max(1, len(parts) // group)
    product = Products(taps * group * cut, each, channels, -(-positions // cut))
    filled = channels * (win.out[0] + lie.halo) * lie.row
    added = 3 * each * taps * positions
    return CpuWork(
        len(parts) * (4 * taps + 8),
        products=(product,),
        near=FLOAT_NBYTES * group * (2 * filled + added),
    )


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


def tiles_gpu(view: NodeView, geo: Geometry, rows: int, width: int, loads: int) -> GpuWork:
    """Register tiles over `rows` rows of `width` pixels: those that stick out count.

    `loads` is how many loads of pixels a tile makes for all that it sums up, a block of channels.
    """
    way = usual_way(geo, width, view.target)
    pack, columns = way.tile.rows, way.tile.columns
    tiles = rows * -(-width // columns)
    depth, group_out = integers((geo.group_in * geo.taps, geo.group_out))
    blocks = geo.group * -(-group_out // pack)
    if not geo.shares and not view.target.software and tiles < 48:
        # of small maps invocations take a pixel of more channels; who is idle takes no one's place
        pack, blocks = geo.pack, geo.group * -(-group_out // geo.pack)
    else:
        tiles = ceil_to(tiles, way.workgroup[0])
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
    columns = usual_way(geo, out[2], view.target).tile.columns
    unrolled = step <= wide and step <= 2 and win.dilations[2] == 1
    times = -(-wide // 8)
    row = times * ((columns - 1) * step) + wide if unrolled else columns * wide
    together = 4 if in_width % 4 == 0 and columns % 4 == 0 and step == 1 else 2
    rows = batch * out[0] * out[1]
    return tiles_gpu(view, geo, rows, out[2], group_in * depth * height * -(-row // together))


def pointwise_gpu(view: NodeView, geo: Geometry) -> GpuWork:
    """Pixels by fours where planes are multiples of four."""
    batch, group_in = integers((geo.batch, geo.group_in))
    plane = prod(integers(geo.win.out))
    columns = usual_way(geo, plane, view.target).tile.columns
    fours = plane % 4 == 0 and max(geo.win.strides) == 1 and columns % 4 == 0
    loads = group_in * (columns // 4 if fours else columns)
    return tiles_gpu(view, geo, batch, plane, loads)


def strips_gpu(view: NodeView, geo: Geometry) -> GpuWork:
    """Strips of one channel: loads of the rows of the input that they see, and of the weights."""
    win = geo.win
    depth, height, width = integers(win.kernel)
    out_d, out_h, out_w = integers(win.out)
    _, step_h, step_w = win.strides
    strip = usual_strip(win, view.target.software)
    rows, columns = strip.rows, strip.columns
    (planes,) = integers((geo.batch * geo.group * geo.group_out * out_d,))
    strips = ceil_to(planes * -(-out_h // rows) * -(-out_w // columns), LANES)
    taps = height * width
    seen = prod(strip.seen((height, width), (step_h, step_w)))
    if strip.kernel is None:
        together = TAPS_AT_ONCE if win.dilations[2] == 1 else 1
        seen = height * (width + -(-width // together) * (columns - 1) * min(step_w, together))
    loads = strips * depth * (seen + taps)
    fmas = strips * depth * rows * columns * taps
    return GpuWork(1, loads=loads, ops=FMA_OPS * fmas, nbytes=prod(out_shape(view)) * FLOAT_NBYTES)


def conv_loads(view: NodeView, geo: Geometry) -> float:
    """How often an element of the input is loaded: by each block of channels, and each tap."""
    win = geo.win
    (group_out,) = integers((geo.group_out,))
    depth, height, width = integers(win.kernel)
    pixels = prod(integers(win.out)) / max(prod(integers(win.size)), 1)
    if kind_of(geo) is Kind.STRIPS:
        _, step_h, step_w = win.strides
        strip = usual_strip(win, view.target.software)
        seen = prod(strip.seen((height, width), (step_h, step_w)))
        return group_out * depth * pixels * seen / (strip.rows * strip.columns)
    front = kind_of(geo) is Kind.POINTWISE
    tile = usual_way(geo, integers(win.out)[2], view.target, front=front).tile
    row = (tile.columns - 1) * min(win.strides[2], width) + width
    return -(-group_out // tile.rows) * depth * height * pixels * row / tile.columns
