"""Borders of convolutions: a Pad that repeats elements of its input, where the kernels load them.

A place outside of an axis is folded into it, so that nothing is copied: `Pad(reflect) -> Conv`
reads what the Pad reads. Padding with zeros is the convolution's own.
"""

from __future__ import annotations

from engine.dims import at_least
from engine.ir import Node
from engine.ops import NodeView
from engine.ops.pad import least_size, pad_amounts
from engine.windows import BOTH, Sides, Windows

OUTSIDE = "outside"
"""Attribute of a Conv that only kernels see: for each spatial axis, `Windows.outside`."""

_FOLDS = {
    "edge": ("clamped", "clamp(place, 0, size - 1)"),
    "reflect": ("reflected", "max(min(abs(place), 2 * (size - 1) - abs(place)), 0)"),
    "wrap": (
        "wrapped",
        "min(place + select(0, size, place < 0) - select(0, size, place >= size), size - 1)",
    ),
}
"""For each mode, the name of a function of a place and a size, and what it returns.

Places past what is padded are those of windows that are never stored: anything inside will do.
"""
_IN_FRONT = {
    "edge": "max({place}, 0)",
    "reflect": "abs({place})",
    "wrap": "{place} + select(0, {size}, {place} < 0)",
}
"""The same for places that are in front of the axis or inside of it."""
_BEHIND = {
    "edge": "min({place}, {size} - 1)",
    "reflect": "min({place}, 2 * ({size} - 1) - ({place}))",
    "wrap": "{place} - select(0, {size}, {place} >= {size})",
}


def with_border(view: NodeView, pad: NodeView) -> Node | str:
    """The Conv that reads the input of the Pad in front of it, or why there is none."""
    mode, rank = str(pad.attr("mode", "constant")), len(view.shape(0))
    if mode not in _FOLDS:
        return f"its mode is {mode}"
    amounts = pad_amounts(pad, rank)
    if amounts is None or str(view.attr("auto_pad", "NOTSET")) not in ("NOTSET", "VALID", ""):
        return "how much is padded is not known, or depends on the padded size"
    if amounts[:2] != [(0, 0), (0, 0)]:
        return "it pads the batch or the channels"
    own = view.attr("pads") or [0] * (2 * (rank - 2))
    begin, end, outside = list(own[: rank - 2]), list(own[rank - 2 :]), [""] * (rank - 2)
    for axis, (before, after) in enumerate(amounts[2:]):
        if before == 0 == after:
            continue
        if not isinstance(before, int) or not isinstance(after, int) or min(before, after) < 0:
            return "it crops, or sizes decide how much is padded"
        if begin[axis] or end[axis]:
            return "zeros are padded along the same axis"
        if at_least(pad.shape(0)[axis + 2], least_size(mode, before, after)).known is False:
            return "it repeats an element more than once"
        begin[axis], end[axis], outside[axis] = before, after, mode
    attrs = {k: v for k, v in view.node.attrs.items() if k != "auto_pad"}
    attrs |= {"pads": [*begin, *end], OUTSIDE: outside}
    return view.node.replace(inputs=(pad.node.inputs[0], *view.node.inputs[1:]), attrs=attrs)


def folds(win: Windows) -> str:
    """WGSL of the functions that the axes of windows need."""
    modes = dict.fromkeys(mode for mode in win.outside if mode)
    return "".join(
        f"fn {name}(place: i32, size: i32) -> i32 {{\n    return {result};\n}}\n\n"
        for name, result in (_FOLDS[mode] for mode in modes)
    )


def folded(mode: str, place: str, size: str, sides: Sides = BOTH) -> str:
    """A place along an axis of `Windows.repeats` `mode`: inside, where it repeats its elements.

    `sides`: of the axis on which the place may be.
    """
    size = f"i32({size})"
    if not mode or not any(sides):
        return place
    if all(sides):
        return f"{_FOLDS[mode][0]}({place}, {size})"
    return (_IN_FRONT if sides[0] else _BEHIND)[mode].format(place=place, size=size)
