"""Depthwise convolutions as unrolled WGSL: a strip of one channel in registers."""

from __future__ import annotations

from dataclasses import dataclass

from engine.ops._conv_tile import join


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
        return join(
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
        return join([*lines, "        at += 1u;", "    }", "}"], 2)

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
        return join([*lines, f"at += {height * width}u;"], 2)

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
        return join(lines, 1)


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
