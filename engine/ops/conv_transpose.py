"""ConvTranspose: every output pixel gathers from the input, so nothing is written twice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from math import prod

from engine.dims import (
    Dim,
    Guard,
    at_least,
    bounds,
    ceildiv,
    divisible,
    dmax,
    is_static,
    product,
)
from engine.errors import ShapeError
from engine.ir import TensorType
from engine.ops import InferView, Lowering, NodeView, OpDef, Stage, Support, no, register
from engine.ops import _conv_loops as loops
from engine.ops._conv_calls import in_function, packed_weights, tile_call
from engine.ops._conv_choice import Loop, ways_of
from engine.ops._convolution import (
    Geometry,
    agree_kernel,
    attributes,
    check_ranks,
    geometry_support,
    kernel_of,
    pack_of,
    trips_of,
)
from engine.ops._convolution_work import conv_transpose_cpu, tiles_gpu
from engine.ops._fit import same
from engine.ops._variants import choose
from engine.ops._work import integers
from engine.target import MAX_WORKGROUPS
from engine.windows import SAME, Windows, check_positive, same_pads
from engine.work import GpuWork


def _windows(view: NodeView) -> Windows:
    """Input sizes, kernel, strides, dilations, elements cut off in front, and output sizes."""
    check_ranks(view)
    size = view.shape(0)[2:]
    rank = len(size)
    kernel = kernel_of(view)
    _, strides, dilations = attributes(view)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    extra = view.attr("output_padding") or [0] * rank
    pads = view.attr("pads") or [0] * (2 * rank)
    auto_pad = view.attr("auto_pad", "NOTSET")
    if auto_pad not in SAME and auto_pad not in ("VALID", "NOTSET", ""):
        raise ShapeError(f"{view.describe()}: auto_pad {auto_pad!r} is unknown")
    if not len(strides) == len(dilations) == len(extra) == len(pads) / 2 == rank:
        raise ShapeError(f"{view.describe()}: attributes do not fit {rank} spatial axes")
    check_positive(kernel, strides, dilations)
    wanted = view.attr("output_shape") or []
    begin: list[Dim] = []
    end: list[Dim] = []
    out: list[Dim] = []
    for axis in range(rank):
        span = (kernel[axis] - 1) * dilations[axis] + 1
        natural = (size[axis] - 1) * strides[axis] + span + extra[axis]
        if wanted or auto_pad in SAME:
            target = wanted[-rank:][axis] if wanted else size[axis] * strides[axis]
            before, after = same_pads(dmax(natural - target, 0), auto_pad)
        else:
            before, after = (0, 0) if auto_pad == "VALID" else (pads[axis], pads[rank + axis])
            target = natural - before - after
        highest = bounds(target)[1]
        if highest is not None and highest < 0:
            raise ShapeError(f"{view.describe()}: pads {pads} exceed the {natural} elements")
        begin.append(before)
        end.append(after)
        out.append(target)
    return Windows(
        tuple(size),
        kernel,
        tuple(strides),
        tuple(dilations),
        tuple(begin),
        tuple(end),
        tuple(out),
    )


def _infer(view: InferView) -> list[TensorType]:
    win = _windows(view)
    x, w = view.shape(0), view.shape(1)
    group = attributes(view)[0]
    if is_static((x[1], w[0])) and w[0] != x[1]:
        raise ShapeError(f"{view.describe()}: {x[1]} channels, the weights take {w[0]}")
    if isinstance(w[0], int) and w[0] % group:
        raise ShapeError(f"{view.describe()}: {w[0]} channels do not split into {group} groups")
    return [TensorType(view.dtype(0), (x[0], w[1] * group, *win.out))]


def _geometry(view: NodeView) -> Geometry:
    group = attributes(view)[0]
    x, w = view.shape(0), view.shape(1)
    win = _windows(view).lead(3)
    return Geometry(win, x[0], group, w[0] // group, w[1], pack_of(w[1]))


def _supports(view: NodeView) -> Support:
    if len(view.shape(0)) > 5:
        return no("kernels have at most three spatial axes")
    geo = _geometry(view)
    if any((bounds(begin)[0] or 0) < 0 for begin in geo.win.begin):
        return no("its kernel does not take negative pads")
    return geometry_support(view, geo, trips_of(geo))


def _congruence(win: Windows) -> dict[str, Dim | float]:
    """For each axis: after how many taps the same input meets again, and which tap is first."""
    params: dict[str, Dim | float] = {}
    for axis, stride, dilation in zip("dhw", win.strides, win.dilations, strict=True):
        common = math.gcd(stride, dilation)
        step = stride // common
        params[f"step_{axis}"] = step
        params[f"jump_{axis}"] = dilation // common
        params[f"inverse_{axis}"] = pow(dilation // common, -1, step) if step > 1 else 0
    return params


def _reach(win: Windows, axis: int) -> tuple[int, Dim] | None:
    """How many of the first outputs of a phase may meet elements in front of an axis, and from
    which one on they may meet some behind it. None: sizes decide."""
    kernel, begin, stride = win.kernel[axis], win.begin[axis], win.strides[axis]
    if not isinstance(kernel, int) or not isinstance(begin, int):
        return None
    before = max(((kernel - 1) * win.dilations[axis] - begin) // stride, 0)
    return before, win.size[axis] - (stride - 1 + begin) // stride


def _edges(win: Windows, columns: int, axis: int = 2) -> frozenset[int]:
    """Which of the elements that neighbouring outputs of a phase meet may be outside of an axis."""
    found, count = _reach(win, axis), ceildiv(win.out[axis], win.strides[axis])
    if found is None:
        return frozenset(range(columns))
    before, end = found
    if at_least(end, count).known:
        return frozenset(range(min(before, columns)))
    if not isinstance(end, int) or not isinstance(count, int):
        return frozenset(range(columns))
    ends = {place % columns for place in range(max(end, 0), count)}
    return frozenset(range(min(before, columns))) | ends


def _phases(view: Lowering, geo: Geometry) -> list[Stage]:
    """Workgroups of outputs that meet the same taps."""
    win = geo.win
    stages, packed = packed_weights(view, geo, transposed=True)
    rows_d, rows_h, width = (ceildiv(o, s) for o, s in zip(win.out, win.strides, strict=True))
    rows = geo.batch * rows_d * rows_h
    more = {**win.params(), **_congruence(win), "rows_d": rows_d, "rows_h": rows_h}
    loop = Loop(geo.group_in * geo.taps, 1, (1, 0), geo.group_in)
    step = "params.stride_w"
    calls = []
    for way in ways_of(geo, rows, width, loop, view.target, wide=False, step=step):
        tile = way.tile
        text = loops.phase_taps(tile, _edges(win, tile.columns), loop.at_once(tile))
        call = tile_call(
            view,
            "conv_transpose_phases",
            geo,
            way,
            rows,
            width,
            product(win.out),
            text,
            packed,
            more,
        )
        x, y, z = call.grid
        grid = (x, y * math.prod(win.strides), z)
        inside = not _edges(win, 1, 0) and not _edges(win, 1, 1)
        call = replace(call, flags=call.flags | {"INSIDE"}) if inside else in_function(call, tile)
        calls.append(replace(call, grid=grid))
    return [*stages, choose(calls)]


def _lower(view: Lowering) -> list[Stage]:
    geo = _geometry(view)
    win = geo.win
    blocks = geo.group * geo.packs * 2 * math.prod(win.strides)
    if not view.target.software and at_least(MAX_WORKGROUPS, blocks).known:
        return _phases(view, geo)
    stages, packed = packed_weights(view, geo, transposed=True)
    rows = geo.batch * win.out[0] * win.out[1] * win.strides[2]
    width = ceildiv(win.out[2], win.strides[2])
    more = {**win.params(), **_congruence(win)}
    plane = product(win.out)
    calls = []
    loop = Loop(geo.group_in * geo.taps, 1, (1, 0))
    step = "params.stride_w"
    for way in ways_of(geo, rows, width, loop, view.target, wide=False, step=step):
        text = loops.transposed_taps(way.tile)
        calls.append(
            tile_call(view, "conv_transpose", geo, way, rows, width, plane, text, packed, more)
        )
    return [*stages, choose(calls)]


def _flops(view: NodeView) -> Dim:
    return 2 * product(view.shape(0)) * product(view.shape(1)[1:])


def _gpu(view: NodeView) -> GpuWork:
    """Of the taps, only those that meet an input are summed up."""
    geo = _geometry(view)
    out, steps = integers(geo.win.out), prod(geo.win.strides)
    batch, depth = integers((geo.batch, geo.group_in * geo.taps))
    rows, width = batch * out[0] * out[1] * geo.win.strides[2], -(-out[2] // geo.win.strides[2])
    met = -(-depth // steps)
    found = tiles_gpu(view, geo, rows, width, 2 * 4 * met)
    return replace(found, fmas=found.fmas * met // max(depth, 1))


def _agree(view: NodeView) -> Iterator[Guard]:
    x, group = view.shape(0), int(view.attr("group", 1))
    yield from same(view, x[1], view.shape(1)[0])
    yield divisible(x[1], group, f"{group} divides {x[1]} in {view.describe()}")
    yield from agree_kernel(view)
    if view.has(2):
        yield from same(view, view.shape(2)[0], view.out_shape()[1])


register(
    OpDef(
        "ConvTranspose",
        since=1,
        infer=_infer,
        agree=_agree,
        supports=_supports,
        limits="more than three spatial axes; negative pads; windows longer than a loop may be",
        lower=_lower,
        epilogue=True,
        scratch=1,
        flops=_flops,
        cpu=conv_transpose_cpu,
        gpu=_gpu,
        tolerance=1e-5,
    )
)
