"""Winograd's convolutions of 3x3 with stride 1: fewer products, between transforms of tiles.

A tile of `size` x `size` outputs takes (`size` + 2)^2 products a channel instead of 9 `size`^2. The
products are those of matrices, one for each place in the transformed tiles: tiles by channels.
Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016; Toom-Cook.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np

from engine.dims import Dim, at_least, ceildiv, dmax, dmin, floordiv, product
from engine.dtypes import FLOAT32
from engine.ir import Array
from engine.ops import KernelCall, Lowering, Stage, linear
from engine.ops._clocks import CLEARLY
from engine.ops._conv_border import folded, folds
from engine.ops._conv_tile import indented, join
from engine.ops._convolution import Geometry
from engine.ops._matmul_calls import product_stage
from engine.ops._matmul_tiles import Product
from engine.ops._variants import shares_loads
from engine.records import dataclass

TAPS = 3
POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
}
"""Where polynomials are evaluated, besides infinity, by the size of a tile.

Those for 4 keep the error in float32 within 5e-6 for 512 channels; with the usual 1 and 2, it is
twice as large.
"""
STYLES = {"winograd-2x2": 2, "winograd-4x4": 4}
"""Sizes of tiles by the names that tuning knows them by."""

BAND_NBYTES = 1 << 22
"""Of transformed input and output that lie between the kernels at a time."""
MAX_BANDS = 1000

COSTS = {False: (26, 5, 1.0), True: (24, 8, 0.8)}
"""What software takes for an element of a transform, a weight, and a product without transforms, in
products of the kernel between the transforms. True: those of a subgroup share loads.
"""
LANES = {False: 64, True: 32}
"""Neighbouring columns that a product computes at once."""
ROWS = 16
"""Its rows come in multiples of these."""

Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class Transforms:
    """y = output (weights w * input x) for one row: exact matrices.

    Attributes:
        output: [size, places]. weights: [places, TAPS]. input: [places, places].
    """

    output: Matrix
    weights: Matrix
    input: Matrix


@cache
def transforms(size: int) -> Transforms:
    """The matrices for tiles of `size` outputs, one of those in `POINTS`."""
    points = POINTS[size]
    one, none = Fraction(1), Fraction(0)
    output = [[*(p**i for p in points), one if i == size - 1 else none] for i in range(size)]
    weights, rows = [], []
    for p in points:
        others = [q for q in points if q != p]
        scale = one
        for q in others:
            scale *= p - q
        weights.append(tuple(p**k / scale for k in range(TAPS)))
        rows.append((*_roots(others), none))
    weights.append((*(none for _ in range(TAPS - 1)), one))
    rows.append(_roots(points))
    return Transforms(tuple(map(tuple, output)), tuple(weights), tuple(rows))


def _roots(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Coefficients, lowest first, of the polynomial with these roots."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        found = [a - root * b for a, b in zip(shifted, [*found, Fraction(0)], strict=True)]
    return tuple(found)


def _terms(row: Sequence[Fraction], names: Sequence[str]) -> str:
    """The sum of `names` with the factors of a row."""
    text = ""
    for factor, name in zip(row, names, strict=True):
        if factor:
            size = "" if abs(factor) == 1 else f"{float(abs(factor))!r} * "
            sign = " - " if factor < 0 else " + "
            text += (sign if text else sign.strip(" +")) + size + name
    return text or "0.0"


def _pairs(matrix: Matrix) -> list[int]:
    """Rows that, with the next one, are a sum and a difference of the same two rows."""
    found = []
    for i, (a, b) in enumerate(itertools.pairwise(matrix)):
        if all(abs(x) == abs(y) for x, y in zip(a, b, strict=True)) and i - 1 not in found:
            found.append(i)
    return found


def _spread(matrix: Matrix, names: Sequence[str], out: str) -> list[str]:
    """Declares `out`0, ...: the matrix times the vector of `names`, rows in pairs where they can.

    Points p and -p give rows that differ in sign only where powers are odd.
    """
    lines, pairs = [], _pairs(matrix)
    for i, row in enumerate(matrix):
        if i - 1 in pairs:
            lines.append(f"let {out}{i} = {out}{i - 1}_same - {out}{i - 1}_other;")
        elif i in pairs:
            following = matrix[i + 1]
            for kind, sign in (("same", 1), ("other", -1)):
                part = [
                    x if x == sign * y else Fraction(0) for x, y in zip(row, following, strict=True)
                ]
                lines.append(f"let {out}{i}_{kind} = {_terms(part, names)};")
            lines.append(f"let {out}{i} = {out}{i}_same + {out}{i}_other;")
        else:
            lines.append(f"let {out}{i} = {_terms(row, names)};")
    return lines


def _gather(matrix: Matrix, names: Sequence[str], out: str) -> list[str]:
    """The same for a matrix whose columns come in such pairs: sums and differences come first."""
    columns = tuple(zip(*matrix, strict=True))
    lines, factors, used = [], [], []
    pairs = _pairs(columns)
    for i, name in enumerate(names):
        if i - 1 in pairs:
            continue
        if i not in pairs:
            factors.append(columns[i])
            used.append(name)
            continue
        for kind, sign in (("sum", "+"), ("difference", "-")):
            lines.append(f"let {out}{i}_{kind} = {name} {sign} {names[i + 1]};")
            same = kind == "sum"
            column = (
                x if (x == y) == same else Fraction(0)
                for x, y in zip(*columns[i : i + 2], strict=True)
            )
            factors.append(tuple(column))
            used.append(f"{out}{i}_{kind}")
    rows = zip(*factors, strict=True)
    return [*lines, *(f"let {out}{i} = {_terms(row, used)};" for i, row in enumerate(rows))]


@cache
def input_text(size: int, modes: tuple[str, str] = ("", "")) -> str:
    """Loads the pixels of a tile, transforms columns, then half of the rows at a time, and stores
    them: a driver that compiles for a CPU takes long for each store.

    `modes`: `Windows.repeats` of rows and columns.
    """
    places = size + TAPS - 1
    lines = []
    for j in range(places):
        column = folded(modes[1], f"first_w + {j}", "params.in_w")
        lines += [f"let column{j} = u32({column});", f"let inside{j} = column{j} < params.in_w;"]
    for i in range(places):
        lines += [
            f"let y{i} = u32({folded(modes[0], f'first_h + {i}', 'params.in_h')});",
            f"let row_inside{i} = y{i} < params.in_h;",
            f"let row{i} = plane + y{i} * params.in_w;",
        ]
        for j in range(places):
            within = f"row_inside{i} && inside{j}"
            at = f"select(0u, row{i} + column{j}, {within})"
            lines.append(f"let x{i}_{j} = select(0.0, load_x({at}), {within});")
    matrix = transforms(size).input
    for j in range(places):
        lines += _spread(matrix, [f"x{i}_{j}" for i in range(places)], f"c{j}_")
    rows = places // 2
    body: list[str] = []
    for j in range(places):
        found = [f"c{j}_{i}" for i in range(places)]
        halves = _vector(found[:rows]), _vector(found[rows:])
        body.append(f"let d{j} = select({', '.join(halves)}, half == 1u);")
    body += _spread(matrix, [f"d{j}" for j in range(places)], "r")
    body.append(f"let at = half * {rows * places}u * params.count + index;")
    for i, j in itertools.product(range(rows), range(places)):
        body.append(f"store_spread(at + {i * places + j}u * params.count, r{j}[{i}]);")
    # from 0, but drivers do not know that, and do not write the body twice
    lines += ["for (var half = groups.x >> 31u; half < 2u; half++) {", *indented(body), "}"]
    return join(lines, 1)


@cache
def output_text(size: int) -> str:
    """Loads the products of a tile, transforms columns, then row by row, and stores the outputs.

    A row with what is infinite or NaN is summed without transforms.
    """
    places = size + TAPS - 1
    lines = [
        f"let m{i}_{j} = load_products({i * places + j}u * params.count + index);"
        for i in range(places)
        for j in range(places)
    ]
    matrix = transforms(size).output
    for j in range(places):
        lines += _gather(matrix, [f"m{i}_{j}" for i in range(places)], f"c{j}_")
        lines.append(f"let d{j} = {_vector([f'c{j}_{i}' for i in range(size)])};")
    body = _gather(matrix, [f"d{j}[i]" for j in range(places)], "r")
    body += [
        f"var row = {_vector([f'r{j}' for j in range(size)])};",
        f"if (!is_finite({' + '.join(f'r{j}' for j in range(size))})) {{",
        f"    for (var j = 0u; j < {size}u; j++) {{",
        "        row[j] = summed(n, channel, oh + i, ow + j);",
        "    }",
        "}",
        "let at = place + i * params.out_w;",
    ]
    for j in range(size):
        body.append(f"if (ow + {j}u < params.out_w) {{ store_y(at + {j}u, row[{j}] + bias); }}")
    lines.append(f"for (var i = 0u; i < min({size}u, params.out_h - oh); i++) {{")
    return join([*lines, *indented(body), "}"], 1)


def _summed_taps(mode: str) -> str:
    """Adds the products of a row of three taps."""
    lines = []
    for tap in range(TAPS):
        inside, column = f"iy < params.in_h && x{tap} < params.in_w", f"first_w + {tap}"
        lines += [
            f"let x{tap} = u32({folded(mode, column, 'params.in_w')});",
            f"let in{tap} = {inside};",
            f"let pixel{tap} = select(0.0, load_x(select(0u, line + x{tap}, in{tap})), in{tap});",
            f"sum += pixel{tap} * load_w(at + {tap}u);",
        ]
    return join(lines, 2)


def _summed_trips(geo: Geometry, size: int) -> Dim:
    """Loop iterations of an invocation that sums all results of its tile."""
    return size * (size + 1) + size * size * TAPS * geo.group_in


def _vector(parts: Sequence[str]) -> str:
    return f"vec{len(parts)}<f32>({', '.join(parts)})"


def _weights(size: int, across: bool) -> Callable[[Array], Array]:
    """Makes [places * places, out_channels, channels] of weights, or transposed."""

    def make(w: Array) -> Array:
        turn = np.array([[float(v) for v in row] for row in transforms(size).weights])
        found = np.einsum(
            f"ia,ocab,jb->ij{'oc' if across else 'co'}",
            turn,
            w.reshape(*w.shape[:2], TAPS, TAPS),
            turn,
        )
        return np.ascontiguousarray(
            found.reshape(len(turn) ** 2, *found.shape[2:]), dtype=np.float32
        )

    return make


@dataclass(frozen=True)
class Bands:
    """The tiles of a convolution in runs of rows that are computed in turn.

    What the transforms write for a band stays in a cache until it is read, and fits a binding.

    Attributes:
        rows, columns: of tiles, those of all images under each other.
        height: rows of a band. count: bands; the last one may repeat rows of the one before.
        row_nbytes: what transforms write for a row of tiles.
    """

    rows: Dim
    columns: Dim
    height: Dim
    count: Dim
    row_nbytes: Dim

    @property
    def tiles(self) -> Dim:
        """Tiles of a band, with some that only make it a multiple of four."""
        return 4 * ceildiv(self.height * self.columns, 4)


def bands(geo: Geometry, size: int) -> Bands:
    """Bands of equal height, if sizes are known."""
    _, out_h, out_w = geo.win.out
    rows, columns = geo.batch * ceildiv(out_h, size), ceildiv(out_w, size)
    row_nbytes = 4 * (size + TAPS - 1) ** 2 * columns * (geo.group_in + geo.group_out)
    height = dmin(dmax(rows, 1), dmax(floordiv(BAND_NBYTES, dmax(row_nbytes, 1)), 1))
    height = dmax(height, ceildiv(rows, MAX_BANDS))
    count = ceildiv(rows, height)
    if isinstance(rows, int) and isinstance(count, int):
        height = ceildiv(rows, max(count, 1))
    return Bands(rows, columns, height, count, row_nbytes)


def fits(view: Lowering, geo: Geometry, size: int) -> bool:
    """Whether the kernels can compute a convolution: of constant weights, with room for a band."""
    win = geo.win
    if view.const(1) is None or geo.group != 1 or win.kernel != (1, TAPS, TAPS):
        return False
    if win.strides[1:] != (1, 1) or win.dilations[1:] != (1, 1):
        return False
    if not (win.size[0] == win.out[0] == 1 and win.begin[0] == 0):
        return False  # tiles are counted by images, not by the planes of an image
    if at_least(view.target.max_loop_trips, _summed_trips(geo, size)).known is not True:
        return False
    found = bands(geo, size)
    weights = 4 * product(((size + TAPS - 1) ** 2, geo.group_in, geo.group_out))
    band = view.likely(found.height * found.row_nbytes)
    if band is None or not isinstance(weights, int):
        return False
    return max(weights, band) <= view.target.max_storage_buffer_binding_size


def best_size(view: Lowering, geo: Geometry) -> int:
    """The size of tiles that seems fastest in software, 0 if that is none.

    Times are counted in products, at the sizes of the call that the plan is made for.
    """
    element, weight, plain = COSTS[shares_loads(view.target)]
    found, least = 0, 0.9 * plain
    for size in POINTS:
        if not fits(view, geo, size):
            continue
        tiles = view.likely(bands(geo, size).rows * bands(geo, size).columns)
        direct = view.likely(
            TAPS**2 * product((geo.batch, *geo.win.out, geo.group_in, geo.group_out))
        )
        places = (size + TAPS - 1) ** 2
        ins, outs = geo.group_in, geo.group_out
        if tiles is None or direct is None or not (isinstance(ins, int) and isinstance(outs, int)):
            continue
        products = (
            tiles * ins * outs / max(_shares_used(view, tiles, outs))
            + element * tiles * (ins + outs)
            + weight * ins * outs
        )
        share = places * products / max(direct, 1)
        if tiles >= 16 and share < least:
            found, least = size, share
    return found


def _shares_used(view: Lowering, tiles: int, outs: int) -> tuple[float, float]:
    """Which share of the kernel between the transforms is of use, with tiles as columns of the
    product, and with tiles as rows."""
    lanes = LANES[shares_loads(view.target)]

    def used(columns: int, rows: int) -> float:
        padded = -(-columns // lanes) * lanes * -(-rows // ROWS) * ROWS
        return columns * rows / padded if padded else 1.0

    return used(tiles, outs), used(outs, tiles)


def _is_across(view: Lowering, geo: Geometry, tiles: Dim) -> bool:
    """Whether tiles are the columns of the product: transforms are fastest so."""
    likely, outs = view.likely(tiles), geo.group_out
    if likely is None or not isinstance(outs, int):
        return True
    across, down = _shares_used(view, likely, outs)
    return CLEARLY * across >= down


def stages(view: Lowering, geo: Geometry, size: int) -> list[Stage]:
    """Transform of the input, products, transform of the output; for each band in turn."""
    win, cut = geo.win, bands(geo, size)
    way = _Way(geo, size, cut, _is_across(view, geo, cut.height * cut.columns))
    _, in_h, in_w = win.size
    _, out_h, out_w = win.out
    spread = view.scratch(FLOAT32, (way.places, geo.group_in, cut.tiles))
    sums = view.scratch(FLOAT32, (way.places, geo.group_out, cut.tiles))
    modes = win.repeats(1), win.repeats(2)
    pixels = {"in_h": in_h, "in_w": in_w, "pad_h": win.begin[1], "pad_w": win.begin[2]}
    first = way.transform(
        "conv_winograd_input",
        {"x": view.node.inputs[0], "spread": spread},
        geo.group_in,
        pixels,
        {"TRANSFORM": input_text(size, modes), "FOLDS": folds(win)},
    )
    between = product_stage(way.product(view, spread), sums, view.target)
    bias = {"b": view.node.inputs[2]} if view.has(2) else {}
    last = way.transform(
        "conv_winograd_output",
        {
            "products": sums,
            "x": view.node.inputs[0],
            "w": view.node.inputs[1],
            **bias,
            "y": view.node.outputs[0],
        },
        geo.group_out,
        {"out_h": out_h, "out_w": out_w, "group_in": geo.group_in, **pixels},
        {
            "TRANSFORM": output_text(size),
            "FOLDS": folds(win),
            "IY": folded(modes[0], "first_h + i32(row % 3u)", "params.in_h"),
            "TAPS": _summed_taps(modes[1]),
        },
        trips=_summed_trips(geo, size),
    )
    return [(first,), _in_turn(between, cut.count), (last,)]


@dataclass(frozen=True)
class _Way:
    """What the three stages agree on.

    Attributes:
        cut: the bands. across: whether tiles are the columns of the product, and not its rows.
    """

    geo: Geometry
    size: int
    cut: Bands
    across: bool

    @property
    def places(self) -> int:
        """Places in a transformed tile."""
        return (self.size + TAPS - 1) ** 2

    def transform(
        self,
        shader: str,
        tensors: dict[str, str],
        channels: Dim,
        params: Mapping[str, Dim | float],
        text: dict[str, str],
        trips: Dim = 1,
    ) -> KernelCall:
        """A dispatch of one of the transforms, which computes a tile of a channel at a time."""
        cut = self.cut
        grid: dict[str, Dim | float] = {
            "tiles_h": ceildiv(self.geo.win.out[1], self.size),
            "tiles_w": cut.columns,
            "tiles": cut.height * cut.columns,
            "inner": cut.tiles if self.across else channels,
            "channels_inner": int(not self.across),
            "band_rows": cut.height,
            "last_row": dmax(cut.rows - cut.height, 0),
        }
        count = cut.tiles * channels
        return KernelCall(
            shader,
            tensors,
            {**grid, "count": count, "channels": channels, **params},
            linear(count),
            flags=frozenset({"BIAS"} if "b" in tensors else ()),
            text=text,
            overrides={"SIZE": self.size},
            trips=trips,
            repeat=cut.count,
        )

    def product(self, view: Lowering, spread: str) -> Product:
        """The product between the transforms: a matrix for each place."""
        inner, outer, tiles = self.geo.group_in, self.geo.group_out, self.cut.tiles
        kind = f"winograd{self.size}{'' if self.across else '-t'}"
        weights = view.derived(1, kind, _weights(self.size, self.across), FLOAT32)
        operands = (weights, (product((inner, outer)),), outer), (spread, (inner * tiles,), tiles)
        (a, a_batch, rows), (b, b_batch, columns) = operands if self.across else operands[::-1]
        return Product(
            kind="f32",
            a=a,
            b=b,
            rows=rows,
            columns=columns,
            inner=inner,
            batch=(self.places,),
            a_batch=a_batch,
            b_batch=b_batch,
        )


def _in_turn(stage: Stage, count: Dim) -> Stage:
    """A stage that is dispatched `count` times, each time for the same elements of its values."""
    turn = "    _ = repeat_index();\n"
    return tuple(
        replace(call, repeat=count, text={**call.text, "BODY": turn + call.text["BODY"]})
        for call in stage
    )
