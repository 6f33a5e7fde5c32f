"""Register tiles of convolutions as unrolled WGSL: output channels by neighbouring pixels.

An accumulator `a<column>_<quad>` is a vec4 over four output channels. Separate variables, not
arrays: compilers keep these in registers. Convolutions fill their templates with this text.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.records import dataclass


@dataclass(frozen=True)
class Tile:
    """Output channels (4, or a multiple of 8) and pixels that one invocation computes.

    `wide` stores four pixels at once: the row length must be a multiple of four. `step` is the
    distance of neighbouring columns in `y` if it is not 1 (an expression). With `shared`, the eight
    invocations of a subgroup compute the same channels, and each loads an eighth of the weights.
    `rolled` stores in a loop over the rows: a driver that compiles for a CPU takes long for each
    store and what is computed in front of it, and the loop costs next to nothing beside the sums.
    """

    rows: int
    columns: int
    wide: bool = False
    step: str = ""
    shared: bool = False
    rolled: bool = False

    @property
    def builtins(self) -> str:
        """Parameters of the entry point beyond those that the templates have."""
        return "    @builtin(subgroup_invocation_id) lane: u32,\n" if self.shared else ""

    @property
    def adds_apart(self) -> bool:
        """Whether places are sums of what each invocation has and of `ahead`, which moves on and is
        the same for all: a GPU adds both in the instruction that makes an address of them."""
        return not (self.rolled or self.shared)

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

    def sums(self) -> list[str]:
        """Names of the accumulators."""
        return [f"a{j}_{q}" for j in range(self.columns) for q in self.quads]

    def start(self, bias: bool, declared: bool = False) -> str:
        """Declares the accumulators, filled with the bias of channels `channel`, ... or zeros.

        Of a rolled tile, `store` adds the bias. `declared`: they are, outside of the function.
        """
        lines = []
        for quad in self.quads:
            lanes = (f"load_b(min(channel + {4 * quad + lane}u, last))" for lane in range(4))
            lines.append(
                f"let bias{quad} = vec4<f32>({', '.join(lanes)});"
                if bias and not self.rolled
                else f"let bias{quad} = vec4<f32>();"
            )
        kind = "" if declared else "var "
        lines += [f"{kind}{name} = bias{name.split('_')[1]};" for name in self.sums()]
        return join(lines, 1)

    def multiply(
        self,
        taps: Sequence[Sequence[str]],
        weights: str,
        before: Sequence[Sequence[str]] = (),
    ) -> list[str]:
        """Adds the products of each tap's `columns` pixels with its weights.

        `before`: for each tap what comes in front of it.
        Those of all taps lie one after the other, from index `weights` of fours on.
        """
        lines, found = self._weights(len(taps), weights)
        count = len(self.quads)
        names = {(tap, q): f"w{tap}_{q}" for tap in range(len(taps)) for q in self.quads}
        if self.shared or self.rolled:
            # sum by sum: so many sums are in memory, and each is fetched and put back once
            lines += [line for tap in before for line in tap]
            for q in self.quads:
                for tap in range(len(taps)):
                    lines.append(f"let {names[tap, q]} = {found[tap * count + q]};")
                for j in range(self.columns):
                    terms = (f" + {pixels[j]} * {names[tap, q]}" for tap, pixels in enumerate(taps))
                    lines.append(f"a{j}_{q} = a{j}_{q}{''.join(terms)};")
            return lines
        for tap, pixels in enumerate(taps):
            lines += before[tap] if before else ()
            for q in self.quads:
                lines.append(f"let {names[tap, q]} = {found[tap * count + q]};")
                lines += [
                    f"a{j}_{q} += {pixel} * {names[tap, q]};" for j, pixel in enumerate(pixels)
                ]
        return lines

    def _weights(self, taps: int, at: str) -> tuple[list[str], list[str]]:
        """Declarations, and for each four weights an expression of them."""
        count = taps * self.rows
        if not self.shared:
            steps = [[at, f"{tap}u * (PACK / 4u)"][: 1 + (tap > 0)] for tap in range(taps)]
            places = ([*step, f"{q}u"][: len(step) + (q > 0)] for step in steps for q in self.quads)
            return [], [f"quad_w({' + '.join(place)})" for place in places]
        lines, found = [], []
        for start in range(0, count - count % 32, 32):
            lines.append(f"let s{start} = quad_w({at} + {start // 4}u + lane);")
            found += [f"subgroupBroadcast(s{start}, {lane}u)" for lane in range(8)]
        for start in range(count - count % 32, count, 8):
            name = f"s{start}"
            lines.append(f"let {name} = load_w(({at}) * 4u + {start}u + lane);")
            for first in (0, 4):
                lanes = (f"subgroupBroadcast({name}, {first + i}u)" for i in range(4))
                found.append(f"vec4<f32>({', '.join(lanes)})")
        return lines, found

    def store(self, bias: bool) -> str:
        """Stores rows `channel + r` < `channel_end` and columns `column + j` < `column_end`.

        The place of an element is `place + r * params.plane + j * step`.
        """
        return join(self._rolled(bias) if self.rolled else self._unrolled(), 1)

    def _unrolled(self) -> list[str]:
        lines = []
        for row in range(self.rows):
            quad, lane = divmod(row, 4)
            lines.append(f"if (channel + {row}u < channel_end) {{")
            lines.append(f"    let at = place + {row}u * params.plane;")
            lines += indented(self._row(quad, str(lane)))
            lines.append("}")
        if self.shared:
            lines = ["if (place_in_grid < params.tiles) {", *indented(lines), "}"]
        return lines

    def _rolled(self, bias: bool) -> list[str]:
        """A loop over four rows, in which the sums move along, and in it one over single rows.

        Arrays would do without the moves, but are kept in memory, and loads take longer. Where one
        of four sums is taken by an index, the driver selects it from all four.
        """
        stop = "min(channel + ROWS, channel_end)"
        if self.shared:
            stop = f"select(channel, {stop}, place_in_grid < params.tiles)"
        lines = [f"let stop = {stop};", "var row_place = place;"]
        lines.append("for (var first = channel; first < stop; first += 4u) {")
        lines.append("    for (var c = first; c < min(first + 4u, stop); c++) {")
        body = ["let at = row_place;", *(["let bias = load_b(c);"] if bias else [])]
        body += self._row(0, "c - first", " + bias" if bias else "")
        lines += indented(indented([*body, "row_place += params.plane;"]))
        lines.append("    }")
        for j in range(self.columns):
            lines += [f"    a{j}_{q} = a{j}_{q + 1};" for q in self.quads[:-1]]
        return [*lines, "}"]

    def _row(self, quad: int, lane: str, more: str = "") -> list[str]:
        """Stores the columns of one row, from place `at` on; `more` is added to each."""
        lines = []
        for j in range(0, self.columns, 4 if self.wide else 1):
            names = [f"a{j + k}_{quad}[{lane}]" for k in range(4 if self.wide else 1)]
            offset = f"at + {j}u * {self.step}" if self.step else f"at + {j}u"
            value = f"vec4<f32>({', '.join(names)})" if self.wide else names[0]
            call = f"store{'4' if self.wide else ''}_y({offset if j else 'at'}, {value}{more});"
            lines.append(f"if (column + {j}u < column_end) {{ {call} }}" if j else call)
        return lines


def indented(lines: Sequence[str], levels: int = 1) -> list[str]:
    """Lines some levels further in."""
    return ["    " * levels + line for line in lines]


def join(lines: Sequence[str], indent: int) -> str:
    """Lines as text, `indent` levels in."""
    return "\n".join("    " * indent + line for line in lines)
