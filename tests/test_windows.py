"""Windows over the symbolic sizes of the engine and over numbers in NumPy are the same."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cpu_fallback import windows as numpy_windows
from engine import dims, windows
from engine.errors import ShapeError

FIELDS = [field.name for field in dataclasses.fields(numpy_windows.Windows)]
Drawn = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]


@st.composite
def arguments(draw: st.DrawFn) -> Drawn:
    """Sizes, a kernel and attributes, of which some do not fit."""
    rank = draw(st.integers(1, 3))

    def some(lowest: int, highest: int, count: int = rank) -> list[int]:
        return draw(st.lists(st.integers(lowest, highest), min_size=count, max_size=count))

    attrs: dict[str, Any] = {}
    for name, values in {
        "strides": some(1, 4) if draw(st.integers(0, 9)) else some(0, 1, rank + 1),
        "dilations": some(1, 3) if draw(st.integers(0, 9)) else some(0, 1),
        "pads": some(-2, 4, 2 * rank),
        "ceil_mode": draw(st.integers(0, 1)),
        "auto_pad": draw(
            st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", "", "SAME"])
        ),
    }.items():
        if draw(st.booleans()):
            attrs[name] = values
    return tuple(some(0, 12)), tuple(some(int(draw(st.integers(0, 9)) > 0), 5)), attrs


@settings(max_examples=200)
@given(drawn=arguments())
def test_both_place_the_same_windows(drawn: Drawn) -> None:
    size, kernel, attrs = drawn
    symbols = [dims.symbol(f"n{axis}") for axis in range(len(size))]
    binding = {f"n{axis}": count for axis, count in enumerate(size)}
    try:
        want = numpy_windows.windows(size, kernel, **attrs)
    except ValueError as error:
        want, message = None, str(error)
    try:
        got = windows.windows(size, kernel, **attrs)
    except ShapeError as error:
        assert want is None and str(error) == message
        return
    assert want is not None
    assert {f: getattr(got, f) for f in FIELDS} == {f: getattr(want, f) for f in FIELDS}
    open_sizes = windows.windows(symbols, kernel, **attrs)
    for name in FIELDS:
        found = tuple(dims.evaluate(dim, binding) for dim in getattr(open_sizes, name))
        assert found == getattr(want, name)


@given(st.data())
def test_sides_are_where_taps_meet_what_is_outside(data: st.DataObject) -> None:
    size, kernel, stride, dilation, begin, end = (
        data.draw(st.integers(*ends))
        for ends in ((1, 12), (1, 6), (1, 3), (1, 3), (-1, 5), (-1, 5))
    )
    pads, more = [begin, end], {"strides": [stride], "dilations": [dilation]}
    try:
        win = windows.windows([size], [kernel], pads=pads, **more)
    except ShapeError:
        return
    (out,) = win.out
    assert isinstance(out, int)
    start = data.draw(st.integers(0, kernel - 1))
    taps = range(start, data.draw(st.integers(start + 1, kernel)))
    met = [i * stride - begin + tap * dilation for i in range(out) for tap in taps]
    front, behind = win.sides(taps)
    assert front or min(met, default=0) >= 0
    assert behind or max(met, default=0) < size
    assert not front or out == 0 or min(met) < 0
    open_size = windows.windows([dims.symbol("n")], [kernel], pads=pads, **more)
    assert open_size.sides(taps) == (front, behind)
    inside = min((i * stride - begin for i in range(out)), default=0) >= 0 and end <= 0
    assert not win.keeps_inside(0) or inside
