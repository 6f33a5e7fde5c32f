"""Dispatches of matrix products."""

from __future__ import annotations

from collections.abc import Mapping

from engine.dims import Dim, Guard, bounds, ceildiv, product
from engine.dtypes import FLOAT32
from engine.indexing import IndexMap, index_map
from engine.ops import KernelCall, Lowering, Stage, linear
from engine.ops._matmul_text import Tile, body
from engine.ops._matmul_tiles import FEW_ROWS, PARTS, Product, best, may_split, tiles
from engine.ops._variants import shares_loads
from engine.records import dataclass
from engine.target import Target


@dataclass(frozen=True)
class Grid:
    """What does not depend on the tile but on the rows and columns of a workgroup."""

    words: Mapping[str, Dim | float]
    groups: tuple[Dim, Dim, Dim]


def _grid(p: Product, rows: int, columns: int) -> Grid:
    column_blocks, row_blocks = ceildiv(p.columns, columns), ceildiv(p.rows, rows)
    tasks = product((column_blocks, row_blocks, *p.batch))
    words: dict[str, Dim | float] = {
        "rows": p.rows,
        "columns": p.columns,
        "inner": p.inner,
        "column_blocks": column_blocks,
        "row_blocks": row_blocks,
        "tasks": tasks,
    }
    return Grid(words, linear(tasks, 1))


def _call(
    p: Product,
    y: str,
    tile: Tile,
    when: tuple[Guard, ...],
    grid: Grid,
    maps: tuple[IndexMap, IndexMap],
) -> KernelCall:
    extra: dict[str, tuple[str, Dim | float]] = {
        name: ("u32", dim) for name, dim in (*maps[0].params, *maps[1].params)
    }
    if tile.part:
        extra["whole_inner"] = ("u32", p.inner * p.parts)
    if tile.scale:
        extra["alpha"] = (p.kind, p.alpha if p.kind == "f32" else int(p.alpha))
    if tile.bias:
        extra["c_row"] = ("u32", p.c_strides[0])
    if tile.bias == "any":
        extra["c_column"] = ("u32", p.c_strides[1])
    if tile.bias and tile.bias_scale:
        extra["beta"] = (p.kind, p.beta if p.kind == "f32" else int(p.beta))
    flags, tensors = _operands(p, y, extra)
    x_lanes, y_lanes = tile.workgroup
    if tile.panels:
        tensors["b"] = p.b_panels
    more = p.packed.text if p.packed is not None else ""
    text = {
        "MAPS": maps[0].text + maps[1].text + more,
        "BUILTINS": tile.builtins,
        "BODY": body(tile),
    }
    if tile.shared:
        flags |= {"SHARED"}
        partials = tile.rows * len(tile.groups) * x_lanes * y_lanes
        text |= {"VECTOR": tile.vector, "PARTIALS": str(partials)}
    return KernelCall(
        "matmul",
        tensors,
        {**grid.words, **{name: value for name, (_, value) in extra.items()}},
        grid.groups,
        flags=flags,
        text=text,
        overrides={"WORKGROUP_X": x_lanes, "WORKGROUP_Y": y_lanes},
        extra_params=tuple((name, kind) for name, (kind, _) in extra.items()),
        trips=ceildiv(p.inner, 4 * tile.shares) + 4 + tile.shares,
        features=frozenset({"subgroups"}) if tile.subgroup else frozenset(),
        when=when,
    )


def _operands(
    p: Product, y: str, extra: dict[str, tuple[str, Dim | float]]
) -> tuple[frozenset[str], dict[str, str]]:
    """Flags and tensors of a product; adds the words of its zero points to `extra`."""
    flags, tensors = set(), {"a": p.a, "b": p.b, "y": y}
    if p.c:
        flags.add("BIAS")
        tensors["c"] = p.c
    for name, zero in (("a_zero", p.a_zero), ("b_zero", p.b_zero)):
        if zero.form == "word":
            extra[name] = ("i32", zero.word)
        elif zero.form == "buffer":
            flags.add(name.upper())
            tensors[name] = zero.name
            extra[f"{name}_step"] = ("u32", zero.step)
    if p.packed is not None:
        flags.update(name.upper() for name in p.packed.tensors)
        tensors.update(p.packed.tensors)
        extra.update((name, ("u32", dim)) for name, dim in p.packed.words.items())
    return frozenset(flags), tensors


def product_stages(view: Lowering, p: Product, y: str) -> list[Stage]:
    """As `product_stage`, or two stages where parts of the inner axis keep more of a GPU busy."""
    few = (bounds(p.rows)[0] or 0) <= FEW_ROWS or p.columns == 1
    parts = 1
    if view.style in PARTS:
        parts = PARTS[view.style] if may_split(p, PARTS[view.style]) else 1
    elif view.style:
        parts = 1
    elif p.is_static and not few and not view.target.software and not shares_loads(view.target):
        parts = best(p, splitting=True)[1]
    if parts == 1:
        return [product_stage(p, y, view.target, view.style)]
    size = product((*p.batch, p.rows, p.columns))
    sums = view.scratch(FLOAT32, (parts, size))
    place = (p.rows, p.columns, *p.c_strides)
    total = sum_stage(sums, y, size, parts, size, p.c, place, (p.alpha, p.beta))
    return [product_stage(p.split(parts), sums, view.target), total]


def sum_stage(
    sums: str,
    y: str,
    size: Dim,
    parts: int,
    step: Dim,
    c: str = "",
    c_place: tuple[Dim, Dim, Dim, Dim] = (1, 1, 0, 0),
    scales: tuple[float, float] = (1.0, 1.0),
) -> Stage:
    """Adds up parts of sums, and c.

    Args:
        size: elements of y. step: elements of one part that lie together.
        c_place: rows and columns of y, and elements of c from one to the next.
        scales: of the sums and of c.
    """
    tensors = {"sums": sums, "y": y, **({"c": c} if c else {})}
    rows, columns, c_row, c_column = c_place
    params: dict[str, Dim | float] = {
        "size": size,
        "parts": parts,
        "step": step,
        "rows": rows,
        "columns": columns,
        "c_row": c_row,
        "c_column": c_column,
        "alpha": scales[0],
        "beta": scales[1],
    }
    flags = frozenset({"BIAS"} if c else ())
    return (KernelCall("matmul_sum", tensors, params, linear(size), flags=flags, trips=parts),)


def product_stage(p: Product, y: str, target: Target, style: str = "") -> Stage:
    """The dispatch of a product into value `y`, with its alternatives."""
    if p.columns == 1 and p.rows != 1 and p.is_plain:
        p = p.row_result()
    maps = index_map("batch_a", p.batch, p.a_batch), index_map("batch_b", p.batch, p.b_batch)
    grids: dict[tuple[int, int], Grid] = {}
    calls = []
    for tile, when in tiles(p, target, style):
        if tile.block not in grids:
            grids[tile.block] = _grid(p, *tile.block)
        calls.append(_call(p, y, tile, when, grids[tile.block], maps))
    return tuple(calls)
