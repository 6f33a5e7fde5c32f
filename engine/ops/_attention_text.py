"""Generated text of the attention kernels: value columns, kept in registers, unrolled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from engine.records import dataclass

TILE_COLUMNS = 32
"""Value columns of a group in attention.wgsl: four for each of eight invocations."""
PARTS = 8
"""Invocations that share queries."""
ROW_COLUMNS = 64
"""Value columns of a group in attention_row.wgsl: one for each invocation."""


@dataclass(frozen=True)
class Tile:
    """How attention.wgsl divides its work; see there.

    Attributes:
        rows, keys: queries and keys of an invocation; 4 divides both.
        stacks: of `rows` queries in a workgroup; each is shared by `PARTS` invocations.
    """

    rows: int
    keys: int
    stacks: int

    @property
    def all_rows(self) -> int:
        """Queries of a workgroup."""
        return self.rows * self.stacks

    @property
    def all_keys(self) -> int:
        """Keys of a tile."""
        return self.keys * PARTS

    @property
    def fours(self) -> range:
        """Groups of four queries of an invocation."""
        return range(self.rows // 4)

    @property
    def key_fours(self) -> range:
        """Groups of four keys of an invocation."""
        return range(self.keys // 4)

    def weight(self, key: str, four: int) -> str:
        """Where the weights of a key for four queries of the stack lie."""
        return f"weights[(({key}) * {self.stacks}u + stack) * {len(self.fours)}u + {four}u]"


@cache
def tile_text(tile: Tile, value_size: int) -> Mapping[str, str]:
    """Fields of attention.wgsl for a number of value columns."""
    groups = range(-(-value_size // TILE_COLUMNS))
    lines = [
        *_tile_start(tile, groups),
        *_products(tile),
        *_weights(tile),
        *_values(tile, groups),
        *_finish(tile, groups),
    ]
    fours = len(tile.fours) * tile.stacks
    return {
        "ROWS": str(tile.rows),
        "STACKS": str(tile.stacks),
        "TOPS": str(fours * PARTS),
        "WEIGHTS": str(fours * tile.all_keys),
        "BODY": _lines(4, lines),
    }


def _tile_start(tile: Tile, groups: range) -> Iterator[str]:
    for r in range(tile.rows):
        yield f"let query{r} = query_of(min(row + {r}u, last_row), batch, group.y);"
    for f in tile.fours:
        yield f"var tops{f} = vec4<f32>(-infinity_f32());"
        yield f"var sums{f} = vec4<f32>();"
    for r in range(tile.rows):
        for n in groups:
            yield f"var total{r}_{n} = vec4<f32>();"
    yield f"for (var tile = 0u; tile < end; tile += {tile.all_keys}u) {{"
    yield f"    let key = tile + part * {tile.keys}u;"
    for c in range(tile.keys):
        yield f"    let key{c} = k_start + min(key + {c}u, last_key) * params.k_stride;"


def _products(tile: Tile) -> Iterator[str]:
    """Scores of the queries by the keys of an invocation."""
    for r in range(tile.rows):
        for g in tile.key_fours:
            yield f"    var s{r}_{g} = vec4<f32>();"
    yield "    for (var i = 0u; i < params.size; i += 4u) {"
    for c in range(tile.keys):
        yield f"        let b{c} = k4(key{c}, i);"
    for r in range(tile.rows):
        yield f"        let a{r} = q4(query{r}.q, i);"
        for g in tile.key_fours:
            dots = ", ".join(f"dot(a{r}, b{4 * g + c})" for c in range(4))
            yield f"        s{r}_{g} += vec4<f32>({dots});"
    yield "    }"
    for r in range(tile.rows):
        for g in tile.key_fours:
            yield f"    s{r}_{g} = scores_of(s{r}_{g}, query{r}, key + {4 * g}u, keys);"


def _most(tile: Tile, row: int) -> str:
    """The largest score of a row, of those that the invocation has."""
    scores = [f"s{row}_{g}" for g in tile.key_fours]
    joined = scores[0]
    for other in scores[1:]:
        joined = f"max({joined}, {other})"
    return f"top({joined})"


def _weights(tile: Tile) -> Iterator[str]:
    """Maxima over the tile; exponentials go to where all invocations find them."""
    count = len(tile.fours)
    for f in tile.fours:
        tops = ", ".join(_most(tile, 4 * f + r) for r in range(4))
        yield f"    largest[lane * {count}u + {f}u] = vec4<f32>({tops});"
        yield f"    var new_tops{f} = tops{f};"
    yield "    workgroupBarrier();"
    for i in range(PARTS):
        for f in tile.fours:
            at = f"(stack * {PARTS}u + {i}u) * {count}u + {f}u"
            yield f"    new_tops{f} = max(new_tops{f}, largest[{at}]);"
    for f in tile.fours:
        yield f"    let bases{f} = bases_of(new_tops{f});"
        yield f"    let rescale{f} = exp_each(tops{f} - bases{f});"
        yield f"    tops{f} = new_tops{f};"
        sums = []
        for r in range(4 * f, 4 * f + 4):
            for g in tile.key_fours:
                yield f"    s{r}_{g} = exp_each(s{r}_{g} - bases{f}[{r % 4}]);"
            sums.append(" + ".join(f"s{r}_{g}" for g in tile.key_fours))
        totals = ", ".join(f"total({s})" for s in sums)
        yield f"    sums{f} = sums{f} * rescale{f} + vec4<f32>({totals});"
        for c in range(tile.keys):
            four = ", ".join(f"s{4 * f + r}_{c // 4}[{c % 4}]" for r in range(4))
            yield f"    {tile.weight(f'part * {tile.keys}u + {c}u', f)} = vec4<f32>({four});"
    yield "    workgroupBarrier();"


def _values(tile: Tile, groups: range) -> Iterator[str]:
    """Adds the values of the tile by their weights, four keys at a time.

    Keys that are left are added one by one: a weight of 0 would make infinity NaN.
    """
    for r in range(tile.rows):
        for n in groups:
            yield f"    total{r}_{n} *= rescale{r // 4}[{r % 4}];"
    yield f"    let count = min({tile.all_keys}u, end - tile);"
    for first, last, step in (("0u", "count / 4u * 4u", 4), ("count / 4u * 4u", "count", 1)):
        yield f"    for (var i = {first}; i < {last}; i += {step}u) {{"
        for c in range(step):
            yield f"        let v_{c} = v_start + (tile + i + {c}u) * params.v_stride;"
            for f in tile.fours:
                yield f"        let w{c}_{f} = {tile.weight(f'i + {c}u', f)};"
            for n in groups:
                yield f"        let x{c}_{n} = v4(v_{c}, column + {TILE_COLUMNS * n}u);"
                for r in range(tile.rows):
                    yield f"        total{r}_{n} += w{c}_{r // 4}[{r % 4}] * x{c}_{n};"
        yield "    }"
    yield "}"


def _finish(tile: Tile, groups: range) -> Iterator[str]:
    """Divides by the sums of all invocations of a row, and stores."""
    count = len(tile.fours)
    for f in tile.fours:
        yield f"largest[lane * {count}u + {f}u] = sums{f};"
    yield "workgroupBarrier();"
    for f in tile.fours:
        places = (f"(stack * {PARTS}u + {i}u) * {count}u + {f}u" for i in range(PARTS))
        yield f"let factors{f} = factors_of({' + '.join(f'largest[{p}]' for p in places)});"
    for r in range(tile.rows):
        yield f"if (row + {r}u < params.rows) {{"
        for n in groups:
            value = f"total{r}_{n} * factors{r // 4}[{r % 4}]"
            yield f"    put(query{r}.y, column + {TILE_COLUMNS * n}u, {value});"
        yield "}"


@cache
def row_text(value_size: int) -> Mapping[str, str]:
    """Fields of attention_row.wgsl for a number of value columns."""
    groups = range(-(-value_size // ROW_COLUMNS))
    places = [f"lane + {ROW_COLUMNS * n}u" for n in groups]
    return {
        "COLUMNS": _lines(4, (f"var total{n} = 0.0;" for n in groups)),
        "RESCALE": _lines(8, (f"total{n} *= rescale;" for n in groups)),
        "ADD": _lines(
            12,
            (
                f"total{n} += w * load_v(value + min({place}, params.value_size - 1u));"
                for n, place in enumerate(places)
            ),
        ),
        "FINISH": _lines(
            4,
            (
                f"if ({place} < params.value_size) {{ "
                f"store_y(query.y + {place}, total{n} * factor); }}"
                for n, place in enumerate(places)
            ),
        ),
    }


def _lines(indent: int, lines: Iterable[str]) -> str:
    return "\n".join(" " * indent + line for line in lines)
