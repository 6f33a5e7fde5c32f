"""Depthwise convolutions: which strips of a channel an invocation computes, and the dispatch."""

from __future__ import annotations

from dataclasses import replace

from engine.dims import Dim, Guard, at_least, ceildiv, divisible
from engine.ops import KernelCall, Lowering, Stage, linear
from engine.ops._conv_choice import software_columns
from engine.ops._conv_strip import Strip, strip_rows
from engine.ops._convolution import Geometry, trips_of
from engine.ops._variants import choose
from engine.windows import Windows


def usual_strip(win: Windows, software: bool) -> Strip:
    """The strip that is taken where sizes are no reason for another; costs count it.

    `kernel` is None where the text is not unrolled over it.
    """
    _, height, width = win.kernel
    _, step_h, step_w = win.strides
    unrolled = max(step_h, step_w) <= 2 and max(win.dilations[1:]) == 1
    if not (unrolled and isinstance(height, int) and isinstance(width, int)):
        return Strip(1, 4)
    if max(height, width) > 5:
        return Strip(1, 4)
    rolled = software and win.kernel[0] == win.size[0] == win.out[0] == 1 and win.out[1] != 1
    rows = strip_rows(step_h, win.out[1], rolled)
    columns = 4 if rows > 1 else 8
    return Strip(rows, columns, (height, width), (step_h, step_w), rolled=rolled)


def _strips(win: Windows, planes: Dim, software: bool) -> list[tuple[Strip, tuple[Guard, ...]]]:
    """Strips of rows by columns, best first: large ones where enough of them are left."""
    strip = usual_strip(win, software)
    if strip.kernel is None:
        return [(strip, ())] if software else _strips_by_rows(win, planes)
    height, width = strip.kernel
    strip = replace(strip, edge_rows=win.edges(strip.rows, axis=1), software=software)
    whole, pad = divisible(win.out[2], 4), win.begin[2]
    if not software:
        # a test on one side compares with what is the same for all invocations
        top, left = (n if isinstance(n, int) else None for n in win.begin[1:])
        strip = replace(strip, begin=(top, left))
    if software and software_columns(win.out[2]) == 7 and whole.known is False:
        strip = replace(strip, columns=7)
    found = [(replace(strip, wide=True), (whole,)), (strip, ())]
    if isinstance(pad, int):
        fours = replace(strip, wide=True, lead=pad % 4)
        guards = (whole, divisible(win.size[2], 4))
        eights = planes * ceildiv(win.out[1], 4 // strip.strides[0]) * ceildiv(win.out[2], 8)
        many = (*guards, at_least(eights, 4096), at_least(win.out[2], 16))
        found = [(fours, guards), *found]
        if height * width <= 9:
            # of more weights and sums, only three waves of a small GPU have room
            found.insert(0, (replace(fours, columns=8), many))
    # of fours there are few edges: one text for all sizes is compiled once
    return [
        (replace(s, edges=win.edges(s.columns, s.wide, any_size=software and s.wide)), when)
        for s, when in found
    ]


def _strips_by_rows(win: Windows, planes: Dim) -> list[tuple[Strip, tuple[Guard, ...]]]:
    """Strips for GPUs of kernels that are large, dilated, or have large strides."""
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


def depthwise_stage(view: Lowering, geo: Geometry) -> Stage:
    """The dispatch: strips of rows by columns of every channel of the output."""
    win, bias = geo.win, view.has(2)
    tensors = {"x": view.node.inputs[0], "w": view.node.inputs[1], "y": view.node.outputs[0]}
    if bias:
        tensors["b"] = view.node.inputs[2]
    planes = geo.batch * geo.group * geo.group_out * win.out[0]
    calls = []
    for strip, guards in _strips(win, planes, view.target.software):
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
                flags=frozenset(["BIAS"] * bias + ["ROLLED"] * strip.rolled),
                text={"START": strip.start(), "TAPS": strip.taps(), "STORE": strip.store()},
                trips=trips_of(geo),
                when=guards,
            )
        )
    return choose(calls)
