"""Conv: pointwise, depthwise and dense kernels over channels-first tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine import tiles
from engine.dims import Dim, Guard, at_least, bounds, ceildiv, divisible, dmin, is_static, product
from engine.dtypes import FLOAT32
from engine.errors import ShapeError
from engine.ir import Array, TensorType
from engine.ops import (
    YES,
    InferView,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    linear,
    no,
    register,
    yes_if,
)
from engine.tiles import Strip, Tile
from engine.windows import Windows, windows

LIMIT = 65535


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


def _windows(view: NodeView) -> Windows:
    check_ranks(view)
    _, strides, dilations = attributes(view)
    return windows(
        view.shape(0)[2:],
        kernel_of(view),
        auto_pad=view.attr("auto_pad", "NOTSET"),
        strides=strides,
        dilations=dilations,
        pads=view.attr("pads"),
    )


def _infer(view: InferView) -> list[TensorType]:
    win = _windows(view)
    x, w = view.shape(0), view.shape(1)
    group = attributes(view)[0]
    if is_static((x[1], w[1])) and w[1] * group != x[1]:
        raise ShapeError(f"{view.describe()}: {x[1]} channels, the weights take {w[1]} * {group}")
    if isinstance(w[0], int) and w[0] % group:
        raise ShapeError(f"{view.describe()}: {w[0]} channels do not split into {group} groups")
    return [TensorType(view.dtype(0), (x[0], w[0], *win.out))]


@dataclass(frozen=True)
class Geometry:
    """A convolution as the kernels see it: three spatial axes, weights in packs.

    Attributes:
        win: windows, `size` being that of the input.
        batch, group, group_in, group_out: channels are those of one group.
        pack: output channels that lie together in the packed weights (4 or 8).
    """

    win: Windows
    batch: Dim
    group: int
    group_in: Dim
    group_out: Dim
    pack: int

    @property
    def taps(self) -> Dim:
        return product(self.win.kernel)

    @property
    def packs(self) -> Dim:
        return ceildiv(self.group_out, self.pack)


def pack_of(group_out: Dim) -> int:
    """4 for few output channels a group, else 8."""
    return 4 if (bounds(group_out)[1] or 8) <= 4 else 8


def without_units(win: Windows) -> Windows:
    """`win` without trailing axes of one element, as three axes: rows should be long."""
    rank = len(win.size)
    keep = rank
    while keep > 1 and (win.size[keep - 1], win.out[keep - 1], win.kernel[keep - 1]) == (1, 1, 1):
        keep -= 1
    cut = (win.size, win.kernel, win.strides, win.dilations, win.begin, win.end, win.out)
    return Windows(*(t[:keep] for t in cut)).lead(3)  # type: ignore[arg-type]


def geometry(view: NodeView) -> Geometry:
    """The convolution of a Conv node with at most three spatial axes."""
    group = attributes(view)[0]
    x, w = view.shape(0), view.shape(1)
    group_out = w[0] // group
    return Geometry(
        without_units(_windows(view)), x[0], group, w[1], group_out, pack_of(group_out)
    )


def _is_pointwise(win: Windows) -> bool:
    return all(
        k == s == 1 and b == e == 0
        for k, s, b, e in zip(win.kernel, win.strides, win.begin, win.end, strict=True)
    )


def _is_depthwise(geo: Geometry) -> bool:
    return geo.group_in == 1 and geo.group > 1


def trips_of(geo: Geometry) -> Dim:
    """Bound on the loop iterations of an invocation of any of the kernels."""
    d, h, w = geo.win.kernel
    if _is_pointwise(geo.win):
        return geo.group_in
    return geo.group_in * (1 + d * (1 + h * (1 + w)))


def supports(view: NodeView) -> Support:
    """Refuses what the kernels cannot do, or only for some sizes."""
    if len(view.shape(0)) > 5:
        return no("kernels have at most three spatial axes")
    geo = geometry(view)
    limits = (
        (view.target.max_loop_trips, trips_of(geo), "its reduction is longer than a loop may be"),
        (LIMIT, geo.group * geo.packs * 2, "it has more channel blocks than a grid dimension"),
    )
    guards = []
    for limit, value, reason in limits:
        guard = at_least(limit, value, f"{value} <= {limit}")
        if guard.known is False:
            return no(reason)
        if guard.known is None:
            guards.append(guard)
    return yes_if(*guards) if guards else YES


def _lower(view: Lowering) -> list[Stage]:
    geo = geometry(view)
    if _is_depthwise(geo):
        return [_depthwise(view, geo)]
    stages, packed = packed_weights(view, geo, transposed=False)
    calls = _pointwise(view, geo, packed) if _is_pointwise(geo.win) else _dense(view, geo, packed)
    return [*stages, alternatives(calls)]


def alternatives(calls: Sequence[KernelCall]) -> Stage:
    """Calls that can run for some sizes, up to the first that runs for all of them."""
    kept = []
    for call in calls:
        if any(g.known is False for g in call.when):
            continue
        open_guards = tuple(g for g in call.when if g.known is None)
        kept.append(replace(call, when=open_guards))
        if not open_guards:
            break
    return tuple(kept)


def packed_weights(view: Lowering, geo: Geometry, transposed: bool) -> tuple[list[Stage], str]:
    """Dispatches that pack weights (none for constants), and the name of the packed ones."""
    if view.const(1) is not None:
        recipe = f"conv-pack{geo.pack}-g{geo.group}{'-transposed' if transposed else ''}"
        return [], view.derived(1, recipe, _packer(geo.group, geo.pack, transposed))
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


def _packer(group: int, pack: int, transposed: bool) -> Callable[[Array], Array]:
    def make(w: Array) -> Array:
        taps = int(np.prod(w.shape[2:]))
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


def variants(geo: Geometry, rows: Dim, width: Dim) -> list[Variant]:
    """Tiles for `rows` rows of `width` pixels an output channel, best first.

    Large tiles reuse most, but need enough invocations; small maps spread a workgroup over
    channels. Rows of one block stay uniform over a workgroup where there are tiles enough.
    """
    pack = geo.pack
    blocks = geo.group * geo.packs
    many8, many4 = rows * ceildiv(width, 8), rows * ceildiv(width, 4)
    large = (at_least(many8 * blocks, 2048), at_least(many8, 48))
    short = isinstance(width, int) and width < 24 and 1 <= width % 8 <= 4
    whole = divisible(width, 4)
    found = []
    if not short:
        found += [
            Variant(Tile(pack, 8, True), (64, 1), (*large, whole)),
            Variant(Tile(pack, 8), (64, 1), large),
        ]
    return [
        *found,
        Variant(Tile(pack, 4, True), (64, 1), (at_least(many4, 48), whole)),
        Variant(Tile(pack, 4), (64, 1), (at_least(many4, 48),)),
        Variant(Tile(4, 4), (8, 8)),
    ]


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
    group_blocks = geo.packs * (geo.pack // tile.rows)
    groups = ceildiv(rows * tiles_w, lanes)
    bias = view.has(2)
    tensors = {"x": view.node.inputs[0], "w": weights, "y": view.node.outputs[0]}
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
        (dmin(groups, LIMIT), ceildiv(geo.group * group_blocks, stack), ceildiv(groups, LIMIT)),
        flags=frozenset({"BIAS"}) if bias else frozenset(),
        text={"START": tile.start(bias), "TAPS": text, "STORE": tile.store()},
        overrides={
            "WORKGROUP_X": lanes,
            "WORKGROUP_Y": stack,
            "PACK": geo.pack,
            "ROWS": tile.rows,
        },
        trips=trips_of(geo),
        when=variant.when,
    )


def _pointwise(view: Lowering, geo: Geometry, weights: str) -> list[KernelCall]:
    plane = product(geo.win.out)
    tiny = Variant(Tile(geo.pack, 1), (8, 8), (at_least(2, plane),))
    calls = []
    for variant in (tiny, *variants(geo, geo.batch, plane)):
        text = tiles.pointwise(variant.tile)
        call = tile_call(
            view, "conv_pointwise", geo, variant, geo.batch, plane, plane, text, weights, {}
        )
        start = call.text["START"] + "\n" + tiles.offsets(variant.tile)
        calls.append(replace(call, text={**call.text, "START": start}))
    return calls


def spatial_params(win: Windows) -> dict[str, Dim | float]:
    """Sizes, kernel, strides, dilations and front pads of three spatial axes."""
    fields: tuple[tuple[str, Sequence[Dim]], ...] = (
        ("in", win.size),
        ("out", win.out),
        ("kernel", win.kernel),
        ("stride", win.strides),
        ("dilation", win.dilations),
        ("pad", win.begin),
    )
    return {
        f"{name}_{axis}": values[i] for name, values in fields for i, axis in enumerate("dhw")
    }


def _dense(view: Lowering, geo: Geometry, weights: str) -> list[KernelCall]:
    win = geo.win
    out_d, out_h, out_w = win.out
    rows = geo.batch * out_d * out_h
    width, step = win.kernel[2], win.strides[2]
    known = isinstance(width, int) and step <= width <= 7 and step <= 2 and win.dilations[2] == 1
    calls = []
    for variant in variants(geo, rows, out_w):
        tile = variant.tile
        text = tiles.window(tile, int(width), step) if known else tiles.taps(tile)  # type: ignore[call-overload]
        calls.append(
            tile_call(
                view,
                "conv_dense",
                geo,
                variant,
                rows,
                out_w,
                product(win.out),
                text,
                weights,
                spatial_params(win),
            )
        )
    return calls


def _strips(win: Windows) -> list[tuple[Strip, tuple[Guard, ...]]]:
    _, height, width = win.kernel
    strides = win.strides[1:]
    if not (
        isinstance(height, int)
        and isinstance(width, int)
        and max(height, width) <= 5
        and max(strides) <= 2
        and max(win.dilations[1:]) == 1
    ):
        return [(Strip(1, 4), ())]
    rows = 1 if win.out[1] == 1 else 4 // strides[0]
    strip = Strip(rows, 4 if rows > 1 else 8, (height, width), (strides[0], strides[1]))
    return [(replace(strip, wide=True), (divisible(win.out[2], 4),)), (strip, ())]


def _depthwise(view: Lowering, geo: Geometry) -> Stage:
    win, bias = geo.win, view.has(2)
    tensors = {"x": view.node.inputs[0], "w": view.node.inputs[1], "y": view.node.outputs[0]}
    if bias:
        tensors["b"] = view.node.inputs[2]
    calls = []
    for strip, guards in _strips(win):
        tiles_w = ceildiv(win.out[2], strip.columns)
        tiles_h = ceildiv(win.out[1], strip.rows)
        count = geo.batch * geo.group * geo.group_out * win.out[0] * tiles_h * tiles_w
        params: dict[str, Dim | float] = {
            "tiles": count,
            "tiles_w": tiles_w,
            "columns": strip.columns,
            "tiles_h": tiles_h,
            "rows": strip.rows,
            "groups": geo.group,
            "multiplier": geo.group_out,
            **spatial_params(win),
        }
        calls.append(
            KernelCall(
                "conv_depthwise",
                tensors,
                params,
                linear(count),
                flags=frozenset({"BIAS"}) if bias else frozenset(),
                text={"START": strip.start(), "TAPS": strip.taps(), "STORE": strip.store()},
                trips=trips_of(geo),
                when=guards,
            )
        )
    return alternatives(calls)


def flops(view: NodeView) -> Dim:
    """Two for each multiplication and addition."""
    return 2 * product(view.out_shape()) * product(view.shape(1)[1:])


register(
    OpDef(
        "Conv",
        since=1,
        infer=_infer,
        supports=supports,
        lower=_lower,
        epilogue=True,
        scratch=1,
        flops=flops,
        tolerance=1e-5,
    )
)
