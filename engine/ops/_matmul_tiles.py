"""Matrix products as data, and the choice of register tiles for them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

from engine.dims import (
    Dim,
    Guard,
    at_least,
    bounds,
    ceildiv,
    divisible,
    floordiv,
    is_static,
    product,
)
from engine.ir import Shape
from engine.ops._clocks import CLEARLY, UNITS, loop_clocks, parts_clocks
from engine.ops._matmul_text import Tile
from engine.ops._variants import MUCH, SHARED_BY, shares_loads
from engine.records import dataclass
from engine.target import Target


@dataclass(frozen=True)
class Zero:
    """A zero point: the value that holds one for each row or column (or one), or a number.

    Attributes:
        step: elements from that of one row or column to the next, 0 or 1.
    """

    name: str = ""
    word: int = 0
    step: int = 0

    @property
    def form(self) -> str:
        """ "buffer", "word", or "" for none."""
        return "buffer" if self.name else "word" if self.word else ""


@dataclass(frozen=True)
class Packed:
    """A transposed b in a format of its own.

    Attributes:
        text: WGSL with `weight(column, k) -> T` and `weight4(column, k) -> vec4<T>`.
        tensors: values bound beside b, "b_scale" and perhaps "b_zero".
        words: parameters that the text reads, all u32.
    """

    text: str
    tensors: Mapping[str, str]
    words: Mapping[str, Dim]


@dataclass(frozen=True)
class Product:
    """y[batch] = alpha * a[batch] @ b[batch] + beta * c, with sizes and operand names.

    Attributes:
        rows, columns, inner: sizes of one product.
        batch: the broadcast batch sizes; a_batch, b_batch: strides of the operands along them.
        a_transposed, b_transposed: a is stored [inner, rows], b [columns, inner].
        b_panels: b once more, stored in panels, if it is constant and the same for all batches.
        c_strides: elements of c from row to row and from column to column.
        a_kind, b_kind: types that the operands are loaded as, if not `kind`.
        a_zero, b_zero: what is subtracted from the elements of a and b.
        packed: how b is read if not by `load_b`.
        of_bytes: a and b are integers of 8 bits, so that a GPU may multiply them as floats.
        parts: parts of the inner axis, if the first axis of `batch` counts them; `inner` is one.
    """

    kind: str
    a: str
    b: str
    rows: Dim
    columns: Dim
    inner: Dim
    batch: Shape = ()
    a_batch: Shape = ()
    b_batch: Shape = ()
    a_transposed: bool = False
    b_transposed: bool = False
    b_panels: str = ""
    c: str = ""
    c_strides: tuple[Dim, Dim] = (0, 0)
    alpha: float = 1.0
    beta: float = 1.0
    a_kind: str = ""
    b_kind: str = ""
    a_zero: Zero = Zero()
    b_zero: Zero = Zero()
    packed: Packed | None = None
    of_bytes: bool = False
    parts: int = 1

    @property
    def is_static(self) -> bool:
        """Whether all sizes are known."""
        return is_static((self.rows, self.columns, self.inner, *self.batch))

    @property
    def is_plain(self) -> bool:
        """Whether the operands are multiplied as they are loaded."""
        return self.packed is None and not (
            self.a_kind or self.b_kind or self.a_zero.form or self.b_zero.form
        )

    def split(self, parts: int) -> Product:
        """The same in `parts` along the inner axis, a product each, one batch after the other."""
        inner = floordiv(self.inner, parts)
        return dataclasses.replace(
            self,
            inner=inner,
            batch=(parts, *self.batch),
            a_batch=(inner * (self.rows if self.a_transposed else 1), *self.a_batch),
            b_batch=(inner * (1 if self.b_transposed else self.columns), *self.b_batch),
            b_panels="",
            c="",
            alpha=1.0,
            parts=parts,
        )

    def row_result(self) -> Product:
        """A product of one column as one of one row: y' = b' a', the same elements of y."""
        return dataclasses.replace(
            self,
            a=self.b,
            b=self.a,
            b_panels="",
            rows=1,
            columns=self.rows,
            a_batch=self.b_batch,
            b_batch=self.a_batch,
            a_transposed=False,
            b_transposed=not self.a_transposed,
            c_strides=(0, self.c_strides[0]),
        )


@dataclass(frozen=True)
class Shape2D:
    """Elements of an invocation, invocations of a workgroup, and what these share.

    Attributes:
        shared: they share the inner axis. subgroup: those of a subgroup load rows of a together.
    """

    rows: int
    columns: int
    workgroup: tuple[int, int]
    shared: bool = False
    subgroup: bool = False

    def tasks(self, p: Product) -> Dim:
        """Workgroups of a product (of a shape that does not share)."""
        across, down = self.workgroup
        blocks = ceildiv(p.columns, self.columns * across), ceildiv(p.rows, self.rows * down)
        return product((*blocks, *p.batch))

    @property
    def uniform(self) -> bool:
        """Whether rows are the same for a workgroup, so that GPUs load them once for all of it."""
        return self.workgroup[1] == 1

    @property
    def uses_panels(self) -> bool:
        """Whether b is read from panels: not for few rows, where storing them takes longer."""
        return not self.shared and self.rows > FEW_ROWS and self.columns % 4 == 0

    def steps(self, inner: Dim) -> int:
        """Elements of the inner axis in a trip: of small tiles more, if they divide it."""
        return 8 if self.uniform and self.columns == 1 and divisible(inner, 8).known else 4

    @property
    def instructions(self) -> int:
        """For the arithmetic of an invocation over four elements of the inner axis."""
        places = 4 if self.uniform and self.columns != 2 else 8
        return 4 * self.rows * self.columns + places

    @property
    def words(self) -> int:
        """Loaded for four elements of the inner axis."""
        return 4 * (self.columns if self.uniform else self.rows + self.columns)


FEW_ROWS = 4
"""Up to so many, products take the shape `SHARING`, or `LINE`."""
UNIFORM = Shape2D(8, 4, (64, 1))
"""The usual shape. Larger tiles leave room for less than four waves on small GPUs."""
NARROW = (Shape2D(8, 2, (64, 1)), Shape2D(8, 1, (64, 1)))
LOW = Shape2D(4, 4, (64, 1))
SQUARE = Shape2D(8, 8, (8, 8))
LARGE = Shape2D(16, 8, (8, 4))
"""For software, like the one before it: on a GPU one or two waves have room for so many sums."""
SMALL = Shape2D(4, 4, (8, 8))
"""For software: a GPU spends half of its time on loads of rows that are not the same for all."""
SHARING = Shape2D(FEW_ROWS, 4, (16, 8), True)
LINE = Shape2D(FEW_ROWS, 4, (SHARED_BY, 1))
"""For few rows in software, where a barrier takes a third of compiling such a kernel."""
SUBGROUP = Shape2D(16, 4, (SHARED_BY, 1), subgroup=True)
STYLES = {
    "uniform-8x4": UNIFORM,
    "uniform-8x2": NARROW[0],
    "uniform-4x4": LOW,
    "uniform-16x16": Shape2D(16, 16, (SHARED_BY, 1)),
    "square-16x8": LARGE,
    "square-8x8": SQUARE,
    "square-4x4": SMALL,
    "shared-inner": SHARING,
    "subgroup-8x4": dataclasses.replace(SUBGROUP, rows=8),
    "subgroup-16x4": SUBGROUP,
    "subgroup-32x4": dataclasses.replace(SUBGROUP, rows=32),
    "subgroup-32x8": dataclasses.replace(SUBGROUP, rows=32, columns=8),
}
"""Shapes by the names that tuning knows them by."""
PARTS = {"parts-2": 2, "parts-4": 4, "parts-8": 8, "parts-16": 16}
"""Parts of the inner axis, each in the shape that seems best, by such names."""
MANY_ROWS = 64
"""What an open number of rows is taken for where there are not few."""
LOAD_CLOCKS = 32
"""Of a word for the eight invocations of a vector in software, where there are two for an `fma`."""
SHORT = 512
"""Inner sizes that an invocation sums in software as fast as eight that wait for each other."""
LONGEST = 200_000
"""Inner sizes beyond are shared by several invocations: the loop of one must stay short."""


def clocks(p: Product, shape: Shape2D, parts: int = 1) -> int:
    """Estimated time of a product of known sizes on a small GPU, the inner axis in `parts`."""
    tasks, inner, size = shape.tasks(p), p.inner, product((p.rows, p.columns, *p.batch))
    assert isinstance(tasks, int) and isinstance(inner, int) and isinstance(size, int)
    steps = shape.steps(inner // parts)
    trips, times = -(-inner // (steps * parts)), steps // 4
    found = loop_clocks(trips, tasks * parts, times * shape.instructions, times * shape.words)
    return found + parts_clocks(size, parts)


def may_split(p: Product, parts: int) -> bool:
    """Whether a product can be computed in so many parts of the inner axis."""
    return p.kind == "f32" and p.is_plain and divisible(p.inner, 4 * parts).known is True


def best(p: Product, splitting: bool = False) -> tuple[Shape2D, int]:
    """The fastest shape of a product of known sizes, and parts of the inner axis for it."""
    parts = [1]
    if splitting:
        parts += [n for n in (2, 4, 8, 16) if may_split(p, n) and at_least(p.inner, 64 * n).known]
    shapes = (LOW, *NARROW) if p.of_bytes else (UNIFORM, *NARROW, LOW)
    ways = [(shape, n) for n in parts for shape in shapes]
    found = min(ways, key=lambda way: clocks(p, *way))
    return found if CLEARLY * clocks(p, *found) < clocks(p, shapes[0]) else (shapes[0], 1)


def _shapes(
    p: Product, target: Target, style: str = ""
) -> Iterator[tuple[Shape2D, tuple[Guard, ...]]]:
    """Shapes of tiles and when each is the best, in order; the last always is."""
    wanted = STYLES.get(style)
    if wanted is not None and not (wanted.subgroup and not _may_share(p, target)):
        yield wanted, (at_least(LONGEST, p.inner),)
        yield SHARING, ()
        return
    low, high = bounds(p.rows)
    if low is None or low <= FEW_ROWS:
        few = LINE if target.software and (_fills_lines(p) or _is_short(p)) else SHARING
        if low == high and low is not None:
            yield dataclasses.replace(few, rows=max(low, 1)), ()
        else:
            yield dataclasses.replace(few, rows=1), (at_least(1, p.rows),)
            yield few, (at_least(FEW_ROWS, p.rows),)
    short = at_least(LONGEST, p.inner)
    shares = _may_share(p, target)
    if (shares or target.software) and (bounds(p.columns)[1] or LONGEST) > 16:
        for shape, when in _vector_shapes(p, shares):
            yield shape, (short, *when)
        if shares or p.is_static:
            yield SHARING, ()
            return
    if target.software:
        yield LARGE, (short, at_least(p.rows, 9), at_least(p.columns, 5))
        yield SQUARE, (short, at_least(p.rows, 5), at_least(p.columns, 5))
        yield SMALL, (short,)
    elif p.is_static:
        yield best(p)[0], (short,)
    else:
        usual = LOW if p.of_bytes else UNIFORM
        yield (
            usual,
            (short, at_least(p.columns, 40 * usual.columns), at_least(usual.tasks(p), UNITS)),
        )
        yield NARROW[1], (short,)
    yield SHARING, ()


def _fills_lines(p: Product) -> bool:
    """Whether a product has workgroups of `LINE` for several cores, and short loops in them."""
    across = LINE.columns * LINE.workgroup[0]
    sizes = at_least(p.columns, 4 * across), at_least(LONGEST, p.inner)
    return all(guard.known is True for guard in sizes)


def _is_short(p: Product) -> bool:
    """Whether a few invocations are enough for a product of few rows."""
    return at_least(SHORT, p.inner).known is True


def _may_share(p: Product, target: Target) -> bool:
    """Whether invocations of a subgroup may load rows of a together."""
    return shares_loads(target) and p.a_zero.form != "buffer"


def _vector_shapes(p: Product, shares: bool) -> Iterator[tuple[Shape2D, tuple[Guard, ...]]]:
    """Shapes for invocations that are the lanes of a vector of a CPU, all with the same rows.

    Args:
        shares: whether they load the rows of a together.
    """
    if p.is_static:
        yield _vector_shape(p, shares), ()
        return
    known = dataclasses.replace(p, rows=MANY_ROWS, batch=())
    if known.is_static:
        for rows in (16, 24) if shares else (12, 20):
            few = dataclasses.replace(known, rows=rows)
            yield _vector_shape(few, shares), (at_least(rows, p.rows),)
        yield _vector_shape(known, shares), ()
    elif shares:
        yield SUBGROUP, ()


def _vector_shape(p: Product, shares: bool) -> Shape2D:
    """The smallest, which compiles soonest, of those about as fast as any for known sizes."""
    heights, width = ((8, 16, 24, 32), 4) if shares else ((8, 12, 16, 20), 8)
    size = product((*p.batch, p.rows, p.columns, p.inner))
    by_fours = p.b_panels != "" or divisible(p.columns, 4).known
    # a call takes a quarter less so; with subgroups a twentieth, and compiling over twice as long
    wide = not shares and by_fours and at_least(size, MUCH).known
    widths = (width, 2 * width) if wide else (width,)
    shapes = [
        Shape2D(rows, columns, (SHARED_BY, 1), subgroup=shares)
        for rows, columns in itertools.product(heights, widths)
    ]
    shapes.sort(key=lambda shape: shape.rows * shape.columns)
    least = min(vector_clocks(p, shape) for shape in shapes)
    return next(shape for shape in shapes if vector_clocks(p, shape) <= 1.06 * least)


def vector_clocks(p: Product, shape: Shape2D) -> int:
    """Estimated time of a step along the inner axis of a product of known sizes in software."""
    tasks = shape.tasks(p)
    assert isinstance(tasks, int)
    loads = shape.columns + shape.rows // (SHARED_BY if shape.subgroup else 1)
    return tasks * (LOAD_CLOCKS * loads + 2 * shape.rows * shape.columns)


def tiles(
    p: Product, target: Target | None = None, style: str = ""
) -> Iterator[tuple[Tile, tuple[Guard, ...]]]:
    """The ways to compute a product, best first; the last one has no guard."""
    inner, rows, columns = (divisible(d, 4) for d in (p.inner, p.rows, p.columns))
    software = target is not None and target.software
    large = False
    before: list[frozenset[Guard]] = []
    for shape, wanted in _shapes(p, target or Target.baseline(), style):
        if any(g.known is False for g in wanted):
            continue
        unsure = any(g.known is None for g in wanted)
        last = shape.shared or shape in (SMALL, NARROW[1])
        if unsure and not last and shape.workgroup != (SHARED_BY, 1):
            # while sizes are open, one large tile besides the small one bounds the alternatives
            if large:
                continue
            large = True
        for fours in itertools.product((True, False), repeat=3):
            if fours[1] and (shape.subgroup or not p.a_transposed):
                continue
            if fours[2] and shape.columns % 4:
                continue
            pairs = zip((inner, rows, columns), fours, strict=True)
            guards = [*wanted, *(g for g, four in pairs if four)]
            if any(g.known is False for g in guards):
                continue
            when = tuple(g for g in guards if g.known is None)
            if any(taken <= set(when) for taken in before):
                continue  # where it is right, one in front of it is taken
            before.append(frozenset(when))
            yield dataclasses.replace(_tile(p, shape, fours), rolled=software), when
            if not when:
                return


def _tile(p: Product, shape: Shape2D, fours: tuple[bool, ...]) -> Tile:
    by_row = fours[2] and p.c_strides[1] == 1 and p.c_strides[0] in (0, p.columns)
    return Tile(
        kind=p.kind,
        rows=shape.rows,
        columns=shape.columns,
        workgroup=shape.workgroup,
        a_transposed=p.a_transposed,
        b_transposed=p.b_transposed,
        steps=shape.steps(p.inner),
        inner_by_four=fours[0],
        rows_by_four=fours[1],
        columns_by_four=fours[2],
        shared=shape.shared,
        subgroup=shape.subgroup,
        panels=shape.uses_panels and p.b_panels != "",
        scale=p.alpha != 1,
        bias=("row" if by_row else "any") if p.c else "",
        bias_scale=p.beta != 1,
        a_kind=p.a_kind if p.a_kind != p.kind else "",
        b_kind=p.b_kind if p.b_kind != p.kind else "",
        a_zero=p.a_zero.form,
        b_zero=p.b_zero.form,
        b_packed=p.packed is not None,
        as_floats=p.of_bytes and not shape.shared and not shape.subgroup,
        part=p.parts > 1,
    )
