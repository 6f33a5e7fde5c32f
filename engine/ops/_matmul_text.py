"""Generated text of the matrix product kernels: one register tile, unrolled."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from engine.records import dataclass

PANEL = 32
"""Columns of b that lie together in panels: what a CPU's vector reads is then one run of memory."""
EXACT = 256
"""Products of two integers in [-255, 255] whose sum f32 holds, with a few more."""


@dataclass(frozen=True)
class Tile:
    """How one invocation computes `rows` x `columns` elements, and how operands are stored.

    Attributes:
        kind: element type in WGSL: "f32", "i32" or "u32".
        rows, columns: elements of an invocation; 4 divides columns, or there are 1 or 2.
        workgroup: invocations along columns and rows of the result.
        steps: elements of the inner axis in a trip of the loop: 4, or 8 which divide it.
        a_transposed, b_transposed: a is [inner, rows], b is [columns, inner].
        inner_by_four, rows_by_four, columns_by_four: 4 divides that size.
        shared: invocations of a workgroup share the inner axis (few rows) instead of rows.
        subgroup: the eight invocations of a subgroup load the rows of a together; 8 divides rows.
        panels: b is [columns / PANEL, inner, PANEL], padded, and the only matrix of its batch; 4
            divides columns.
        scale: multiply by `params.alpha`.
        bias: "" or how c is added: "row" (four neighbours at a time) or "any".
        bias_scale: multiply c by `params.beta`.
        a_kind, b_kind: types that elements of a and b are loaded as, if they must be converted.
        a_zero, b_zero: what is subtracted from them: "" (nothing), "word" (a parameter) or
            "buffer" (for each row of a or column of b). Not for transposed operands.
        part: `params.inner` is a part of the inner axis, whose size is `params.whole_inner`.
        b_packed: b is transposed, and read by `weight(column, k)` and `weight4(column, k)`.
        as_floats: factors are integers of at most 8 bits and a sign, and are multiplied as f32, for
            GPUs take four times as long for integers. Sums are exact until `EXACT` elements on,
            when they go to those of integers. Not with `shared`.
        rolled: as software drivers like it. Rows are stored by a loop: a driver that compiles for a
            CPU takes most of its time for stores, and the loop costs little beside the sums. These
            are summed one after the other: so many are in memory, and each is fetched and put back
            once in a trip.
    """

    kind: str
    rows: int
    columns: int
    workgroup: tuple[int, int]
    steps: int = 4
    a_transposed: bool = False
    b_transposed: bool = False
    inner_by_four: bool = False
    rows_by_four: bool = False
    columns_by_four: bool = False
    shared: bool = False
    subgroup: bool = False
    panels: bool = False
    scale: bool = False
    bias: str = ""
    bias_scale: bool = False
    a_kind: str = ""
    b_kind: str = ""
    a_zero: str = ""
    b_zero: str = ""
    b_packed: bool = False
    as_floats: bool = False
    part: bool = False
    rolled: bool = False

    @property
    def pitch(self) -> str:
        """Elements from one row of a, or column of a transposed b, to the next."""
        return "params.whole_inner" if self.part else "params.inner"

    @property
    def width(self) -> int:
        """Neighbouring columns that are summed as one vector."""
        return min(self.columns, 4)

    @property
    def vector(self) -> str:
        """Type of the sums."""
        return self.kind if self.width == 1 else f"vec{self.width}<{self.kind}>"

    @property
    def factor(self) -> str:
        """Type of factors as they are multiplied, as many as are summed as one vector."""
        return self.vector.replace(self.kind, "f32") if self.as_floats else self.vector

    @property
    def four(self) -> str:
        """Type of four neighbours."""
        return f"vec4<{self.kind}>"

    @property
    def builtins(self) -> str:
        """Parameters of the entry point beyond those that the template has."""
        return "    @builtin(subgroup_invocation_id) lane: u32,\n" if self.subgroup else ""

    @property
    def groups(self) -> range:
        """Vectors of neighbouring columns."""
        return range(self.columns // self.width)

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of the result that one workgroup computes."""
        x, y = self.workgroup
        if self.shared:
            return self.rows, self.columns * (y if self.along_inner else x)
        return self.rows * y, self.columns * x

    @property
    def shares(self) -> int:
        """Invocations that share the inner axis."""
        if not self.shared:
            return 1
        return self.workgroup[0] if self.along_inner else self.workgroup[1]

    @property
    def starts(self) -> tuple[str, str]:
        """Names of where a and b start. GPUs add where these begin in their buffers only once."""
        if self.rolled or self.panels or self.b_packed:
            return "a_start", "b_start"
        return "a_first", "b_first"

    @property
    def along_inner(self) -> bool:
        """Whether x of a workgroup that shares runs along the inner axis, as b is stored."""
        return self.shared and self.b_transposed


@cache
def body(tile: Tile) -> str:
    """The text of `${BODY}` in matmul.wgsl."""
    lines = [*_places(tile), *_starts(tile), *_zeros(tile), *_loops(tile)]
    lines += [*(_moved(tile) if tile.as_floats else ()), *_reduce(tile), *_finish(tile)]
    return "\n".join(f"    {line}" for line in lines)


def _places(tile: Tile) -> Iterator[str]:
    """First row and column of the invocation, and its share of the inner axis."""
    x, y = ("local.y", "local.x") if tile.along_inner else ("local.x", "local.y")
    across = "WORKGROUP_Y" if tile.along_inner else "WORKGROUP_X"
    kind = "var" if tile.subgroup else "let"
    yield f"{kind} column = (column_block * {across} + {x}) * {tile.columns}u;"
    if tile.shared:
        yield f"let row = block * {tile.rows}u;"
        yield f"let share = {y};"
        return
    if tile.subgroup:
        # subgroups stay whole: what is past the end repeats the last columns
        yield f"let row = block * {tile.rows}u;"
        yield "let inside = column < params.columns;"
        yield "column = min(column, (params.columns - 1u) / 4u * 4u);"
        return
    if tile.workgroup[1] == 1:
        yield f"let row = block * {tile.rows}u;"
        yield "if (column >= params.columns) {"
    else:
        yield f"let row = (block * WORKGROUP_Y + local.y) * {tile.rows}u;"
        yield "if (column >= params.columns || row >= params.rows) {"
    yield "    return;"
    yield "}"


def _starts(tile: Tile) -> Iterator[str]:
    """Sums, and where the rows of a and the columns of b start."""
    a_start, b_start = tile.starts
    if tile.starts != ("a_start", "b_start"):
        yield f"let {a_start} = a_start + begin_a();"
        yield f"let {b_start} = b_start + begin_b();"
    for i in range(tile.rows):
        for j in tile.groups:
            yield f"var sum{i}_{j} = {tile.vector}();"
            if tile.as_floats:
                yield f"var part{i}_{j} = {tile.factor}();"
    if tile.subgroup:
        for i in range(0, tile.rows, 8):
            yield f"let row{i} = min(row + {i}u + lane, params.rows - 1u);"
            yield f"let a{i} = {a_start} + row{i}{'' if tile.a_transposed else f' * {tile.pitch}'};"
    elif not tile.a_transposed:
        for i in range(tile.rows):
            at = "row" if i == 0 else f"min(row + {i}u, params.rows - 1u)"
            yield f"let a{i} = {a_start} + {at} * {tile.pitch};"
    if tile.panels:
        for j in tile.groups:
            at = f"(column + {4 * j}u)"
            yield f"let b{j} = ({at} / {PANEL}u * params.inner * {PANEL}u + {at} % {PANEL}u) / 4u;"
    elif tile.b_transposed:
        for c in range(tile.columns):
            at = f"min(column + {c}u, params.columns - 1u)"
            yield f"let b{c} = {at if tile.b_packed else f'{b_start} + {at} * {tile.pitch}'};"
            if tile.inner_by_four and not tile.b_packed:
                yield f"let b{c}_quad = b{c} / 4u;"
    elif not tile.columns_by_four:
        for c in range(tile.columns):
            yield f"let b{c} = {b_start} + min(column + {c}u, params.columns - 1u);"
    else:
        yield "let columns_quad = params.columns / 4u;"
        for j in tile.groups:
            at = (
                "column"
                if j == 0 and not tile.shared
                else f"min(column + {4 * j}u, params.columns - 4u)"
            )
            yield f"let b{j} = ({b_start} + {at}) / 4u;"


def _zeros(tile: Tile) -> Iterator[str]:
    """Zero points of the rows of a and of the columns of b."""
    if tile.a_zero == "buffer":
        for i in range(tile.rows):
            at = f"min(row + {i}u, params.rows - 1u) * params.a_zero_step"
            yield f"let a_zero{i} = {tile.kind}(load_a_zero({at}));"
    if tile.b_zero == "buffer":
        for j in tile.groups:
            places = (f"min(column + {c}u, params.columns - 1u)" for c in _neighbours(tile, j))
            loads = (f"{tile.kind}(load_b_zero({at} * params.b_zero_step))" for at in places)
            yield f"let b_zero{j} = {tile.vector}({', '.join(loads)});"


def _neighbours(tile: Tile, j: int) -> range:
    """Columns of the tile that vector `j` holds."""
    return range(tile.width * j, tile.width * (j + 1))


def _taken(tile: Tile, operand: str, value: str, kind: str, index: int) -> str:
    """A loaded scalar or vector of a or b as a factor: converted, and less its zero point."""
    loaded, zero = (tile.a_kind, tile.a_zero) if operand == "a" else (tile.b_kind, tile.b_zero)
    value = f"{kind}({value})" if loaded else value
    if not zero:
        return value
    return f"({value} - {f'params.{operand}_zero' if zero == 'word' else f'{operand}_zero{index}'})"


def _loops(tile: Tile) -> Iterator[str]:
    parts = tile.shares
    first, step = ("0u", f"{tile.steps}u") if not tile.shared else ("share * 4u", f"{4 * parts}u")
    whole = "params.inner" if tile.inner_by_four else "whole"
    if not tile.inner_by_four:
        yield "let whole = params.inner / 4u * 4u;"
    yield f"for (var k = {first}; k < {whole}; k += {step}) {{"
    yield from _indent(_block(tile, 4))
    if tile.steps == 8:
        yield "    {"
        yield "        let k = k + 4u;"
        yield from _indent(_indent(_block(tile, 4)))
        yield "    }"
    if tile.as_floats:
        yield f"    if ((k & {EXACT - 1}u) >= {EXACT - tile.steps}u) {{"
        yield from _indent(_indent(_moved(tile)))
        for i in range(tile.rows):
            yield from (f"        part{i}_{j} = {tile.factor}();" for j in tile.groups)
        yield "    }"
    yield "}"
    if not tile.inner_by_four:
        first, step = ("whole", "1u") if not tile.shared else ("whole + share", f"{parts}u")
        yield f"for (var k = {first}; k < params.inner; k += {step}) {{"
        yield from _indent(_block(tile, 1))
        yield "}"


def _moved(tile: Tile) -> Iterator[str]:
    """Adds what was summed as floats to the sums of integers."""
    for i in range(tile.rows):
        yield from (f"sum{i}_{j} += {tile.vector}(part{i}_{j});" for j in tile.groups)


def _indent(lines: Iterator[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def _block(tile: Tile, steps: int) -> Iterator[str]:
    """`steps` (4, or 1 for the rest) neighbours of the inner axis."""
    wide = tile.inner_by_four and steps == 4
    if wide and not tile.a_transposed:
        for i in range(0, tile.rows, 8 if tile.subgroup else 1):
            yield f"let p{i} = {_taken(tile, 'a', f'load4_a(a{i} + k)', tile.four, i)};"
    if wide and tile.b_transposed and not tile.panels:
        for c in range(tile.columns):
            four = f"weight4(b{c}, k)" if tile.b_packed else f"quad_b(b{c}_quad + k / 4u)"
            yield f"let w{c} = {four};"
    for q in range(steps):
        for j in tile.groups:
            columns = _columns(tile, wide, q, j)
            yield f"let q{q}_{j} = {f'{tile.factor}({columns})' if tile.as_floats else columns};"
        if tile.subgroup and (tile.a_transposed or not wide):
            step = " * params.rows" if tile.a_transposed else ""
            for i in range(0, tile.rows, 8):
                value = f"load_a(a{i} + (k + {q}u){step})"
                yield f"let p{q}_{i} = {_taken(tile, 'a', value, tile.kind, i)};"
        elif tile.a_transposed and tile.rows_by_four:
            for i in range(0, tile.rows, 4):
                at = f"min(row + {i}u, params.rows - 4u)"
                yield f"let p{q}_{i} = load4_a({tile.starts[0]} + (k + {q}u) * params.rows + {at});"
        if not tile.rolled:
            for i in range(tile.rows):
                yield from _products(tile, wide, q, i)
    if tile.rolled:
        for i in range(tile.rows):
            for q in range(steps):
                yield from _products(tile, wide, q, i)


def _products(tile: Tile, wide: bool, q: int, i: int) -> Iterator[str]:
    """Adds the products of row i of the tile, q steps on."""
    factor = f"{tile.factor}({_row(tile, wide, q, i)})"
    if tile.as_floats:
        factor = f"{tile.factor}(f32({_row(tile, wide, q, i)}))"
    if tile.kind == "f32" and len(tile.groups) > 1:
        yield f"let f{q}_{i} = {factor};"
        factor = f"f{q}_{i}"
    for j in tile.groups:
        name = f"{'part' if tile.as_floats else 'sum'}{i}_{j}"
        if tile.kind == "f32" or tile.as_floats:
            yield f"{name} = fma({factor}, q{q}_{j}, {name});"
        else:
            yield f"{name} += {factor} * q{q}_{j};"


def _row(tile: Tile, wide: bool, q: int, i: int) -> str:
    """Element of a in row i of the tile, q steps on."""
    if tile.subgroup:
        first = i // 8 * 8
        mine = f"p{first}[{q}]" if wide and not tile.a_transposed else f"p{q}_{first}"
        return f"subgroupBroadcast({mine}, {i % 8}u)"
    if not tile.a_transposed:
        value = f"load_a(a{i} + k + {q}u)"
        return f"p{i}[{q}]" if wide else _taken(tile, "a", value, tile.kind, i)
    if tile.rows_by_four:
        return f"p{q}_{i // 4 * 4}[{i % 4}]"
    at = f"min(row + {i}u, params.rows - 1u)"
    return f"load_a({tile.starts[0]} + (k + {q}u) * params.rows + {at})"


def _columns(tile: Tile, wide: bool, q: int, j: int) -> str:
    """Neighbouring columns of b, q steps on."""
    if tile.panels:
        return f"quad_b(b{j} + (k + {q}u) * {PANEL // 4}u)"
    if tile.b_transposed:
        load = "weight(b{}, k + {}u)" if tile.b_packed else "load_b(b{} + k + {}u)"
        parts = [f"w{c}[{q}]" if wide else load.format(c, q) for c in _neighbours(tile, j)]
        return f"{tile.vector}({', '.join(parts)})"
    if tile.columns_by_four:
        four = f"quad_b(b{j} + (k + {q}u) * columns_quad)"
        return _taken(tile, "b", four, tile.vector, j)
    step = f"(k + {q}u) * params.columns"
    loads = ", ".join(f"load_b(b{c} + {step})" for c in _neighbours(tile, j))
    kind = tile.vector.replace(tile.kind, tile.b_kind or tile.kind)
    return _taken(tile, "b", f"{kind}({loads})", tile.vector, j)


def _reduce(tile: Tile) -> Iterator[str]:
    """Adds up the shares of a workgroup; one of them goes on."""
    if not tile.shared:
        return
    parts, lanes = tile.workgroup if tile.along_inner else tile.workgroup[::-1]
    lane = "local.y" if tile.along_inner else "local.x"
    sums = [(i, j) for i in range(tile.rows) for j in tile.groups]
    for n, (i, j) in enumerate(sums):
        yield f"partial[({n}u * {parts}u + share) * {lanes}u + {lane}] = sum{i}_{j};"
    yield "workgroupBarrier();"
    yield "if (share != 0u || column >= params.columns) {"
    yield "    return;"
    yield "}"
    yield f"for (var part = 1u; part < {parts}u; part += 1u) {{"
    for n, (i, j) in enumerate(sums):
        yield f"    sum{i}_{j} += partial[({n}u * {parts}u + part) * {lanes}u + {lane}];"
    yield "}"


_AT_ONCE = 4
"""Rows between which a loop selects the one to store: moving the sums along has its price too."""


def _finish(tile: Tile) -> Iterator[str]:
    """Scales, adds c and stores, each element once."""
    if tile.subgroup:
        yield "if (inside) {"
        yield from _indent(_finish_rows(tile))
        yield "}"
    else:
        yield from _finish_rows(tile)


def _finish_rows(tile: Tile) -> Iterator[str]:
    if tile.rolled and tile.rows % _AT_ONCE == 0:
        yield from _finish_in_loop(tile)
        return
    for i in range(tile.rows):
        yield f"if (row + {i}u < params.rows) {{" if i else "{"
        yield from _indent(_finish_row(tile, f"sum{i}", f"(row + {i}u)" if i else "row"))
        yield "}"


def _finish_in_loop(tile: Tile) -> Iterator[str]:
    """A loop over four rows, in which the sums move along, and in it one over single rows."""
    yield f"let rows_end = min(row + {tile.rows}u, params.rows);"
    yield f"for (var first = row; first < rows_end; first += {_AT_ONCE}u) {{"
    yield f"    for (var at = first; at < min(first + {_AT_ONCE}u, rows_end); at++) {{"
    for j in tile.groups:
        low, high = (f"select(sum{i}_{j}, sum{i + 1}_{j}, at == first + {i + 1}u)" for i in (0, 2))
        yield f"        var found_{j} = select({low}, {high}, at >= first + 2u);"
    yield from _indent(_indent(_finish_row(tile, "found", "at")))
    yield "    }"
    for i in range(tile.rows - _AT_ONCE):
        for j in tile.groups:
            yield f"    sum{i}_{j} = sum{i + _AT_ONCE}_{j};"
    yield "}"


def _finish_row(tile: Tile, sums: str, row: str) -> Iterator[str]:
    """Stores the sums `<sums>_0`, ... in row `row`."""
    yield f"let place = y_start + {row} * params.columns + column;"
    for j in tile.groups:
        yield from _finish_four(tile, f"{sums}_{j}", j, row)


def _finish_four(tile: Tile, name: str, j: int, row: str) -> list[str]:
    """Scales, adds c to and stores the neighbouring sums `name`, the columns of vector `j`."""
    lines = [f"{name} *= {tile.vector}(params.alpha);"] if tile.scale else []
    if tile.bias:
        beta = f"{tile.vector}(params.beta) * " if tile.bias_scale else ""
        at = f"{row} * params.c_row"
        if tile.bias == "row":
            term = f"load4_c({at} + column + {4 * j}u)"
        else:
            columns = (f"min(column + {c}u, params.columns - 1u)" for c in _neighbours(tile, j))
            loads = (f"load_c({at} + {c} * params.c_column)" for c in columns)
            term = f"{tile.vector}({', '.join(loads)})"
        lines.append(f"{name} += {beta}{term};")
    if tile.columns_by_four:
        lines.append(f"store4_y(place + {4 * j}u, {name});")
        if j:
            lines = [
                f"if (column + {4 * j}u < params.columns) {{",
                *(f"    {x}" for x in lines),
                "}",
            ]
        return lines
    for c in _neighbours(tile, j):
        value = name if tile.width == 1 else f"{name}[{c % tile.width}]"
        store = f"store_y(place + {c}u, {value});"
        lines.append(store if c == 0 else f"if (column + {c}u < params.columns) {{ {store} }}")
    return lines
