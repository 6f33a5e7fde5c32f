"""The WGSL of Resize: where outputs lie in the input, and the taps they are computed from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from engine.records import dataclass

_ROUNDED = {
    "round_prefer_floor": ("select(0, 1, 2 * at.rest > at.whole)", "ceil(c - 0.5)"),
    "round_prefer_ceil": ("select(0, 1, 2 * at.rest >= at.whole)", "floor(c + 0.5)"),
    "floor": ("0", "floor(c)"),
    "ceil": ("select(0, 1, at.rest > 0)", "ceil(c)"),
}


@dataclass(frozen=True)
class Sampler:
    """Axis `number`: kept as it is, or `resized`; by real instead of rational coordinates."""

    number: int
    resized: bool
    real: bool = False


@dataclass(frozen=True)
class Sampling:
    """A whole resampling, which knows the axes (outermost first) and the attributes of Resize."""

    axes: tuple[Sampler, ...]
    mode: str
    coordinates: str
    nearest: str
    exclude_outside: bool

    def text(self, wide: bool) -> dict[str, str]:
        """The fields of `resize.wgsl`; `wide` stores four outputs at once."""
        functions = [f for a in self.axes if a.resized for f in self._functions(a)]
        rows = self._nearest_rows() if self.mode == "nearest" else self._rows()
        lines = [*self._decode(), *rows]
        lines.append("let place = outer * params.out_w + column;")
        values = []
        for j in range(4):
            found, value = self._column(j)
            lines += found
            lines.append(f"let v{j} = {self._outside(value, f'column + {j}u')};")
            values.append(f"v{j}")
        if wide:
            lines.append(f"store4_y(place, vec4({', '.join(values)}));")
        else:
            lines += [
                f"if (column + {j}u < params.out_w) {{ store_y(place + {j}u, {v}); }}"
                for j, v in enumerate(values)
            ]
        body = "\n".join("    " + line for line in lines)
        return {"FUNCTIONS": "\n\n".join(functions), "BODY": body}

    @property
    def _last(self) -> Sampler:
        return self.axes[-1]

    @property
    def _crops(self) -> bool:
        return self.coordinates == "tf_crop_and_resize"

    @property
    def _steps(self) -> range:
        """Neighbours of `base` that are weighed."""
        return range(0, 2) if self.mode == "linear" else range(-1, 3)

    def _functions(self, axis: Sampler) -> list[str]:
        a = axis.number
        found = []
        if axis.real:
            found.append(
                f"fn real{a}(i: u32) -> f32 {{\n    let o = f32(i);\n"
                f"    return {self._real(a)};\n}}"
            )
        else:
            number, whole = self._rational(a)
            found.append(
                f"fn place{a}(i: u32) -> Place {{\n    let o = i32(i);\n"
                f"    return place_of({number}, {whole});\n}}"
            )
        if self.mode == "nearest":
            found.append(self._index(axis))
        if self._crops:
            found.append(
                f"fn outside{a}(i: u32) -> bool {{\n    let c = real{a}(i);\n"
                f"    return c < 0.0 || c > f32(params.in{a}) - 1.0;\n}}"
            )
        return found

    def _rational(self, a: int) -> tuple[str, str]:
        """Numerator and denominator of the coordinate of output `o` in the input."""
        p, q = f"i32(params.p{a})", f"i32(params.q{a})"
        if self.coordinates == "asymmetric":
            return f"o * {q}", p
        if self.coordinates == "align_corners":
            parts = f"i32(params.parts{a})"
            number = f"o * (i32(params.in{a}) - 1) * {parts}"
            return number, f"max(i32(params.width{a}) - {parts}, 1)"
        number = f"(2 * o + 1) * {q} - {p}"
        if self.coordinates == "pytorch_half_pixel":
            number = f"select({number}, 0, params.out{a} == 1u)"
        if self.coordinates == "half_pixel_symmetric":
            number += f" + i32(params.in{a} * params.p{a}) - i32(params.out{a} * params.q{a})"
        return number, f"2 * {p}"

    def _real(self, a: int) -> str:
        last, scale = f"(f32(params.in{a}) - 1.0)", f"params.scale{a}"
        if self._crops:
            start, end = f"params.from{a}", f"params.to{a}"
            step = f"o * ({end} - {start}) * {last} / max(f32(params.out{a}) - 1.0, 1.0)"
            middle = f"0.5 * ({start} + {end}) * {last}"
            return f"select({start} * {last} + {step}, {middle}, params.out{a} == 1u)"
        if self.coordinates == "asymmetric":
            return f"o / {scale}"
        width = f"f32(params.in{a}) * {scale}"
        if self.coordinates == "align_corners":
            return f"select(0.0, o * {last} / ({width} - 1.0), o > 0.0)"
        value = f"(o + 0.5) / {scale} - 0.5"
        if self.coordinates == "pytorch_half_pixel":
            return f"select({value}, 0.0, params.out{a} == 1u)"
        if self.coordinates == "half_pixel_symmetric":
            return f"0.5 * f32(params.in{a}) * (1.0 - f32(params.out{a}) / ({width})) + {value}"
        return value

    def _index(self, axis: Sampler) -> str:
        a = axis.number
        step, real = _ROUNDED[self.nearest]
        if axis.real:
            lines = [f"let c = real{a}(i);", f"return clamped(i32({real}), params.in{a});"]
        else:
            lines = [
                f"let at = place{a}(i);",
                f"return clamped(at.base + {step}, params.in{a});",
            ]
        body = "\n".join("    " + line for line in lines)
        return f"fn index{a}(i: u32) -> u32 {{\n{body}\n}}"

    def _decode(self) -> list[str]:
        """Coordinates `o<axis>` of the outer axes."""
        outer = self.axes[:-1]
        lines = ["var rest = outer;"] if len(outer) > 1 else []
        for axis in reversed(outer[1:]):
            lines.append(f"let o{axis.number} = rest % params.out{axis.number};")
            lines.append(f"rest = rest / params.out{axis.number};")
        if outer:
            lines.append(f"let o{outer[0].number} = {'rest' if len(outer) > 1 else 'outer'};")
        return lines

    def _nearest_rows(self) -> list[str]:
        terms = [
            f"{f'index{a.number}(o{a.number})' if a.resized else f'o{a.number}'}"
            f" * params.stride{a.number}"
            for a in self.axes[:-1]
        ]
        return [f"let row = {' + '.join(terms) or '0u'};"]

    def _taps(self, axis: Sampler, name: str, position: str) -> list[str]:
        """Declares indices `i<name>_<tap>` and weights `w<name>_<tap>` along an axis."""
        a = axis.number
        if axis.real:
            lines = [
                f"let c{name} = real{a}({position});",
                f"let b{name} = i32(floor(c{name}));",
                f"let f{name} = c{name} - floor(c{name});",
            ]
        else:
            lines = [
                f"let at{name} = place{a}({position});",
                f"let b{name} = at{name}.base;",
                f"let f{name} = f32(at{name}.rest) / f32(at{name}.whole);",
            ]
        for tap, step in enumerate(self._steps):
            lines.append(f"let i{name}_{tap} = clamped(b{name} + {step}, params.in{a});")
            if self.mode == "linear":
                weight = f"f{name}" if tap else f"1.0 - f{name}"
            else:
                weight = f"cubic(f{name} - {step}.0, params.cubic_a)"
            if self.exclude_outside:
                inside = f"u32(b{name} + {step}) < params.in{a}"
                weight = f"select(0.0, {weight}, {inside})"
            lines.append(f"let {'r' if self.exclude_outside else 'w'}{name}_{tap} = {weight};")
        if self.exclude_outside:
            taps = range(len(self._steps))
            total = " + ".join(f"r{name}_{t}" for t in taps)
            lines.append(f"let sum{name} = {total};")
            lines.append(f"let unit{name} = select(sum{name}, 1.0, sum{name} == 0.0);")
            lines += [f"let w{name}_{t} = r{name}_{t} / unit{name};" for t in taps]
        return lines

    def _row_choices(self) -> list[tuple[int, ...]]:
        resized = [a for a in self.axes[:-1] if a.resized]
        return list(itertools.product(range(len(self._steps)), repeat=len(resized)))

    def _rows(self) -> list[str]:
        """Declares start `row<n>` and weight `g<n>` of every row that outputs are mixed from."""
        outer = self.axes[:-1]
        lines = [
            line
            for a in outer
            if a.resized
            for line in self._taps(a, f"a{a.number}", f"o{a.number}")
        ]
        for n, choice in enumerate(self._row_choices()):
            places, weights = self._row(outer, choice)
            lines.append(f"let row{n} = {' + '.join(places) or '0u'};")
            if weights:
                lines.append(f"let g{n} = {' * '.join(weights)};")
        return lines

    @staticmethod
    def _row(outer: Sequence[Sampler], choice: Sequence[int]) -> tuple[list[str], list[str]]:
        places, weights, taps = [], [], iter(choice)
        for axis in outer:
            index = f"o{axis.number}"
            if axis.resized:
                tap = next(taps)
                index = f"ia{axis.number}_{tap}"
                weights.append(f"wa{axis.number}_{tap}")
            places.append(f"{index} * params.stride{axis.number}")
        return places, weights

    def _column(self, j: int) -> tuple[list[str], str]:
        """Declarations and expression of the output at `column + j`."""
        position = f"column + {j}u"
        if not self._last.resized:
            index = f"min({position}, params.out_w - 1u)"
            if self.mode == "nearest":
                return [], f"load_x(row + {index})"
            return [], self._mix(lambda row: f"load_x({row} + {index})")
        if self.mode == "nearest":
            return [], f"load_x(row + index{self._last.number}({position}))"
        lines = self._taps(self._last, f"c{j}", position)
        taps = range(len(self._steps))

        def along(row: str) -> str:
            terms = (f"wc{j}_{t} * load_x({row} + ic{j}_{t})" for t in taps)
            return f"({' + '.join(terms)})"

        return lines, self._mix(along)

    def _mix(self, along: Callable[[str], str]) -> str:
        choices = self._row_choices()
        if len(choices) == 1:
            return along("row0")
        return " + ".join(f"g{n} * {along(f'row{n}')}" for n in range(len(choices)))

    def _outside(self, value: str, position: str) -> str:
        if not self._crops:
            return value
        tests = [
            f"outside{a.number}({position if a is self._last else f'o{a.number}'})"
            for a in self.axes
            if a.resized
        ]
        return f"select({value}, params.extrapolation, {' || '.join(tests)})" if tests else value
