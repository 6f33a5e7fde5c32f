"""Strips of convolutions as unrolled WGSL: rows by columns of one channel in registers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.dims import Dim
from engine.ops._conv_tile import indented, join
from engine.records import dataclass

TAPS_AT_ONCE = 8
"""Of a row of a kernel, where its text is not unrolled over all of them."""


def strip_rows(stride: int, out_h: Dim, rolled: bool) -> int:
    """Rows of a strip.

    The higher it is, the fewer pixels belong to two strips. A GPU needs many strips to be busy;
    rolled ones, for software, are high, and as high as each other.
    """
    if out_h == 1:
        return 1
    rows = (16 if rolled else 4) // stride
    if not rolled or not isinstance(out_h, int) or not out_h:
        return rows
    return -(-out_h // -(-out_h // rows))


@dataclass(frozen=True)
class Strip:
    """Rows by columns of one channel of the output that one invocation computes.

    `kernel` and `strides` (height, width) are known where the text is unrolled over them.
    `wide` stores four pixels at once: the row length must be a multiple of four. With `lead`, rows
    of the input are multiples of four long, `first + lead` is one, and pixels are loaded by fours.
    `edge_rows` and `edges` are the rows and columns of its pixels that may be outside of the input.
    From `begin` on, the padding in front, they are outside behind the last one only.
    `software`: pixels outside are zeros, and of fours with one pixel that is needed, that one is
    loaded, which is half as dear. A GPU leaves out rows outside, and loads fours of which it needs
    the first: its compiler drops what is behind the last one.
    `rolled` is a loop over the rows of the input, for drivers that take long to compile unrolled
    text: each adds to the rows of the output that it belongs to, and the oldest of these is stored.
    It needs a known kernel, of depth 1.
    `width` is that of the kernel where a loop over its rows is unrolled over some taps of each, and
    `dilation` and `strides` tell which pixels they meet.
    """

    rows: int
    columns: int
    kernel: tuple[int, int] | None = None
    strides: tuple[int, int] = (1, 1)
    wide: bool = False
    lead: int | None = None
    software: bool = False
    edge_rows: frozenset[int] = frozenset()
    edges: frozenset[int] = frozenset()
    begin: tuple[int | None, int | None] = (None, None)
    rolled: bool = False
    width: int = 0
    dilation: int = 1

    def seen(self, kernel: tuple[int, int], strides: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of the input that it meets."""
        rows = (self.rows - 1) * strides[0] + kernel[0]
        return rows, (self.columns - 1) * strides[1] + kernel[1]

    @property
    def pending(self) -> int:
        """Rows of sums: all, or those that a row of the input may belong to."""
        if self.rolled and self.kernel is not None:
            return -(-self.kernel[0] // self.strides[0])
        return self.rows

    def start(self) -> str:
        """Declares the accumulators `s<row>_<column>`."""
        places = ((i, j) for i in range(self.pending) for j in range(self.columns))
        return join([f"var s{i}_{j} = bias;" for i, j in places], 1)

    def taps(self) -> str:
        """All taps of one slice of the input; of a rolled strip, up to where `store` goes on."""
        if self.width:
            return self._by_rows()
        if self.kernel is None:
            return self._any_kernel()
        return self._rolled(*self.kernel) if self.rolled else self._known_kernel(*self.kernel)

    def _any_kernel(self) -> str:
        """Loops over a kernel of open size: a weight, and a pixel for each column, at a time."""
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
        return join([*lines, "        at += 1u;", "    }", "}"], 2)

    def _by_rows(self) -> str:
        """A loop over the rows of a kernel of known width, some taps of each at a time."""
        lines = [
            "for (var ky = 0u; ky < params.kernel_h; ky++) {",
            "    let ih = first_h + i32(ky * params.dilation_h);",
            "    if (u32(ih) < params.in_h) {",
            "        let row = (slice + u32(ih)) * params.in_w;",
        ]
        whole = self.width - self.width % TAPS_AT_ONCE if self.width > TAPS_AT_ONCE else 0
        if whole:
            lines.append(f"        for (var kx = 0u; kx < {whole}u; kx += {TAPS_AT_ONCE}u) {{")
            lines += indented(self._some_taps(TAPS_AT_ONCE, "kx"), 3)
            lines.append("        }")
        if self.width > whole:
            lines += ["        {", *indented(self._some_taps(self.width - whole, f"{whole}u"), 3)]
            lines.append("        }")
        return join([*lines, "    }", "    at += params.kernel_w;", "}"], 2)

    def _some_taps(self, count: int, first: str) -> list[str]:
        """`count` taps of a row of the kernel from tap `first` on, for one row of sums."""
        met = [
            [tap * self.dilation + j * self.strides[1] for j in range(self.columns)]
            for tap in range(count)
        ]
        lines = [
            f"let start = first + i32({first} * {self.dilation}u);",
            "let place = row + u32(start);",
        ]
        known: set[int] = set()
        for tap, pixels in enumerate(met):
            for i in pixels:
                if i in known:
                    continue
                known.add(i)
                load = f"load_x(place + {i}u)"
                if self.edges:
                    load = f"select(0.0, {load}, u32(start + {i}) < params.in_w)"
                lines.append(f"let p{i} = {load};")
            lines.append(f"let w{tap} = load_w(at + {first} + {tap}u);")
            lines += [f"s0_{j} += p{i} * w{tap};" for j, i in enumerate(pixels)]
        return lines

    def _known_kernel(self, height: int, width: int) -> str:
        """All taps unrolled, each row of weights loaded in front of the first that needs it."""
        lines = self._columns_inside()
        lines.append("let corner = i32((slice + u32(first_h)) * params.in_w) + first;")
        loaded = 0
        for r in range(self.seen((height, width), self.strides)[0]):
            tops = ((row, r - row * self.strides[0]) for row in range(self.rows))
            sums = [(row, ky) for row, ky in tops if 0 <= ky < height]
            needed = max((ky + 1 for _, ky in sums), default=0)
            lines += self._weights(range(loaded * width, needed * width))
            loaded = max(loaded, needed)
            lines += self._products(r, width, sums)
        return join([*lines, f"at += {height * width}u;"], 2)

    def _rolled(self, height: int, width: int) -> str:
        """The begin of a loop over the rows that the input has for each row of the output."""
        step = self.strides[0]
        lines = [*self._weights(range(height * width)), *self._columns_inside()]
        lines.append("let rows = min(params.rows, params.out_h - oh);")
        lines.append(f"for (var r = 0u; r < rows + {self.pending - 1}u; r++) {{")
        corner = f"i32((slice + u32(first_h) + r * {step}u) * params.in_w) + first"
        body = [f"let top = first_h + i32(r * {step}u);", f"let corner = {corner};"]
        for r in range(step):
            sums = [(age, r + step * age) for age in range(self.pending)]
            body += self._products(r, width, [(age, ky) for age, ky in sums if ky < height])
        return join([*lines, *indented(body)], 1)

    def _weights(self, taps: Iterable[int]) -> list[str]:
        return [f"let w{i} = load_w(at + {i}u);" for i in taps]

    def _columns_inside(self) -> list[str]:
        return [f"let in_{i} = {self._inside('first', i, 1)};" for i in sorted(self.edges)]

    def _inside(self, first: str, i: int, axis: int) -> str:
        """Whether the row (axis 0) or column (1) `i` behind `first` is inside."""
        begin, size = self.begin[axis], f"params.in_{'hw'[axis]}"
        if begin is not None and i >= begin:
            return f"{first} < i32({size}) - {i}"
        return f"u32({first} + {i}) < {size}"

    def _products(self, r: int, width: int, sums: Sequence[tuple[int, int]]) -> list[str]:
        """Loads row `r`; adds it to rows of sums, each with the row of the kernel that it meets."""
        step = self.strides[1]
        lines, names = self._pixels(r, (self.columns - 1) * step + width)
        at_edge = bool(self.edge_rows) if self.rolled else r in self.edge_rows
        if at_edge:
            top = "top" if self.rolled else "first_h"
            lines.append(f"let inside{r} = {self._inside(top, r, 0)};")
        row_test = [f"inside{r}"] * (at_edge and self.software)
        summed = []
        for i, name in enumerate(names):
            within = row_test + [f"in_{i}"] * (i in self.edges)
            if within:
                names[i] = f"e{r}_{i}"
                summed.append(f"let {names[i]} = select(0.0, {name}, {' && '.join(within)});")
        for row, ky in sums:
            summed += [
                f"s{row}_{j} += {names[j * step + kx]} * w{ky * width + kx};"
                for kx in range(width)
                for j in range(self.columns)
            ]
        if at_edge and not self.software:
            summed = [f"if (inside{r}) {{", *indented(summed), "}"]
        return [*lines, *summed]

    def _pixels(self, r: int, count: int) -> tuple[list[str], list[str]]:
        """Loads of the first `count` pixels of row `r` of the strip, and their names."""
        names = [f"p{r}_{i}" for i in range(count)]
        if self.lead is None:
            lines = [f"let row{r} = u32(corner) + {r}u * params.in_w;"]
            lines += [f"let {name} = load_x(row{r} + {i}u);" for i, name in enumerate(names)]
        else:
            start = self.lead - 4 if self.lead else 0
            # an arithmetic shift: in front of the first row of all, this is negative
            lines = [f"let row{r} = u32((corner + {start}) >> 2u) + {r}u * (params.in_w / 4u);"]
            for quad in range((count - start + 3) // 4):
                inside = [
                    i for i in range(start + 4 * quad, start + 4 * quad + 4) if 0 <= i < count
                ]
                if self.software and len(inside) == 1:
                    (i,) = inside
                    place = f"u32(corner + {i}) + {r}u * params.in_w"
                    lines.append(f"let {names[i]} = load_x({place});")
                    continue
                if not self.software and (inside[0] - start) % 4:
                    lines += [
                        f"let {names[i]} = lane_x(row{r} + {quad}u, {(i - start) % 4}u);"
                        for i in inside
                    ]
                    continue
                lines.append(f"let q{r}_{quad} = quad_x(row{r} + {quad}u);")
                for i in inside:
                    names[i] = f"q{r}_{quad}[{(i - start) % 4}]"
        return lines, names

    def store(self) -> str:
        """Stores rows from `oh` and columns from `column` on, as far as they are inside."""
        if self.rolled:
            return join(self._store_oldest(), 1)
        lines = []
        for row in range(self.rows):
            lines.append(f"if (oh + {row}u < params.out_h) {{")
            lines += indented(self._row(row, f"place + {row}u * params.out_w"))
            lines.append("}")
        return join(lines, 1)

    def _store_oldest(self) -> list[str]:
        """Ends the loop of a rolled strip: stores a row once its sums are complete."""
        last = self.pending - 1
        lines = [f"if (r >= {last}u) {{", f"    let done = place + (r - {last}u) * params.out_w;"]
        lines += [*indented(self._row(last, "done")), "}"]
        for age in range(last, 0, -1):
            lines += [f"s{age}_{j} = s{age - 1}_{j};" for j in range(self.columns)]
        lines += [f"s0_{j} = bias;" for j in range(self.columns)]
        return [*indented(lines), "}"]

    def _row(self, row: int, place: str) -> list[str]:
        """Stores the columns of a row of sums."""
        lines, step = [], 4 if self.wide else 1
        for j in range(0, self.columns, step):
            names = [f"s{row}_{j + k}" for k in range(step)]
            value = f"vec4<f32>({', '.join(names)})" if self.wide else names[0]
            call = f"store{'4' if self.wide else ''}_y({place} + {j}u, {value});"
            lines.append(f"if (column + {j}u < params.out_w) {{ {call} }}" if j else call)
        return lines
