"""Register tiles as unrolled WGSL: `rows` output channels by `columns` neighbouring pixels.

An accumulator `a<column>_<quad>` is a vec4 over four output channels. Separate variables, not
arrays: compilers keep these in registers. Convolutions fill their templates with this text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """Output channels (4, or a multiple of 8) and pixels that one invocation computes.

    `wide` stores four pixels at once: the row length must be a multiple of four. `step` is the
    distance of neighbouring columns in `y` if it is not 1 (an expression). With `shared`, the eight
    invocations of a subgroup compute the same channels, and each loads an eighth of the weights.
    """

    rows: int
    columns: int
    wide: bool = False
    step: str = ""
    shared: bool = False

    @property
    def builtins(self) -> str:
        """Parameters of the entry point beyond those that the templates have."""
        return "    @builtin(subgroup_invocation_id) lane: u32,\n" if self.shared else ""

    def enter(self) -> str:
        """Defines `tile`. Subgroups stay whole: what is past the end repeats the last tile."""
        if self.shared:
            return "    let tile = min(place_in_grid, params.tiles - 1u);"
        lines = [
            "let tile = place_in_grid;",
            "if (tile >= params.tiles || block >= params.blocks) {",
        ]
        return _join([*lines, "    return;", "}"], 1)

    @property
    def quads(self) -> range:
        return range(self.rows // 4)

    def start(self, bias: bool) -> str:
        """Declares the accumulators, filled with the bias of channels `channel`, ... or zeros."""
        lines = []
        for quad in self.quads:
            lanes = (f"load_b(min(channel + {4 * quad + lane}u, last))" for lane in range(4))
            lines.append(
                f"let bias{quad} = vec4<f32>({', '.join(lanes)});"
                if bias
                else f"let bias{quad} = vec4<f32>();"
            )
        lines += [f"var a{j}_{q} = bias{q};" for j in range(self.columns) for q in self.quads]
        return _join(lines, 1)

    def multiply(self, taps: Sequence[Sequence[str]], weights: str, suffix: str = "") -> list[str]:
        """Adds the products of each tap's `columns` pixels with its weights.

        Those of all taps lie one after the other from element index `weights` on.
        """
        lines, found = self._weights(len(taps), weights, suffix)
        for tap, pixels in enumerate(taps):
            for q in self.quads:
                name = f"w{suffix}{tap}_{q}"
                lines.append(f"let {name} = {found[tap * len(self.quads) + q]};")
                lines += [f"a{j}_{q} += {pixel} * {name};" for j, pixel in enumerate(pixels)]
        return lines

    def _weights(self, taps: int, at: str, suffix: str) -> tuple[list[str], list[str]]:
        """Declarations, and for each four weights an expression of them."""
        count = taps * self.rows
        if not self.shared:
            steps = [[at, f"{tap}u * PACK"][: 1 + (tap > 0)] for tap in range(taps)]
            places = (
                [*step, f"{4 * q}u"][: len(step) + (q > 0)] for step in steps for q in self.quads
            )
            return [], [f"load4_w({' + '.join(place)})" for place in places]
        lines, found = [], []
        for start in range(0, count - count % 32, 32):
            lines.append(f"let s{suffix}{start} = load4_w({at} + {start}u + lane * 4u);")
            found += [f"subgroupBroadcast(s{suffix}{start}, {lane}u)" for lane in range(8)]
        for start in range(count - count % 32, count, 8):
            name = f"s{suffix}{start}"
            lines.append(f"let {name} = load_w({at} + {start}u + lane);")
            for first in (0, 4):
                lanes = (f"subgroupBroadcast({name}, {first + i}u)" for i in range(4))
                found.append(f"vec4<f32>({', '.join(lanes)})")
        return lines, found

    def store(self) -> str:
        """Stores rows `channel + r` < `channel_end` and columns `column + j` < `column_end`.

        The place of an element is `place + r * params.plane + j * step`.
        """
        lines = []
        for row in range(self.rows):
            quad, lane = divmod(row, 4)
            lines.append(f"if (channel + {row}u < channel_end) {{")
            lines.append(f"    let at = place + {row}u * params.plane;")
            for j in range(0, self.columns, 4 if self.wide else 1):
                names = [f"a{j + k}_{quad}[{lane}]" for k in range(4 if self.wide else 1)]
                offset = f"at + {j}u * {self.step}" if self.step else f"at + {j}u"
                value = f"vec4<f32>({', '.join(names)})" if self.wide else names[0]
                call = f"store{'4' if self.wide else ''}_y({offset if j else 'at'}, {value});"
                lines.append(
                    f"    if (column + {j}u < column_end) {{ {call} }}" if j else f"    {call}"
                )
            lines.append("}")
        if self.shared:
            lines = ["if (place_in_grid < params.tiles) {", *_indented(lines), "}"]
        return _join(lines, 1)


def window(
    tile: Tile, kernel: int, stride: int, lead: int | None = None
) -> tuple[list[str], list[str]]:
    """One row of a kernel `kernel` wide: every pixel is loaded once, and used by several taps.

    With `lead`, rows are multiples of four long and `first + lead` is one: pixels are loaded by
    fours where most of them are needed.

    Returns: what holds for all channels, and the products of one.
    """
    count = (tile.columns - 1) * stride + kernel
    places, loads, names = _window_pixels(count, lead)
    pixels = [[names[tap + j * stride] for j in range(tile.columns)] for tap in range(kernel)]
    return places, [*loads, *tile.multiply(pixels, "at")]


def _window_pixels(count: int, lead: int | None) -> tuple[list[str], list[str], list[str]]:
    """Places of neighbouring pixels in their row, their loads, and expressions of them."""
    places: list[str] = []
    loads: list[str] = []
    names = [f"p{i}" for i in range(count)]

    def add(i: int, name: str, zero: str, load: str) -> None:
        places.append(f"let in_{name} = u32(first + {i}) < limit;")
        places.append(f"let at_{name} = select(0u, u32(first + {i}), in_{name});")
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


def dense(places: Sequence[str], products: Sequence[str]) -> str:
    """The sum over input channels for one row of the kernel."""
    loop = [
        "for (var c = 0u; c < params.group_in; c++) {",
        *_indented(products),
        "    at += at_step;",
        "    row += row_step;",
        "}",
    ]
    return _join([*places, *loop], 2)


def _pixels(count: int, lead: int | None, row: str, suffix: str) -> tuple[list[str], list[str]]:
    """Declarations of `count` neighbouring pixels from `first` on, and their names."""
    names = [f"p{suffix}{i}" for i in range(count)]
    if lead is None:
        return [f"let {n} = pixel({row}, first + {i});" for i, n in enumerate(names)], names
    lines = []
    for start in range(lead - 4, count, 4):
        inside = [i for i in range(start, start + 4) if 0 <= i < count]
        if len(inside) >= 3:
            quad = f"q{suffix}{start + 4}"
            lines.append(f"let {quad} = pixel4({row}, first + {start});")
            for i in inside:
                names[i] = f"{quad}[{i - start}]"
        else:
            lines += [f"let {names[i]} = pixel({row}, first + {i});" for i in inside]
    return lines, names


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
        return [head, *_indented(body), "}"]
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


def pointwise(tile: Tile, strided: bool, unroll: int, whole: bool) -> str:
    """The sum over input channels of a 1x1 convolution, `unroll` of them at a time.

    Loops have a price for each sum they carry. `strided`: pixels are no neighbours in `x`.
    `whole`: `unroll` divides the channels.
    """
    lines = []
    if unroll > 1:
        lines = [
            f"for (var c = {unroll}u; c <= params.group_in; c += {unroll}u) {{",
            *_indented(_channels(tile, strided, unroll)),
            "}",
        ]
    if unroll == 1 or not whole:
        start = f"params.group_in / {unroll}u * {unroll}u" if unroll > 1 else "0u"
        lines += [
            f"for (var c = {start}; c < params.group_in; c++) {{",
            *_indented(_channels(tile, strided, 1)),
            "}",
        ]
    return _join(lines, 1)


def _channels(tile: Tile, strided: bool, count: int) -> list[str]:
    """The products of `count` channels."""
    lines, taps = [], []
    for c in range(count):
        row = f"row + {c}u * params.in_plane" if c else "row"
        if tile.wide and not strided:
            lines += [
                f"let v{c}_{j} = load4_x({row} + offset{j});" for j in range(0, tile.columns, 4)
            ]
            taps.append([f"v{c}_{j - j % 4}[{j % 4}]" for j in range(tile.columns)])
        else:
            lines += [f"let p{c}_{j} = load_x({row} + offset{j});" for j in range(tile.columns)]
            taps.append([f"p{c}_{j}" for j in range(tile.columns)])
    lines += tile.multiply(taps, "at")
    return [*lines, f"at += {count}u * PACK;", f"row += {count}u * params.in_plane;"]


def offsets(tile: Tile, strided: bool) -> str:
    """Places of the pixels that `pointwise` loads, those past the end clamped to the last."""
    step = 4 if tile.wide and not strided else 1
    lines = []
    for j in range(0, tile.columns, step):
        place = f"min(column + {j}u, params.plane - {step}u)"
        lines.append(f"let offset{j} = {f'source({place})' if strided else place};")
    return _join(lines, 1)


@dataclass(frozen=True)
class Strip:
    """Rows by columns of one channel that one invocation of a depthwise convolution computes.

    `kernel` and `strides` (height, width) are known where the text is unrolled over them.
    `wide` stores four pixels at once: the row length must be a multiple of four. With `lead`, rows
    of the input are multiples of four long, `first + lead` is one, and pixels are loaded by fours.
    """

    rows: int
    columns: int
    kernel: tuple[int, int] | None = None
    strides: tuple[int, int] = (1, 1)
    wide: bool = False
    lead: int | None = None

    def start(self) -> str:
        """Declares the accumulators `s<row>_<column>`."""
        return _join(
            [f"var s{i}_{j} = bias;" for i in range(self.rows) for j in range(self.columns)], 1
        )

    def taps(self) -> str:
        """All taps of one slice of the input."""
        return self._any_kernel() if self.kernel is None else self._known_kernel(*self.kernel)

    def _any_kernel(self) -> str:
        lines = [
            "for (var ky = 0u; ky < params.kernel_h; ky++) {",
            "    let ih = first_h + i32(ky * params.dilation_h);",
            "    let inside = u32(ih) < params.in_h;",
            "    let row = (slice + select(0u, u32(ih), inside)) * params.in_w;",
            "    for (var kx = 0u; kx < params.kernel_w; kx++) {",
            "        let tap = load_w(at);",
            "        let start = first + i32(kx * params.dilation_w);",
        ]
        lines += [
            f"        s0_{j} += tap * pixel(row, inside, start + {j} * i32(params.stride_w));"
            for j in range(self.columns)
        ]
        return _join([*lines, "        at += 1u;", "    }", "}"], 2)

    def _known_kernel(self, height: int, width: int) -> str:
        step_h, step_w = self.strides
        lines = [f"let w{i} = load_w(at + {i}u);" for i in range(height * width)]
        for r in range((self.rows - 1) * step_h + height):
            lines += [
                f"let h{r} = first_h + {r};",
                f"let inside{r} = u32(h{r}) < params.in_h;",
                f"let row{r} = (slice + select(0u, u32(h{r}), inside{r})) * params.in_w;",
            ]
            count = (self.columns - 1) * step_w + width
            found, names = _pixels(count, self.lead, f"row{r}, inside{r}", f"{r}_")
            lines += found
            for row in range(self.rows):
                ky = r - row * step_h
                if 0 <= ky < height:
                    lines += [
                        f"s{row}_{j} += {names[j * step_w + kx]} * w{ky * width + kx};"
                        for kx in range(width)
                        for j in range(self.columns)
                    ]
        return _join([*lines, f"at += {height * width}u;"], 2)

    def store(self) -> str:
        """Stores rows from `oh` and columns from `column` on, as far as they are inside."""
        lines = []
        step = 4 if self.wide else 1
        for row in range(self.rows):
            lines.append(f"if (oh + {row}u < params.out_h) {{")
            for j in range(0, self.columns, step):
                names = [f"s{row}_{j + k}" for k in range(step)]
                value = f"vec4<f32>({', '.join(names)})" if self.wide else names[0]
                place = f"place + {row}u * params.out_w + {j}u"
                call = f"store{'4' if self.wide else ''}_y({place}, {value});"
                lines.append(f"    if (column + {j}u < params.out_w) {{ {call} }}" if j else call)
            lines.append("}")
        return _join(lines, 1)


def transposed_taps(tile: Tile) -> str:
    """One tap of a transposed convolution: neighbouring outputs of a phase meet neighbours."""
    pixels = [f"p{j}" for j in range(tile.columns)]
    lines = [f"let {name} = pixel(row, iw + {j});" for j, name in enumerate(pixels)]
    return _join([*lines, *tile.multiply([pixels], "at")], 3)


def _indented(lines: Sequence[str]) -> list[str]:
    return ["    " + line for line in lines]


def _join(lines: Sequence[str], indent: int) -> str:
    return "\n".join("    " * indent + line for line in lines)
