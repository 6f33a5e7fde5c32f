"""Conv: pointwise, depthwise and dense kernels over channels-first tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from engine.dims import (
    Dim,
    Guard,
    at_least,
    bounds,
    ceildiv,
    divisible,
    floordiv,
    is_static,
    product,
)
from engine.dtypes import FLOAT32
from engine.errors import ShapeError
from engine.ir import Node, TensorType
from engine.ops import (
    InferView,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    _conv_winograd,
    no,
    register,
)
from engine.ops import _conv_loops as loops
from engine.ops._conv_border import OUTSIDE, folded, folds, with_border
from engine.ops._conv_calls import in_function, packed_weights, tile_call
from engine.ops._conv_choice import (
    STYLES,
    Kind,
    Loop,
    Way,
    is_pointwise,
    kind_of,
    parts_of,
    shared_tile,
    styled,
    ways_of,
)
from engine.ops._conv_depthwise import channels_first, is_single, parts_of_single, strip_stage
from engine.ops._conv_tile import Tile, indented, join
from engine.ops._convolution import (
    Geometry,
    agree_kernel,
    attributes,
    check_ranks,
    geometry_support,
    grouped,
    kernel_of,
    pack_of,
    trips_of,
)
from engine.ops._convolution_work import (
    conv_cpu,
    conv_loads,
    dense_gpu,
    pointwise_gpu,
    strips_gpu,
)
from engine.ops._fit import same
from engine.ops._matmul_calls import product_stage, sum_stage
from engine.ops._matmul_tiles import Product
from engine.ops._matmul_work import product_gpu
from engine.ops._variants import choose, shares_loads
from engine.ops._work import integers
from engine.target import Target
from engine.windows import Windows, windows
from engine.work import GpuWork

MAX_UNROLLED = 7
"""Taps of a row of a kernel that are unrolled; of wider ones, some at a time."""


def _at_once(target: Target) -> int:
    """Input channels in one trip of the loop of a pointwise kernel.

    Software sums channel by channel as fast with two, and compiles a text half as long. A GPU loads
    four while it waits.
    """
    return 2 if target.software else 4


def _windows(view: NodeView) -> Windows:
    check_ranks(view)
    _, strides, dilations = attributes(view)
    found = windows(
        view.shape(0)[2:],
        kernel_of(view),
        auto_pad=view.attr("auto_pad", "NOTSET"),
        strides=strides,
        dilations=dilations,
        pads=view.attr("pads"),
    )
    return replace(found, outside=tuple(view.attr(OUTSIDE, ())))


def _infer(view: InferView) -> list[TensorType]:
    win = _windows(view)
    x, w = view.shape(0), view.shape(1)
    group = attributes(view)[0]
    if is_static((x[1], w[1])) and w[1] * group != x[1]:
        raise ShapeError(f"{view.describe()}: {x[1]} channels, the weights take {w[1]} * {group}")
    if isinstance(w[0], int) and w[0] % group:
        raise ShapeError(f"{view.describe()}: {w[0]} channels do not split into {group} groups")
    return [TensorType(view.dtype(0), (x[0], w[0], *win.out))]


def geometry(view: NodeView) -> Geometry:
    """The convolution of a Conv node with at most three spatial axes."""
    group = attributes(view)[0]
    x, w = view.shape(0), view.shape(1)
    group_out = w[0] // group
    geo = Geometry(_windows(view).without_units(), x[0], group, w[1], group_out, pack_of(group_out))
    if is_single(geo):
        return channels_first(geo)
    if not shares_loads(view.target) or (bounds(group_out)[1] or 8) < 8:
        return geo
    rows, width, loop = _loop(geo, view.target)
    pack, columns = shared_tile(group_out, rows, width, loop)
    return replace(geo, pack=pack, shared_columns=columns)


def _loads_by_plane(view: NodeView) -> bool:
    geo = geometry(view)
    kind = kind_of(geo)
    if kind is not Kind.DENSE or view.target.software or geo.shares:
        return kind in (Kind.POINTWISE, Kind.PRODUCT)
    return isinstance(geo.win.kernel[2], int) and not geo.win.repeats(2)


def _border(view: NodeView, pad: NodeView) -> Node | str:
    geo = geometry(view)
    if kind_of(geo) is Kind.STRIPS and not geo.single:
        return "a depthwise convolution loads neighbours at once"
    return with_border(view, pad)


def supports(view: NodeView) -> Support:
    """Refuses what the kernels cannot do, or only for some sizes."""
    if len(view.shape(0)) > 5:
        return no("kernels have at most three spatial axes")
    geo = geometry(view)
    return geometry_support(view, geo, trips_of(geo, is_pointwise(geo.win)))


def _lower(view: Lowering) -> list[Stage]:
    geo = geometry(view)
    kind = kind_of(geo)
    if kind is Kind.STRIPS:
        parts = parts_of_single(view, geo)
        return _split(view, geo, parts) if parts > 1 else [strip_stage(view, geo)]
    if kind is Kind.PRODUCT:
        return [_product(view, geo)]
    size = _winograd_size(view, geo)
    if size:
        return _conv_winograd.stages(view, geo, size)
    parts = _parts(view, geo)
    if parts > 1:
        return _split(view, geo, parts)
    return _direct(view, styled(geo, view.style, view.target))


def _product(view: Lowering, geo: Geometry) -> Stage:
    """Images by channels times the weights as they are, which lie transposed."""
    between = Product(
        kind=view.dtype(0).wgsl,
        a=view.node.inputs[0],
        b=view.node.inputs[1],
        rows=geo.batch,
        columns=geo.group_out,
        inner=geo.group_in,
        b_transposed=True,
        c=view.node.inputs[2] if view.has(2) else "",
        c_strides=(0, 1),
    )
    return product_stage(between, view.node.outputs[0], view.target)


def _direct(view: Lowering, geo: Geometry) -> list[Stage]:
    stages, packed = packed_weights(view, geo, transposed=False)
    calls = _pointwise if is_pointwise(geo.win) else _dense
    return [*stages, choose(calls(view, geo, packed))]


def _split(view: Lowering, geo: Geometry, parts: int) -> list[Stage]:
    """A convolution of `parts` groups, each of some input channels and all output channels."""
    plane = product(geo.win.out)
    step = geo.group_out * plane
    sums = view.scratch(FLOAT32, (geo.batch, parts, geo.group_out, plane))
    part = geo.in_parts(parts, sums)
    stages = [strip_stage(view, part)] if geo.single else _direct(view, part)
    bias = view.node.inputs[2] if view.has(2) else ""
    y, place = view.node.outputs[0], (geo.group_out, plane, 1, 0)
    return [*stages, sum_stage(sums, y, geo.batch * step, parts, step, bias, place)]


def _parts(view: Lowering, geo: Geometry) -> int:
    """Parts of the input channels that are summed by themselves, so that more of a GPU is busy."""
    if view.style or view.target.software or geo.shares or geo.group != 1:
        return 1
    rows, width, loop = _loop(geo, view.target, view.front(0))
    sizes = (rows, width, loop.trips, geo.group_in, geo.group_out, geo.batch)
    if view.const(1) is None or not is_static(sizes) or 0 in sizes or rows * width == 1:
        return 1
    return parts_of(geo, rows, width, loop, view.target)


def _loop(geo: Geometry, target: Target, front: int = 0) -> tuple[Dim, Dim, Loop]:
    """Rows of tiles of register tiles, pixels of a row, and the inner loop.

    `front`: operators that are computed for each pixel that is loaded.
    """
    win = geo.win
    if is_pointwise(win):
        n = _at_once(target)
        loop = Loop(ceildiv(geo.group_in, n), n, (n, 0), floordiv(geo.group_in, n), front)
        return geo.batch, product(win.out), loop
    out_d, out_h, out_w = win.out
    width, step = win.kernel[2], win.strides[2]
    taps = width if isinstance(width, int) else 1
    times = -(-taps // (MAX_UNROLLED + 1))
    taps = -(-taps // times)
    trips = geo.group_in * product(win.kernel[:2]) * times
    loop = Loop(trips, taps, (min(step, taps), max(taps - step, 0)), geo.group_in, front)
    return geo.batch * out_d * out_h, out_w, loop


def _winograd_size(view: Lowering, geo: Geometry) -> int:
    """Outputs along an axis of a tile of Winograd's kernels, or 0 for direct ones.

    Transforms move six to eight times the bytes of the input and the output. An integrated GPU has
    over ten times as many operations a byte as a CPU: there these kernels run if tuned for only.
    """
    if view.style:
        size = _conv_winograd.STYLES.get(view.style, 0)
        return size if size and _conv_winograd.fits(view, geo, size) else 0
    if not view.target.software:
        return 0
    return _conv_winograd.best_size(view, geo)


def _pointwise(view: Lowering, geo: Geometry, weights: str) -> list[KernelCall]:
    win = geo.win
    plane = product(win.out)
    strided = max(win.strides) > 1
    more: dict[str, Dim | float] = {"in_plane": product(win.size)}
    if strided:
        names = ("in_h", "in_w", "out_h", "out_w", "stride_d", "stride_h", "stride_w")
        more.update(zip(names, (*win.size[1:], *win.out[1:], *win.strides), strict=True))
    _, _, loop = _loop(geo, view.target, view.front(0))
    found = ways_of(geo, geo.batch, plane, loop, view.target)
    if not geo.shares and not geo.style:
        few = Way(Tile(min(geo.pack, 8), 1), (8, 8), (at_least(2, plane),))
        found.insert(0, few.rolled if view.target.software else few)
    calls = []
    for way in found:
        n = _at_once(view.target) * (1 if view.target.software else loop.at_once(way.tile))
        whole = divisible(geo.group_in, n).known is True
        text = loops.pointwise(way.tile, strided, n, whole)
        call = tile_call(
            view, "conv_pointwise", geo, way, geo.batch, plane, plane, text, weights, more
        )
        start = call.text["START"] + "\n" + loops.start_of_row(way.tile, strided)
        flags = call.flags | {"STRIDED"} if strided else call.flags
        calls.append(replace(call, text={**call.text, "START": start}, flags=flags))
    return calls


def _dense(view: Lowering, geo: Geometry, weights: str) -> list[KernelCall]:
    win = geo.win
    rows, out_w, loop = _loop(geo, view.target, view.front(0))
    plane = product(win.out)
    calls = []
    for way in ways_of(geo, rows, out_w, loop, view.target):
        for text, wide in _inner_loops(geo, way.tile, view.target):
            when = (*way.when, *((divisible(win.size[2], 4),) if wide else ()))
            call = tile_call(
                view,
                "conv_dense",
                geo,
                replace(way, when=when),
                rows,
                out_w,
                plane,
                text,
                weights,
                win.params(),
            )
            flags = call.flags | _dense_flags(win, way.tile, text)
            more = _places(win, wide)
            if "APART" in flags:
                call = in_function(call, way.tile)
            if win.kernel[2] in range(MAX_UNROLLED + 1):
                inside = indented(loops.columns_inside(loops.edges_of(way.tile, win)))
                if "APART" in flags:
                    more["SUM"] = join([*inside, text], 0)
                else:
                    more["START"] = join([call.text["START"], *inside], 0)
            calls.append(replace(call, flags=flags, text={**call.text, **more}))
    return calls


def _dense_flags(win: Windows, tile: Tile, text: str) -> frozenset[str]:
    """How a dense kernel goes through rows, whose sum `text` is."""
    if tile.shared:
        return frozenset({"SHARED"})
    if all(map(win.keeps_inside, (0, 1))):
        return frozenset({"INSIDE"})
    return frozenset({"APART"} if tile.adds_apart and "for (" in text else ())


def _places(win: Windows, wide: bool) -> dict[str, str]:
    """How the dense kernel loads pixels, and the rows that a row of the kernel meets."""
    iz = "first_d + i32(r / params.kernel_h * params.dilation_d)"
    ih = "first_h + i32(r % params.kernel_h * params.dilation_h)"
    return {
        "PIXELS": folds(win) + loops.pixels(win, wide),
        "IZ": folded(win.repeats(0), iz, "params.in_d"),
        "IH": folded(win.repeats(1), ih, "params.in_h"),
    }


def _inner_loops(geo: Geometry, tile: Tile, target: Target) -> list[tuple[str, bool]]:
    """Texts of one row of the kernel, and whether each needs rows that are multiples of four."""
    win = geo.win
    width, step, dilation, pad = win.kernel[2], win.strides[2], win.dilations[2], win.begin[2]
    times = 1
    if not target.software:
        times = 0 if geo.group_in == 1 else _loop(geo, target)[2].at_once(tile)
    near = isinstance(width, int) and step <= width and step <= 2 and dilation == 1
    aligned = isinstance(pad, int) and tile.columns % 4 == 0
    # of four neighbours outside of the axis, those that it repeats are neighbours too
    aligned = aligned and win.repeats(2) in ("", "wrap")
    if isinstance(width, int) and (near or not tile.shared):
        leads: list[int | None] = [None]
        if isinstance(pad, int) and aligned and width > 1:
            if near or (step == 1 and pad % 4 == dilation % 4 == 0):
                leads.insert(0, pad % 4)
        edges = loops.edges_of(tile, win)
        if width > MAX_UNROLLED:
            text = partial(loops.long_window, tile, win, edges, times)
        elif tile.shared or win.repeats(2):
            text = partial(loops.guarded_window, tile, win, width, times)
        else:
            text = partial(loops.window, tile, win, width, edges, times)
        return [(text(lead=lead), lead is not None) for lead in leads]
    kernel = width if isinstance(width, int) and width <= 3 else None
    text = partial(loops.dense, (), times=times)
    found = [(text(loops.taps(tile, kernel)), False)]
    if isinstance(pad, int) and aligned and step == 1 and pad % 4 == dilation % 4 == 0:
        found.insert(0, (text(loops.taps(tile, kernel, aligned=True)), True))
    return found


def flops(view: NodeView) -> Dim:
    """Two for each multiplication and addition."""
    return 2 * product(view.out_shape()) * product(view.shape(1)[1:])


def _gpu(view: NodeView) -> GpuWork:
    geo = geometry(view)
    match kind_of(geo):
        case Kind.STRIPS:
            return strips_gpu(view, geo)
        case Kind.PRODUCT:
            return product_gpu(1, *integers((geo.batch, geo.group_in, geo.group_out)))
        case Kind.POINTWISE:
            return pointwise_gpu(view, geo)
        case Kind.DENSE:
            return dense_gpu(view, geo)


def _agree(view: NodeView) -> Iterator[Guard]:
    yield from grouped(view, view.shape(0), view.shape(1))
    yield from agree_kernel(view)
    if view.has(2):
        yield from same(view, view.shape(2)[0], view.out_shape()[1])


register(
    OpDef(
        "Conv",
        since=1,
        infer=_infer,
        agree=_agree,
        supports=supports,
        limits="more than three spatial axes; windows longer than a loop may be",
        lower=_lower,
        loads={0: lambda view: conv_loads(view, geometry(view))},
        by_plane=_loads_by_plane,
        border=_border,
        epilogue=True,
        scratch=1,
        flops=flops,
        cpu=conv_cpu,
        gpu=_gpu,
        styles=(*STYLES, *_conv_winograd.STYLES),
        tolerance=1e-5,
    )
)
