"""Dispatches of convolutions in register tiles: packed weights, and the kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from engine.dims import Dim, ceildiv, dmin
from engine.dtypes import FLOAT32
from engine.ir import Array
from engine.ops import KernelCall, Lowering, Stage, linear
from engine.ops._conv_choice import Way, blocks_of
from engine.ops._conv_tile import Tile
from engine.ops._convolution import Geometry, trips_of
from engine.target import MAX_WORKGROUPS


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
            w = w.reshape(len(w), group, inputs, taps).swapaxes(0, 1)
            w = w.reshape(group * w.shape[1], inputs, taps)
        if transposed:
            w = w.reshape(group, w.shape[0] // group, w.shape[1], taps).swapaxes(1, 2)
            rows = w.reshape(group, w.shape[1], w.shape[2] * taps)
        else:
            rows = w.reshape(group, w.shape[0] // group, w.shape[1] * taps)
        if rows.shape[1] % pack:
            rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % pack), (0, 0)))
        blocks = rows.reshape(group, rows.shape[1] // pack, pack, rows.shape[2])
        return np.ascontiguousarray(blocks.swapaxes(2, 3)).reshape(-1)

    return make


def tile_call(
    view: Lowering,
    shader: str,
    geo: Geometry,
    way: Way,
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
    tile, (lanes, stack) = way.tile, way.workgroup
    params = _tile_params(geo, tile, rows, width, plane)
    groups = ceildiv(rows * ceildiv(width, tile.columns), lanes)
    bias = view.has(2) and not geo.sums
    tensors = {"x": view.node.inputs[0], "w": weights, "y": geo.sums or view.node.outputs[0]}
    if bias:
        tensors["b"] = view.node.inputs[2]
    return KernelCall(
        shader,
        tensors,
        {**params, **more},
        (
            dmin(groups, MAX_WORKGROUPS),
            ceildiv(geo.group * blocks_of(geo, tile), stack),
            ceildiv(groups, MAX_WORKGROUPS),
        ),
        flags=frozenset({"BIAS"}) if bias else frozenset(),
        text={
            "BUILTINS": tile.builtins,
            "ENTER": tile.enter(),
            "START": tile.start(bias),
            "SUM": text,
            "STORE": tile.store(bias),
        },
        overrides={
            "WORKGROUP_X": lanes,
            "WORKGROUP_Y": stack,
            "PACK": geo.pack,
            "ROWS": tile.rows,
        },
        trips=trips_of(geo, shader == "conv_pointwise"),
        features=frozenset({"subgroups"}) if tile.shared else frozenset(),
        when=way.when,
    )


def in_function(call: KernelCall, tile: Tile) -> KernelCall:
    """A call of `tile_call` whose kernel sums up in a function, for the sums of which it declares
    variables."""
    sums = [f"var<private> {name}: vec4<f32>;" for name in tile.sums()]
    start = tile.start("BIAS" in call.flags, declared=True)
    text = {**call.text, "START": start, "SUMS": "\n".join(sums)}
    return replace(call, flags=call.flags | {"APART"}, text=text)


def _tile_params(
    geo: Geometry, tile: Tile, rows: Dim, width: Dim, plane: Dim
) -> dict[str, Dim | float]:
    """The params that all kernels of register tiles have."""
    tiles_w, group_blocks = ceildiv(width, tile.columns), blocks_of(geo, tile)
    return {
        "tiles": rows * tiles_w,
        "tiles_w": tiles_w,
        "columns": tile.columns,
        "blocks": geo.group * group_blocks,
        "group_blocks": group_blocks,
        "groups": geo.group,
        "group_in": geo.group_in,
        "group_out": geo.group_out,
        "plane": plane,
    }
