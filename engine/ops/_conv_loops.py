"""Inner loops of convolutions as unrolled WGSL: how pixels are loaded and meet the weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

from engine.ops._conv_border import folded
from engine.ops._conv_tile import Tile, indented, join
from engine.windows import BOTH, Sides, Windows


def pixels(win: Windows, wide: bool) -> str:
    """The function `pixel`, and `pixel4` of four neighbours that begin at a multiple of four.

    The pixel is the one at `column` of a row that starts at `row`, or 0 outside of [0, limit); if
    the row repeats itself there, 0 without limit.
    """
    text = _PIXEL_REPEATED if win.repeats(2) else _PIXEL
    place = folded(win.repeats(2), "column", "params.in_w")
    forms = [("", "f32", "0.0"), *([("4", "vec4<f32>", "vec4<f32>()")] if wide else [])]
    return "\n".join(text.format(n=n, kind=k, zero=z, place=place) for n, k, z in forms)


_PIXEL = """fn pixel{n}(row: u32, limit: u32, column: i32) -> {kind} {{
    let inside = u32(column) < limit;
    return select({zero}, load{n}_x(row + select(0u, u32(column), inside)), inside);
}}
"""
_PIXEL_REPEATED = """fn pixel{n}(row: u32, limit: u32, column: i32) -> {kind} {{
    return select({zero}, load{n}_x(row + u32({place})), limit > 0u);
}}
"""


def window(
    tile: Tile,
    win: Windows,
    kernel: int,
    edges: Collection[int],
    times: int = 1,
    lead: int | None = None,
    part: Sides | None = None,
) -> str:
    """The sum over input channels for `kernel` taps of a row of the kernel.

    Every pixel is loaded once, and used by several taps. `edges` are those that may be outside of
    the row. With `lead`, rows are multiples of four long, `first + lead` is one, and pixels are
    loaded by fours. `times`: see `dense`. Of all taps, `columns_inside` stands in front of the loop
    over rows; for a `part` of them, whose pixels may be outside on these sides, it is here.
    """
    met = _met(tile, win, kernel)
    start, names = 0, {i: f"p{i}" for tap in met for i in tap}
    edges = sorted(edges)
    loads: dict[str, str] = {}
    pointer, place = _pointer(tile, times)
    form = "channel_{}_x(plane, in_channel, " if tile.adds_apart else "{}_x("
    if lead is None:
        load = form.format("load")
        loads = {name: f"{load}{place} + {i}u)" for i, name in names.items()}
    else:
        start = lead - 4 if lead else 0
        for i in names:
            quad, lane = divmod(i - start, 4)
            loads[f"q{quad}"] = f"{form.format('quad')}{place} + {quad}u)"
            names[i] = f"q{quad}[{lane}]"
    found: list[list[str]] = []
    for tap in met:
        lines = []
        for i in tap:
            name = names[i].split("[")[0]
            if name in loads:
                lines.append(f"let {name} = {loads.pop(name)};")
            if i in edges and names[i] != f"e{i}":
                lines.append(f"let e{i} = select(0.0, {names[i]}, in_{i});")
                names[i] = f"e{i}"
        found.append(lines)
    head = columns_inside(edges, part) if part else []
    if tile.adds_apart:
        head.append("let first_in_channel = group * params.group_in;")
    if lead is None:
        head += ["var place = row + u32(first);", "let step = row_step;"]
    else:
        # an arithmetic shift: in front of the first row of all, this is -1
        head += [
            f"var place = u32((i32(row) + first + {start}) >> 2u);",
            "let step = row_step / 4u;",
        ]
    products = tile.multiply([[names[i] for i in tap] for tap in met], "at", before=found)
    return dense(head, products, (pointer, "step"), times, planes=tile.adds_apart)


def _pointer(tile: Tile, times: int) -> tuple[str, str]:
    """What moves from channel to channel, and the place of the first pixel of one."""
    return ("ahead", "place + ahead") if tile.adds_apart and times else ("place", "place")


def edges_of(tile: Tile, win: Windows) -> frozenset[int]:
    """Pixels that `window` or `long_window` meets for a tile and that may be outside of a row."""
    kernel = win.kernel[2]
    if tile.shared or win.repeats(2) or not isinstance(kernel, int):
        return frozenset()
    met = {i for tap in _met(tile, win, kernel) for i in tap}
    return win.edges(tile.columns, tile.wide) & met


def columns_inside(edges: Collection[int], sides: Sides = BOTH) -> list[str]:
    """Whether pixels that may be outside of a row, on these sides, are inside."""
    test = "u32(first + {0}) < params.in_w"
    if not all(sides):
        test = "first >= -{0}" if sides[0] else "first < i32(params.in_w) - {0}"
    return [f"let in_{i} = {test.format(i)};" for i in sorted(edges)]


def _met(tile: Tile, win: Windows, kernel: int) -> list[list[int]]:
    """For each of `kernel` taps, the pixels that it meets, counted from the first of all."""
    step, dilation = win.strides[2], win.dilations[2]
    return [[tap * dilation + j * step for j in range(tile.columns)] for tap in range(kernel)]


def guarded_window(
    tile: Tile,
    win: Windows,
    kernel: int,
    times: int = 1,
    lead: int | None = None,
    sides: Sides = BOTH,
) -> str:
    """The same where a row may lie outside too, or repeats itself: every load has its own place and
    condition."""
    places, loads, pixels = _guarded_pixels(tile, win, kernel, lead, sides)
    products = tile.multiply(pixels, "at", before=loads)
    return dense(places, products, times=times)


def long_window(
    tile: Tile, win: Windows, edges: Collection[int], times: int = 1, lead: int | None = None
) -> str:
    """The same for a wide kernel, so many taps at a time that `lead` holds for each of them."""
    kernel = win.kernel[2]
    assert isinstance(kernel, int)
    step = 8 if tile.rows * tile.columns <= 64 else 4
    lines = ["let row_start = row;", "let at_start = at;", "let first_start = first;"]

    def taps_from(start: str, count: int, sides: Sides) -> list[str]:
        if tile.shared or (win.repeats(2) and any(sides)):
            text = guarded_window(tile, win, count, times, lead, sides)
        else:
            # any pixel may be at an edge for some taps
            met = {i for tap in _met(tile, win, count) for i in tap} if edges else set()
            text = window(tile, win, count, met if any(sides) else (), times, lead, part=sides)
        distance = f"{start} * {win.dilations[2]}" if win.dilations[2] > 1 else start
        return [
            f"    let first = first_start + i32({distance});",
            "    var row = row_start;",
            f"    var at = at_start + {start} * (PACK / 4u);",
            text,
            "}",
        ]

    # software takes time to compile each text, and tests for many channels stand in front of them
    apart = tile.adds_apart and not times
    for taps in _stretches(win, step) if apart else [range(kernel - kernel % step)]:
        head = f"for (var kx = {taps.start}u; kx < {taps.stop}u; kx += {step}u) {{"
        lines += [head, *taps_from("kx", step, win.sides(taps) if apart else BOTH)]
    rest = range(kernel - kernel % step, kernel)
    if rest:
        sides = win.sides(rest) if apart else BOTH
        lines += ["{", *taps_from(f"{rest.start}u", len(rest), sides)]
    return join(lines, 2)


def _stretches(win: Windows, step: int) -> list[range]:
    """The taps of a wide kernel, `step` by `step`, where these meet pixels outside of a row on the
    same sides."""
    kernel = win.kernel[2]
    assert isinstance(kernel, int)
    found: dict[Sides, range] = {}
    for start in range(0, kernel - kernel % step, step):
        sides = win.sides(range(start, start + step))
        found[sides] = range(found[sides].start if sides in found else start, start + step)
    return list(found.values())


def _guarded_pixels(
    tile: Tile, win: Windows, kernel: int, lead: int | None, sides: Sides
) -> tuple[list[str], list[list[str]], list[list[str]]]:
    """Places of pixels in their row; for each tap, loads of those not met before, and expressions.

    Of a dilated kernel no tap meets what another one did, so that one text does for any dilation.
    """
    dilated = win.dilations[2] > 1
    places: list[str] = []
    loads: list[list[str]] = []
    names: dict[tuple[int, int], str] = {}

    def add(name: str, offset: str, zero: str, load: str) -> None:
        at, inside = f"u32(first + {offset})", f"u32(first + {offset}) < limit"
        if win.repeats(2):
            at = f"u32({folded(win.repeats(2), f'first + {offset}', 'params.in_w', sides)})"
            inside = "limit > 0u"
            if not tile.shared:
                # rows outside are left out
                places.append(f"let at_{name} = {at};")
                loads[-1].append(f"let {name} = {load}(row + at_{name});")
                return
        places.append(f"let in_{name} = {inside};")
        places.append(f"let at_{name} = select(0u, {at}, in_{name});")
        loads[-1].append(f"let {name} = select({zero}, {load}(row + at_{name}), in_{name});")

    step = win.strides[2]
    met = [
        [j * step + (0 if dilated else tap) for j in range(tile.columns)] for tap in range(kernel)
    ]
    needed = [{i for tap in met for i in tap}] if not dilated else [set(tap) for tap in met]
    pixels = []
    for tap, found in enumerate(met):
        group = tap if dilated else 0
        distance = f"i32({tap}u * params.dilation_w) + " if dilated else ""
        label = f"{tap}_" if dilated else ""
        loads.append([])
        for i in found:
            if (group, i) in names:
                continue
            start = i if lead is None else i - (i - lead) % 4
            inside = [k for k in range(start, start + 4) if k in needed[group]]
            if lead is not None and len(inside) >= 3:
                name = f"q{label}{start + 4}"
                add(name, f"{distance}{start}", "vec4<f32>()", "load4_x")
                names |= {(group, k): f"{name}[{k - start}]" for k in inside}
            else:
                names[group, i] = f"p{label}{i}"
                add(names[group, i], f"{distance}{i}", "0.0", "load_x")
        pixels.append([names[group, i] for i in found])
    return places, loads, pixels


def dense(
    places: Sequence[str],
    products: Sequence[str],
    pointer: tuple[str, str] = ("row", "row_step"),
    times: int = 1,
    planes: bool = False,
) -> str:
    """The sum over input channels for one row of the kernel.

    Args:
        places: what comes in front. products: those of one channel.
        pointer: where its pixels are found from, and from there to those of the next one.
        times: how many channels a trip of the loop takes, or 0 for the only one there is.
        planes: whether the products read `in_channel`, and `plane`, which counts all images'.
    """
    numbers = ["plane", "in_channel"] if planes else []
    if not times:
        return join([*places, *(f"let {n} = first_{n};" for n in numbers), *products], 2)
    name, step = pointer
    lines = [*(f"let {n} = first_{n} + c;" for n in numbers), *products]
    start = ["var ahead = 0u;"] if name == "ahead" else []
    for c in range(1, times):
        # sums with what is the same for all of a workgroup: cheaper than to move on
        to = [f"let {name} = {name} + {c}u * {step};", f"let at = at + {c}u * at_step;"]
        to += [f"let {n} = first_{n} + c + {c}u;" for n in numbers]
        lines += ["{", *indented([*to, *products]), "}"]
    count = f"{times}u * " if times > 1 else ""
    loop = [
        f"for (var c = 0u; c < params.group_in; c += {times}u) {{",
        *indented([*lines, f"at += {count}at_step;", f"{name} += {count}{step};"]),
        "}",
    ]
    return join([*places, *start, *loop], 2)


def taps(tile: Tile, kernel: int | None, aligned: bool = False) -> list[str]:
    """One row of a kernel of any stride and dilation: a load for each product of a channel.

    `kernel` is its width if the text is unrolled over it. `aligned`: stride 1, and every tap meets
    the first of four neighbours in a row of fours.
    """
    if kernel is None:
        found, names = _tap_pixels(tile, aligned, "")
        body = ["let start = first + i32(kx * params.dilation_w);", *found]
        body += tile.multiply([names], "at + kx * (PACK / 4u)")
        head = "for (var kx = 0u; kx < params.kernel_w; kx++) {"
        return [head, *indented(body), "}"]
    lines: list[str] = []
    pixels = []
    for tap in range(kernel):
        found, names = _tap_pixels(tile, aligned, f"{tap}_")
        lines += [f"let start{tap}_ = first + i32({tap}u * params.dilation_w);", *found]
        pixels.append(names)
    return [*lines, *tile.multiply(pixels, "at")]


def _tap_pixels(tile: Tile, aligned: bool, suffix: str) -> tuple[list[str], list[str]]:
    """Declarations of the pixels that one tap meets from `start` on, and their names."""
    if aligned:
        lines = [
            f"let q{suffix}{j} = pixel4(row, limit, start{suffix} + {j});"
            for j in range(0, tile.columns, 4)
        ]
        return lines, [f"q{suffix}{j - j % 4}[{j % 4}]" for j in range(tile.columns)]
    lines = [
        f"let p{suffix}{j} = pixel(row, limit, start{suffix} + {j} * i32(params.stride_w));"
        for j in range(tile.columns)
    ]
    return lines, [f"p{suffix}{j}" for j in range(tile.columns)]


@lru_cache(maxsize=1 << 8)
def pointwise(tile: Tile, strided: bool, unroll: int, whole: bool) -> str:
    """The sum over input channels of a 1x1 convolution, `unroll` of them at a time.

    Loops have a price for each sum they carry. `strided`: pixels are no neighbours in `x`.
    `whole`: `unroll` divides the channels.
    """
    lines = ["var ahead = 0u;"] if tile.adds_apart else []
    if unroll > 1:
        head = f"for (var c = {unroll}u; c <= params.group_in; c += {unroll}u) {{"
        if tile.adds_apart:
            head = f"for (var c = 0u; c + {unroll}u <= params.group_in; c += {unroll}u) {{"
        ahead = 0 if tile.adds_apart else unroll
        lines += [head, *indented(_channels(tile, strided, unroll, ahead)), "}"]
    if unroll == 1 or not whole:
        start = f"params.group_in / {unroll}u * {unroll}u" if unroll > 1 else "0u"
        lines += [
            f"for (var c = {start}; c < params.group_in; c++) {{",
            *indented(_channels(tile, strided, 1, 0)),
            "}",
        ]
    return join(lines, 1)


def _step(tile: Tile, strided: bool) -> int:
    """Pixels of a load."""
    return 4 if tile.wide and not strided else 1


def _channels(tile: Tile, strided: bool, count: int, ahead: int) -> list[str]:
    """The products of `count` channels; the loop counts `ahead` of them."""
    lines, taps, step = [], [], _step(tile, strided)
    form = "quad" if step == 4 else "load"
    kind, numbers = "channel", ["first_plane", "first_in_channel"]
    if tile.rolled:
        kind, numbers = "plane", ["first_plane"]
    for c in range(count):
        more = "" if c == ahead else f" + {c - ahead}u" if c > ahead else f" - {ahead - c}u"
        places = ", ".join(f"{number} + c{more}" for number in numbers)
        pixels: list[str] = []
        for j in range(0, tile.columns, step):
            place = _place(tile, strided, c, j)
            lines.append(f"let p{c}_{j} = {kind}_{form}_x({places}, {place});")
            pixels += [f"p{c}_{j}[{k}]" for k in range(4)] if step == 4 else [f"p{c}_{j}"]
        taps.append(pixels)
    lines += tile.multiply(taps, "at")
    pointer = "ahead" if tile.adds_apart else "row"
    return [*lines, f"at += {count}u * (PACK / 4u);", f"{pointer} += {count}u * in_plane;"]


def _place(tile: Tile, strided: bool, channel: int, column: int) -> str:
    """Where a pixel of the tile is, `channel` of the trip on."""
    planes = [f"{channel}u * in_plane"] * (channel > 0)
    near = f"{column // _step(tile, strided)}u"
    if not tile.adds_apart:
        distance = [f"offset{column}" if strided else near] * (column > 0)
        return " + ".join(["row", *planes, *distance])
    row = f"row{column}" if strided and column else "row"
    ahead = " + ".join(["ahead", *planes])
    return " + ".join([row, f"({ahead})", *[near] * (column > 0 and not strided)])


def start_of_row(tile: Tile, strided: bool) -> str:
    """Where the pixels of the first channel are that `pointwise` loads: from `row` on, or each at
    an offset from it if they are no neighbours.

    Both count fours where those are loaded. Pixels past the end of a plane are never stored.
    """
    step = _step(tile, strided)
    fours = f" / {step}u" if step > 1 else ""
    lines = [
        f"let in_plane = params.in_plane{fours};",
        "let first_plane = (n * params.groups + group) * params.group_in;",
        *["let first_in_channel = group * params.group_in;"] * (not tile.rolled),
    ]
    if not strided:
        lines.append(f"var row = first_plane * in_plane + column{fours};")
        return join(lines, 1)
    lines += [
        "let place0 = source(column);",
        "var row = first_plane * in_plane + place0;",
        *(
            f"let offset{j} = source(min(column + {j}u, params.plane - 1u)) - place0;"
            for j in range(1, tile.columns)
        ),
    ]
    if tile.adds_apart:
        lines += [f"let row{j} = row + offset{j};" for j in range(1, tile.columns)]
    return join(lines, 1)


def transposed_taps(tile: Tile) -> str:
    """One tap of a transposed convolution: neighbouring outputs of a phase meet neighbours."""
    pixels = [f"p{j}" for j in range(tile.columns)]
    lines = [f"let {name} = pixel(row, iw + {j});" for j, name in enumerate(pixels)]
    return join([*lines, *tile.multiply([pixels], "at")], 3)


def phase_taps(tile: Tile, edges: Collection[int], times: int) -> str:
    """The same for outputs of one phase: the sum over input channels, `times` of them in a trip."""
    pixels = [f"p{j}" for j in range(tile.columns)]
    pointer, place = _pointer(tile, times)
    lines = [f"let {name} = load_x({place} + {j}u);" for j, name in enumerate(pixels)]
    for j in sorted(edges):
        lines.append(f"let e{j} = select(0.0, p{j}, in_{j});")
        pixels[j] = f"e{j}"
    head = [f"let in_{j} = u32(first + {j}) < params.in_w;" for j in sorted(edges)]
    lines += tile.multiply([pixels], "at")
    return dense(head, lines, (pointer, "step"), times)
