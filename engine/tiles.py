"""Register tiles as unrolled WGSL: `rows` output channels by `columns` neighbouring pixels.

An accumulator `a<column>_<quad>` is a vec4 over four output channels. Separate variables, not
arrays: compilers keep these in registers. Convolutions fill their templates with this text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """Output channels (4 or 8) and pixels that one invocation computes.

    `wide` stores four pixels at once: the row length must be a multiple of four. `step` is the
    distance of neighbouring columns in `y` if it is not 1 (an expression).
    """

    rows: int
    columns: int
    wide: bool = False
    step: str = ""

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

    def multiply(self, pixels: Sequence[str], weights: str, indent: int, suffix: str = "") -> str:
        """Adds the products of `columns` pixels with the weights at element index `weights`."""
        lines = [f"let w{suffix}_{q} = load4_w({weights} + {4 * q}u);" for q in self.quads]
        lines += [
            f"a{j}_{q} += {pixel} * w{suffix}_{q};"
            for j, pixel in enumerate(pixels)
            for q in self.quads
        ]
        return _join(lines, indent)

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
        return _join(lines, 1)


def window(tile: Tile, kernel: int, stride: int, lead: int | None = None) -> str:
    """One row of a kernel `kernel` wide: every pixel is loaded once, and used by several taps.

    With `lead`, rows are multiples of four long and `first + lead` is one: pixels are loaded by
    fours where most of them are needed.
    """
    count = (tile.columns - 1) * stride + kernel
    lines, names = _pixels(count, lead)
    parts = [_join(lines, 3)]
    for tap in range(kernel):
        pixels = [names[tap + j * stride] for j in range(tile.columns)]
        parts.append(tile.multiply(pixels, f"at + {tap}u * PACK", 3, str(tap)))
    return "\n".join(parts)


def _pixels(
    count: int, lead: int | None, row: str = "row", suffix: str = ""
) -> tuple[list[str], list[str]]:
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


def taps(tile: Tile, kernel: int | None, aligned: bool = False) -> str:
    """One row of a kernel of any stride and dilation: a load for each product.

    `kernel` is its width if the text is unrolled over it. `aligned`: stride 1, and every tap meets
    the first of four neighbours in a row of fours.
    """
    if kernel is None:
        lines = ["for (var kx = 0u; kx < params.kernel_w; kx++) {"]
        lines.append("    let start = first + i32(kx * params.dilation_w);")
        found, names = _tap_pixels(tile, aligned, "")
        body = tile.multiply(names, "at + kx * PACK", 4)
        head = _join([*lines, *("    " + line for line in found)], 3)
        return "\n".join([head, body, _join(["}"], 3)])
    parts = []
    for tap in range(kernel):
        found, names = _tap_pixels(tile, aligned, f"{tap}_")
        start = f"let start{tap}_ = first + i32({tap}u * params.dilation_w);"
        parts.append(_join([start, *found], 3))
        parts.append(tile.multiply(names, f"at + {tap}u * PACK", 3, str(tap)))
    return "\n".join(parts)


def _tap_pixels(tile: Tile, aligned: bool, suffix: str) -> tuple[list[str], list[str]]:
    """Declarations of the pixels that one tap meets from `start` on, and their names."""
    if aligned:
        lines = [
            f"let q{suffix}{j} = pixel4(row, start{suffix} + {j});"
            for j in range(0, tile.columns, 4)
        ]
        return lines, [f"q{suffix}{j - j % 4}[{j % 4}]" for j in range(tile.columns)]
    lines = [
        f"let p{suffix}{j} = pixel(row, start{suffix} + {j} * i32(params.stride_w));"
        for j in range(tile.columns)
    ]
    return lines, [f"p{suffix}{j}" for j in range(tile.columns)]


def pointwise(tile: Tile, strided: bool) -> str:
    """One input channel of a 1x1 convolution; `strided`: pixels are no neighbours in `x`."""
    if tile.wide and not strided:
        lines = [f"let v{j} = load4_x(row + offset{j});" for j in range(0, tile.columns, 4)]
        pixels = [f"v{j - j % 4}[{j % 4}]" for j in range(tile.columns)]
    else:
        lines = [f"let p{j} = load_x(row + offset{j});" for j in range(tile.columns)]
        pixels = [f"p{j}" for j in range(tile.columns)]
    return _join(lines, 2) + "\n" + tile.multiply(pixels, "at", 2)


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
    lines = [f"let p{j} = pixel(row, iw + {j});" for j in range(tile.columns)]
    body = tile.multiply([f"p{j}" for j in range(tile.columns)], "at", 3)
    return _join(lines, 3) + "\n" + body


def _join(lines: Sequence[str], indent: int) -> str:
    return "\n".join("    " * indent + line for line in lines)
