"""Convolutions of one channel in or out a group, depthwise ones above all: their strips, which are
what an invocation computes of a channel, and the dispatch."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from engine.dims import Dim, Guard, at_least, ceildiv, divisible, is_static
from engine.ops import KernelCall, Lowering, Stage, linear
from engine.ops._clocks import clearly_fastest, loop_clocks, parts_clocks
from engine.ops._conv_choice import software_columns
from engine.ops._conv_strip import Strip, strip_rows
from engine.ops._convolution import Geometry, trips_of
from engine.ops._variants import choose
from engine.windows import Windows

_TILES = ((4, 4), (4, 8), (2, 7), (3, 7), (4, 7), (5, 7), (2, 4), (2, 8))
"""Rows and columns of strips for GPUs where sizes are known or likely: maps are often multiples of
seven."""
NEAR = 1.1
"""How much longer a strip may seem to take than another one that it is as fast as."""
MOST_TAPS = 25
"""Of a plane of a kernel that text is unrolled over."""
MOST_VALUES = 57
"""Sums, weights, and pixels of a row: of more, four waves of a small GPU have no room."""
_ENTER, _STORE, _STORE_OF_FOUR = 130, 12, 6
"""Instructions of a strip but for its sums: in all, and for each pixel stored."""


def usual_strip(win: Windows, software: bool) -> Strip:
    """The strip that is taken where sizes are no reason for another; costs count it.

    `kernel` is None where the text is not unrolled over it.
    """
    _, height, width = win.kernel
    _, step_h, step_w = win.strides
    unrolled = max(step_h, step_w) <= 2 and max(win.dilations[1:]) == 1
    if not (unrolled and isinstance(height, int) and isinstance(width, int)):
        return Strip(1, 4)
    if height * width > MOST_TAPS:
        return Strip(1, 4)
    rolled = software and win.kernel[0] == win.size[0] == win.out[0] == 1 and win.out[1] != 1
    rows = strip_rows(step_h, win.out[1], rolled)
    columns = 4 if rows > 1 else 8
    return Strip(rows, columns, (height, width), (step_h, step_w), rolled=rolled)


def is_single(geo: Geometry) -> bool:
    """Whether strips suit a convolution of one output channel a group.

    Register tiles have four channels at least, of which three would be idle. Planes are two axes,
    the third is left to the channels.
    """
    win = geo.win
    flat = win.size[0] == win.out[0] == win.kernel[0] == 1 and win.begin[0] == 0
    if not (flat and geo.group_out == 1 and isinstance(geo.group_in, int)):
        return False
    depthwise = geo.group_in == 1 < geo.group
    return not (depthwise or win.kernel == (1, 1, 1) or any(win.outside))


def channels_first(geo: Geometry) -> Geometry:
    """The same, the input channels of a group as the first axis of its windows."""
    win, channels = geo.win, geo.group_in
    first = replace(
        win,
        size=(channels, *win.size[1:]),
        kernel=(channels, *win.kernel[1:]),
        # an axis with one window of one element may declare any of these
        strides=(1, *win.strides[1:]),
        dilations=(1, *win.dilations[1:]),
        end=(0, *win.end[1:]),
    )
    return replace(geo, win=first, group_in=1, single=True)


def _strips(view: Lowering, win: Windows, planes: Dim) -> list[tuple[Strip, tuple[Guard, ...]]]:
    """Strips of rows by columns, best first: large ones where enough of them are left."""
    software = view.target.software
    strip = usual_strip(win, software)
    if strip.kernel is None:
        return _strips_by_rows(win, planes)
    if not software:
        strip = _fastest(strip, win, *map(view.likely, (planes, *win.out[1:])))
    strip = replace(strip, edge_rows=win.edges(strip.rows, axis=1), software=software)
    whole, pad = divisible(win.out[2], 4), win.begin[2]
    if not software:
        # a test on one side compares with what is the same for all invocations
        top, left = (n if isinstance(n, int) else None for n in win.begin[1:])
        strip = replace(strip, begin=(top, left))
    if software and software_columns(win.out[2]) == 7 and whole.known is False:
        strip = replace(strip, columns=7)
    found: list[tuple[Strip, tuple[Guard, ...]]] = [(strip, ())]
    if strip.columns % 4 == 0:
        found.insert(0, (replace(strip, wide=True), (whole,)))
    if strip.columns % 4 == 0 and isinstance(pad, int):
        fours = replace(strip, wide=True, lead=pad % 4)
        guards = (whole, divisible(win.size[2], 4))
        eights = planes * ceildiv(win.out[1], 4 // strip.strides[0]) * ceildiv(win.out[2], 8)
        many = (*guards, at_least(eights, 4096), at_least(win.out[2], 16))
        found.insert(0, (fours, guards))
        if not is_static((planes, *win.out)) and _values(replace(strip, columns=8)) <= MOST_VALUES:
            found.insert(0, (replace(fours, columns=8), many))
    # of fours there are few edges: one text for all sizes is compiled once
    return [
        (replace(s, edges=win.edges(s.columns, s.wide, any_size=software and s.wide)), when)
        for s, when in found
    ]


def _values(strip: Strip) -> int:
    """Numbers that an invocation holds at once: sums, weights, and the pixels of a row."""
    assert strip.kernel is not None
    _, row = strip.seen(strip.kernel, strip.strides)
    return strip.rows * strip.columns + row + prod(strip.kernel)


def _loads(strip: Strip) -> int:
    """Pixels and weights that an invocation loads."""
    assert strip.kernel is not None
    return prod(strip.seen(strip.kernel, strip.strides)) + prod(strip.kernel)


def _fastest(
    usual: Strip, win: Windows, planes: int | None, out_h: int | None, out_w: int | None
) -> Strip:
    """The strip that a small GPU computes fastest, of those about as fast the one that loads least,
    as misses of caches are not counted; the usual one for sizes unheard of."""
    if planes is None or out_h is None or out_w is None:
        return usual
    fitting = _fitting(usual, win)
    clocks = [_clocks(strip, win, planes, out_h, out_w) for strip in fitting]
    near = [s for s, took in zip(fitting, clocks, strict=True) if took <= NEAR * min(clocks)]
    return min(near, key=lambda strip: _loads(strip) * _count(strip, planes, out_h, out_w))


def _fitting(usual: Strip, win: Windows) -> list[Strip]:
    """The usual strip, and those of `_TILES` that leave four waves of a small GPU room."""
    # in rows of open length any pixel of seven may be the last one, and is tested for it
    sizes = [t for t in _TILES if t[1] % 4 == 0 or isinstance(win.out[2], int)]
    tiles = [replace(usual, rows=rows, columns=columns) for rows, columns in sizes]
    return [usual, *(t for t in tiles if _values(t) <= MOST_VALUES)]


def parts_of_single(view: Lowering, geo: Geometry) -> int:
    """Parts of the input channels, each a sum of its own, that a small GPU computes fastest."""
    usual = usual_strip(geo.win, view.target.software)
    if not geo.single or geo.group > 1 or view.target.software or usual.kernel is None:
        return 1
    batch, out_h, out_w = map(view.likely, (geo.batch, *geo.win.out[1:]))
    if batch is None or out_h is None or out_w is None:
        return 1
    channels = geo.win.kernel[0]
    assert isinstance(channels, int)

    def clocks(parts: int) -> int:
        win = geo.in_parts(parts).win
        strips = _fitting(usual, win)
        took = min(_clocks(strip, win, batch * parts, out_h, out_w) for strip in strips)
        return took + parts_clocks(batch * out_h * out_w, parts)

    fitting = [n for n in (1, 2, 4, 8) if channels % n == 0 and channels >= 8 * n] or [1]
    return clearly_fastest(fitting, clocks)


def _count(strip: Strip, planes: int, out_h: int, out_w: int) -> int:
    """Strips of all planes."""
    return planes * -(-out_h // strip.rows) * -(-out_w // strip.columns)


def _clocks(strip: Strip, win: Windows, planes: int, out_h: int, out_w: int) -> int:
    """Estimated clocks of a small GPU."""
    assert strip.kernel is not None
    strips = _count(strip, planes, out_h, out_w)
    depth = max(win.kernel[0], 1) if isinstance(win.kernel[0], int) else 1
    fours = strip.columns % 4 == 0 == out_w % 4
    sums = strip.rows * strip.columns
    rows, _ = strip.seen(strip.kernel, strip.strides)
    tests = rows * len(win.edges(strip.columns, fours))
    once = _ENTER + sums * (_STORE_OF_FOUR if fours else _STORE)
    trip = tests + sums * prod(strip.kernel) + once // depth
    return loop_clocks(depth, -(-strips // 64), trip, _loads(strip))


def _strips_by_rows(win: Windows, planes: Dim) -> list[tuple[Strip, tuple[Guard, ...]]]:
    """Strips of kernels that are large, dilated, or have large strides."""
    width, strides, dilation = win.kernel[2], win.strides[1:], win.dilations[2]
    if not isinstance(width, int):
        return [(Strip(1, 4), ())]
    strip = Strip(1, 8, strides=(strides[0], strides[1]), width=width, dilation=dilation)
    strip = replace(strip, edges=win.edges(8))
    whole, many = divisible(win.out[2], 4), at_least(planes * win.out[1] * win.out[2], 1 << 16)
    found = []
    for columns, enough in ((8, (many, at_least(win.out[2], 16))), (4, ())):
        found += [
            (replace(strip, columns=columns, wide=True), (*enough, whole)),
            (replace(strip, columns=columns), enough),
        ]
    return found


def strip_stage(view: Lowering, geo: Geometry) -> Stage:
    """The dispatch: strips of rows by columns of every channel of the output."""
    win, bias = geo.win, view.has(2) and not geo.sums
    y = geo.sums or view.node.outputs[0]
    tensors = {"x": view.node.inputs[0], "w": view.node.inputs[1], "y": y}
    if bias:
        tensors["b"] = view.node.inputs[2]
    planes = geo.batch * geo.group * geo.group_out * win.out[0]
    several = {"IMAGES": geo.batch, "MULTIPLIED": geo.group_out}
    flags = frozenset(name for name, count in several.items() if count != 1)
    flags |= frozenset(["BIAS"] * bias + ["FLAT"] * (win.out[0] == 1))
    calls = []
    for strip, guards in _strips(view, win, planes):
        tiles_w = ceildiv(win.out[2], strip.columns)
        tiles_h = ceildiv(win.out[1], strip.rows)
        count = planes * tiles_h * tiles_w
        params: dict[str, Dim | float] = {
            "tiles": count,
            "tiles_w": tiles_w,
            "columns": strip.columns,
            "tiles_h": tiles_h,
            "rows": strip.rows,
            "groups": geo.group,
            "multiplier": geo.group_out,
            **win.params(),
        }
        calls.append(
            KernelCall(
                "conv_depthwise",
                tensors,
                params,
                linear(count),
                flags=flags | frozenset(["ROLLED"] * strip.rolled),
                text={"START": strip.start(), "TAPS": strip.taps(), "STORE": strip.store()},
                trips=trips_of(geo),
                when=guards,
            )
        )
    return choose(calls)
