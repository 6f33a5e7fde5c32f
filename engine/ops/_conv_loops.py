"""Inner loops of convolutions as unrolled WGSL: how pixels are loaded and meet the weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

from engine.ops._conv_border import folded
from engine.ops._conv_tile import Tile, indented, join
from engine.windows import Windows


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
    tile: Tile, kernel: int, stride: int, edges: Collection[int], lead: int | None = None
) -> str:
    """The sum over input channels for one row of a kernel `kernel` wide and dilated by 1.

    Every pixel is loaded once, and used by several taps. `edges` are those that may be outside of
    the row. With `lead`, rows are multiples of four long, `first + lead` is one, and pixels are
    loaded by fours.
    """
    count = (tile.columns - 1) * stride + kernel
    start, names = 0, [f"p{i}" for i in range(count)]
    if lead is None:
        lines = [f"let {name} = load_x(place + {i}u);" for i, name in enumerate(names)]
    else:
        start, lines = lead - 4 if lead else 0, []
        for quad in range((count - start + 3) // 4):
            lines.append(f"let q{quad} = quad_x(place + {quad}u);")
        names = [f"q{(i - start) // 4}[{(i - start) % 4}]" for i in range(count)]
    for i in sorted(edges):
        lines.append(f"let e{i} = select(0.0, {names[i]}, in_{i});")
        names[i] = f"e{i}"
    pixels = [[names[tap + j * stride] for j in range(tile.columns)] for tap in range(kernel)]
    lines += tile.multiply(pixels, "at")
    head = [f"let in_{i} = u32(first + {i}) < limit;" for i in sorted(edges)]
    if lead is None:
        head += ["var place = row + u32(first);", "let step = row_step;"]
    else:
        # an arithmetic shift: in front of the first row of all, this is -1
        head += [
            f"var place = u32((i32(row) + first + {start}) >> 2u);",
            "let step = row_step / 4u;",
        ]
    return dense(tile, head, lines, "place += step;")


def guarded_window(tile: Tile, win: Windows, kernel: int, lead: int | None = None) -> str:
    """The same where a row may lie outside too, or repeats itself: every load has its own place and
    condition."""
    stride = win.strides[2]
    count = (tile.columns - 1) * stride + kernel
    places, loads, names = _guarded_pixels(win, count, lead)
    pixels = [[names[tap + j * stride] for j in range(tile.columns)] for tap in range(kernel)]
    return dense(tile, places, [*loads, *tile.multiply(pixels, "at")])


def long_window(tile: Tile, win: Windows, lead: int | None = None) -> str:
    """The same for a wide kernel, so many taps at a time that `lead` holds for each of them."""
    kernel = win.kernel[2]
    assert isinstance(kernel, int)
    step = 8 if tile.rows * tile.columns <= 64 else 4
    lines = ["let row_start = row;", "let at_start = at;", "let first_start = first;"]

    def taps_from(start: str, count: int) -> list[str]:
        return [
            f"    let first = first_start + i32({start});",
            "    var row = row_start;",
            f"    var at = at_start + {start} * PACK;",
            guarded_window(tile, win, count, lead),
            "}",
        ]

    whole, rest = kernel - kernel % step, kernel % step
    lines += [f"for (var kx = 0u; kx < {whole}u; kx += {step}u) {{", *taps_from("kx", step)]
    if rest:
        lines += ["{", *taps_from(f"{whole}u", rest)]
    return join(lines, 2)


def _guarded_pixels(
    win: Windows, count: int, lead: int | None
) -> tuple[list[str], list[str], list[str]]:
    """Places of neighbouring pixels in their row, their loads, and expressions of them."""
    places: list[str] = []
    loads: list[str] = []
    names = [f"p{i}" for i in range(count)]

    def add(i: int, name: str, zero: str, load: str) -> None:
        at, inside = f"u32(first + {i})", f"u32(first + {i}) < limit"
        if win.repeats(2):
            at = f"u32({folded(win.repeats(2), f'first + {i}', 'params.in_w')})"
            inside = "limit > 0u"
        places.append(f"let in_{name} = {inside};")
        places.append(f"let at_{name} = select(0u, {at}, in_{name});")
        loads.append(f"let {name} = select({zero}, {load}(row + at_{name}), in_{name});")

    for start in range(0 if lead is None else lead - 4, count, 4):
        inside = [i for i in range(start, start + 4) if 0 <= i < count]
        if lead is not None and len(inside) >= 3:
            add(start, f"q{start + 4}", "vec4<f32>()", "load4_x")
            for i in inside:
                names[i] = f"q{start + 4}[{i - start}]"
        else:
            for i in inside:
                add(i, names[i], "0.0", "load_x")
    return places, loads, names


def dense(
    tile: Tile, places: Sequence[str], products: Sequence[str], step: str = "row += row_step;"
) -> str:
    """The sum over input channels for one row of the kernel."""
    loop = [
        f"for (var c = {tile.loop_start('0u')}; c < params.group_in; c++) {{",
        *indented(products),
        "    at += at_step;",
        f"    {step}",
        "}",
    ]
    return join([*places, *loop], 2)


def taps(tile: Tile, kernel: int | None, aligned: bool = False) -> list[str]:
    """One row of a kernel of any stride and dilation: a load for each product of a channel.

    `kernel` is its width if the text is unrolled over it. `aligned`: stride 1, and every tap meets
    the first of four neighbours in a row of fours.
    """
    if kernel is None:
        found, names = _tap_pixels(tile, aligned, "")
        body = ["let start = first + i32(kx * params.dilation_w);", *found]
        body += tile.multiply([names], "at + kx * PACK")
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
    lines = []
    if unroll > 1:
        first = tile.loop_start(f"{unroll}u")
        lines = [
            f"for (var c = {first}; c <= params.group_in; c += {unroll}u) {{",
            *indented(_channels(tile, strided, unroll, unroll)),
            "}",
        ]
    if unroll == 1 or not whole:
        start = f"params.group_in / {unroll}u * {unroll}u" if unroll > 1 else "0u"
        lines += [
            f"for (var c = {tile.loop_start(start)}; c < params.group_in; c++) {{",
            *indented(_channels(tile, strided, 1, 0)),
            "}",
        ]
    return join(lines, 1)


def _channels(tile: Tile, strided: bool, count: int, ahead: int) -> list[str]:
    """The products of `count` channels; the loop counts `ahead` of them."""
    lines, taps = [], []
    for c in range(count):
        row = f"row + {c}u * in_plane" if c else "row"
        behind = f" - {ahead - c}u" if ahead - c else ""
        plane = f"first_plane + c{behind}"
        if tile.wide and not strided:
            lines += [
                f"let v{c}_{j} = plane_quad_x({plane}, {row} + offset{j});"
                for j in range(0, tile.columns, 4)
            ]
            taps.append([f"v{c}_{j - j % 4}[{j % 4}]" for j in range(tile.columns)])
        else:
            lines += [
                f"let p{c}_{j} = plane_load_x({plane}, {row} + offset{j});"
                for j in range(tile.columns)
            ]
            taps.append([f"p{c}_{j}" for j in range(tile.columns)])
    lines += tile.multiply(taps, "at")
    return [*lines, f"at += {count}u * PACK;", f"row += {count}u * in_plane;"]


def offsets(tile: Tile, strided: bool) -> str:
    """Places of the pixels that `pointwise` loads, those past the end clamped to the last.

    They and `row` count fours where those are loaded.
    """
    step = 4 if tile.wide and not strided else 1
    fours = f" / {step}u" if step > 1 else ""
    lines = [f"let in_plane = params.in_plane{fours};"]
    lines.append("let first_plane = (n * params.groups + group) * params.group_in;")
    lines.append("var row = first_plane * in_plane;")
    for j in range(0, tile.columns, step):
        place = f"min(column + {j}u, params.plane - {step}u)"
        lines.append(f"let offset{j} = {f'source({place})' if strided else place + fours};")
    return join(lines, 1)


def transposed_taps(tile: Tile) -> str:
    """One tap of a transposed convolution: neighbouring outputs of a phase meet neighbours."""
    pixels = [f"p{j}" for j in range(tile.columns)]
    lines = [f"let {name} = pixel(row, iw + {j});" for j, name in enumerate(pixels)]
    return join([*lines, *tile.multiply([pixels], "at")], 3)
