"""Register tiles of convolutions as unrolled WGSL: output channels by neighbouring pixels.

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
        return join([*lines, "    return;", "}"], 1)

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
        return join(lines, 1)

    def multiply(self, taps: Sequence[Sequence[str]], weights: str, suffix: str = "") -> list[str]:
        """Adds the products of each tap's `columns` pixels with its weights.

        Those of all taps lie one after the other from element index `weights` on.
        """
        lines, found = self._weights(len(taps), weights, suffix)
        count = len(self.quads)
        names = {(tap, q): f"w{suffix}{tap}_{q}" for tap in range(len(taps)) for q in self.quads}
        if self.shared:
            # sum by sum: so many sums are in memory, and each is fetched and put back once
            for q in self.quads:
                for tap in range(len(taps)):
                    lines.append(f"let {names[tap, q]} = {found[tap * count + q]};")
                for j in range(self.columns):
                    terms = (f" + {pixels[j]} * {names[tap, q]}" for tap, pixels in enumerate(taps))
                    lines.append(f"a{j}_{q} = a{j}_{q}{''.join(terms)};")
            return lines
        for tap, pixels in enumerate(taps):
            for q in self.quads:
                lines.append(f"let {names[tap, q]} = {found[tap * count + q]};")
                lines += [
                    f"a{j}_{q} += {pixel} * {names[tap, q]};" for j, pixel in enumerate(pixels)
                ]
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
            lines = ["if (place_in_grid < params.tiles) {", *indented(lines), "}"]
        return join(lines, 1)


def indented(lines: Sequence[str]) -> list[str]:
    """Lines one level further in."""
    return ["    " + line for line in lines]


def join(lines: Sequence[str], indent: int) -> str:
    """Lines as text, `indent` levels in."""
    return "\n".join("    " * indent + line for line in lines)
