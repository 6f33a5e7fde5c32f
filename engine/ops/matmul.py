"""Matrix products: MatMul and Gemm."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from engine.dims import Dim, Guard, at_least, bounds, ceildiv, divisible, product
from engine.errors import ShapeError
from engine.indexing import IndexMap, broadcast_strides, index_map
from engine.ir import Array, Shape, TensorType, ValueType
from engine.ops import (
    FLOATS,
    YES,
    InferView,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    linear,
    no,
    register,
)
from engine.ops._matmul_text import PANEL, Tile, body
from engine.ops._shapes import broadcast_shapes
from engine.ops._variants import SHARED_BY, shares_loads
from engine.target import Target


def _inner(view: NodeView, a: Dim, b: Dim) -> Dim:
    """The size summed over. Raises: ShapeError if the operands disagree about it."""
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise ShapeError(f"{view.describe()}: inner sizes {a} and {b} differ")
    return b if isinstance(b, int) else a


def _infer_matmul(view: InferView) -> list[ValueType]:
    return [product_type(view, view.type(0), view.type(1))]


def product_type(view: NodeView, a: TensorType, b: TensorType) -> TensorType:
    """Type of `a` @ `b`. Raises: ShapeError if they do not fit."""
    if a.shape is None or b.shape is None:
        return TensorType(a.dtype)
    if not a.shape or not b.shape:
        raise ShapeError(f"{view.describe()}: operands must have at least one axis")
    _inner(view, a.shape[-1], b.shape[-2] if len(b.shape) > 1 else b.shape[0])
    batch = broadcast_shapes(view, [a.shape[:-2], b.shape[:-2]])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if len(b.shape) > 1 else ()
    return TensorType(a.dtype, (*batch, *rows, *columns))


def _infer_gemm(view: InferView) -> list[ValueType]:
    a, b = view.type(0), view.type(1)
    rows = _axes(view, a, "transA")
    columns = _axes(view, b, "transB")
    if rows is not None and columns is not None:
        _inner(view, rows[1], columns[0])
    m = view.fresh("m") if rows is None else rows[0]
    n = view.fresh("n") if columns is None else columns[1]
    return [TensorType(a.dtype, (m, n))]


def _axes(view: NodeView, matrix: TensorType, attribute: str) -> tuple[Dim, Dim] | None:
    """Rows and columns of an operand of Gemm, transposed if its attribute says so."""
    if matrix.shape is None:
        return None
    if len(matrix.shape) != 2:
        raise ShapeError(f"{view.describe()}: an operand has rank {len(matrix.shape)}, not 2")
    rows, columns = matrix.shape
    return (columns, rows) if view.attr(attribute, 0) else (rows, columns)


def _flops(view: NodeView) -> Dim:
    """Two for each multiplication of the sum."""
    a = view.shape(0)
    inner = a[0] if view.node.op_type == "Gemm" and view.attr("transA", 0) else a[-1]
    return 2 * product(view.out_shape()) * inner


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

    @property
    def is_plain(self) -> bool:
        """Whether the operands are multiplied as they are loaded."""
        return self.packed is None and not (
            self.a_kind or self.b_kind or self.a_zero.form or self.b_zero.form
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


FEW_ROWS = 4
ENOUGH = 8
"""Workgroups that a small GPU should have at least: below, smaller tiles keep more of it busy."""
UNIFORM = ((160, Shape2D(8, 4, (64, 1))),)
"""Shapes with rows uniform over a workgroup, and how many columns they are worth it from.

Larger tiles leave room for less than four waves on small GPUs.
"""
SQUARE = (Shape2D(8, 8, (8, 8)), Shape2D(8, 4, (8, 8)))
SMALL = Shape2D(4, 4, (8, 8))
SHARING = Shape2D(FEW_ROWS, 4, (16, 8), True)
SUBGROUP = Shape2D(16, 4, (SHARED_BY, 1), subgroup=True)
LONGEST = 200_000
"""Inner sizes beyond are shared by several invocations: the loop of one must stay short."""


def _shapes(p: Product, subgroups: bool) -> Iterator[tuple[Shape2D, tuple[Guard, ...]]]:
    """Shapes of tiles and when each is the best, in order; the last always is."""
    low, high = bounds(p.rows)
    if low is None or low <= FEW_ROWS:
        if low == high and low is not None:
            yield dataclasses.replace(SHARING, rows=max(low, 1)), ()
        else:
            yield dataclasses.replace(SHARING, rows=1), (at_least(1, p.rows),)
            yield SHARING, (at_least(FEW_ROWS, p.rows),)
    short = at_least(LONGEST, p.inner)
    if subgroups and p.a_zero.form != "buffer" and (bounds(p.columns)[1] or LONGEST) > 16:
        yield dataclasses.replace(SUBGROUP, rows=_subgroup_rows(p.rows)), (short,)
        yield SHARING, ()
        return
    for least, shape in UNIFORM:
        yield shape, (short, at_least(p.columns, least + 1), at_least(shape.tasks(p), ENOUGH))
    for shape in SQUARE:
        yield shape, (short, at_least(shape.tasks(p), ENOUGH))
    yield SMALL, (short,)
    yield SHARING, ()


def _subgroup_rows(rows: Dim) -> int:
    """Rows of an invocation: 32 are fastest where few of them are past the end."""
    high = bounds(rows)[1]
    if high is not None and high <= 8:
        return 8
    if isinstance(rows, int) and rows % 32 in (0, *range(27, 32)):
        return 32
    return 16


def tiles(p: Product, subgroups: bool = False) -> Iterator[tuple[Tile, tuple[Guard, ...]]]:
    """The ways to compute a product, best first; the last one has no guard."""
    inner, rows, columns = (divisible(d, 4) for d in (p.inner, p.rows, p.columns))
    large = False
    for shape, wanted in _shapes(p, subgroups):
        if any(g.known is False for g in wanted):
            continue
        unsure = any(g.known is None for g in wanted)
        if unsure and not shape.shared and shape != SMALL:
            # while sizes are open, one large tile besides the small one bounds the alternatives
            if large:
                continue
            large = True
        for fours in itertools.product((True, False), repeat=3):
            if fours[1] and (shape.subgroup or not p.a_transposed):
                continue
            pairs = zip((inner, rows, columns), fours, strict=True)
            guards = [*wanted, *(g for g, four in pairs if four)]
            if any(g.known is False for g in guards):
                continue
            when = tuple(g for g in guards if g.known is None)
            yield _tile(p, shape, fours), when
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
        inner_by_four=fours[0],
        rows_by_four=fours[1],
        columns_by_four=fours[2],
        shared=shape.shared,
        subgroup=shape.subgroup,
        panels=shape.subgroup and p.b_panels != "",
        scale=p.alpha != 1,
        bias=("row" if by_row else "any") if p.c else "",
        bias_scale=p.beta != 1,
        a_kind=p.a_kind if p.a_kind != p.kind else "",
        b_kind=p.b_kind if p.b_kind != p.kind else "",
        a_zero=p.a_zero.form,
        b_zero=p.b_zero.form,
        b_packed=p.packed is not None,
    )


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
    text = {"MAPS": maps[0].text + maps[1].text + more, "BODY": body(tile)}
    if tile.shared:
        partials = tile.rows * tile.columns // 4 * x_lanes * y_lanes
        text |= {"T": tile.kind, "PARTIALS": str(partials)}
    else:
        text["BUILTINS"] = tile.builtins
    return KernelCall(
        "matmul_rows" if tile.shared else "matmul",
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


def product_stage(p: Product, y: str, target: Target) -> Stage:
    """The dispatch of a product into value `y`, with its alternatives."""
    if p.columns == 1 and p.rows != 1 and p.is_plain:
        p = p.row_result()
    maps = index_map("batch_a", p.batch, p.a_batch), index_map("batch_b", p.batch, p.b_batch)
    grids: dict[tuple[int, int], Grid] = {}
    calls = []
    for tile, when in tiles(p, shares_loads(target)):
        if tile.block not in grids:
            grids[tile.block] = _grid(p, *tile.block)
        calls.append(_call(p, y, tile, when, grids[tile.block], maps))
    return tuple(calls)


def _lower_matmul(view: Lowering) -> Sequence[Stage]:
    p = matrix_product(view, 0, 1, view.dtype(0).wgsl)
    p = dataclasses.replace(p, b_panels=_panels(view, False))
    return [product_stage(p, view.node.outputs[0], view.target)]


def matrix_product(view: NodeView, left: int, right: int, kind: str) -> Product:
    """The product of inputs `left` and `right` as NumPy's matmul, computed in `kind`."""
    a, b = view.shape(left), view.shape(right)
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    rows, inner, columns = a[-2], _inner(view, a[-1], b[-2]), b[-1]
    batch = broadcast_shapes(view, [a[:-2], b[:-2]])
    p = Product(
        kind=kind,
        a=view.node.inputs[left],
        b=view.node.inputs[right],
        rows=rows,
        columns=columns,
        inner=inner,
    )
    if all(d == 1 for d in b[:-2]):
        p = dataclasses.replace(p, rows=product(batch) * rows)
    else:
        a_strides = broadcast_strides(a[:-2], batch)
        b_strides = broadcast_strides(b[:-2], batch)
        p = dataclasses.replace(
            p,
            batch=batch,
            a_batch=tuple(s * (rows * inner) for s in a_strides),
            b_batch=tuple(s * (inner * columns) for s in b_strides),
        )
    return p


def _panels(view: Lowering, transposed: bool) -> str:
    """Constant operand b in panels, or "" if nothing could use them."""
    w = view.const(1)
    if w is None or not shares_loads(view.target) or w.ndim < 2 or w.size != prod(w.shape[-2:]):
        return ""

    def make(w: Array) -> Array:
        b = w.reshape(w.shape[-2:])
        b = b.T if transposed else b
        b = np.pad(b, ((0, 0), (0, -b.shape[1] % PANEL)))
        return np.ascontiguousarray(b.reshape(len(b), -1, PANEL).swapaxes(0, 1))

    return view.derived(1, f"panels{PANEL}{'-transposed' if transposed else ''}", make)


def _transposed(view: Lowering, index: int, attribute: str) -> tuple[str, bool]:
    """Operand of Gemm, and whether it is still stored transposed (constants are turned once)."""
    if not view.attr(attribute, 0):
        return view.node.inputs[index], False
    if view.const(index) is None:
        return view.node.inputs[index], True
    return view.derived(index, "transpose", lambda w: np.ascontiguousarray(w.T)), False


def _lower_gemm(view: Lowering) -> Sequence[Stage]:
    rows, columns = view.out_shape()
    a, a_transposed = _transposed(view, 0, "transA")
    b, b_transposed = _transposed(view, 1, "transB")
    beta = float(view.attr("beta", 1.0))
    biased = view.has(2) and beta != 0
    c_strides = broadcast_strides(view.shape(2), (rows, columns)) if biased else (0, 0)
    p = Product(
        kind=view.dtype(0).wgsl,
        a=a,
        b=b,
        rows=rows,
        columns=columns,
        inner=view.shape(0)[0 if view.attr("transA", 0) else 1],
        a_transposed=a_transposed,
        b_transposed=b_transposed,
        b_panels=_panels(view, bool(view.attr("transB", 0))),
        c=view.node.inputs[2] if biased else "",
        c_strides=((0, 0, *c_strides)[-2], (0, 0, *c_strides)[-1]),
        alpha=float(view.attr("alpha", 1.0)),
        beta=beta if biased else 1.0,
    )
    return [product_stage(p, view.node.outputs[0], view.target)]


def _supports_gemm(view: NodeView) -> Support:
    if view.dtype(0).is_float:
        return YES
    for name in ("alpha", "beta"):
        if not float(view.attr(name, 1.0)).is_integer():
            return no(f"{name} is no integer, but the operands are")
    return YES


_KINDS = FLOATS | {"int32", "uint32"}

register(
    OpDef(
        "MatMul",
        infer=_infer_matmul,
        lower=_lower_matmul,
        dtypes=_KINDS,
        epilogue=True,
        flops=_flops,
        tolerance=2e-5,
    )
)
register(
    OpDef(
        "Gemm",
        7,
        infer=_infer_gemm,
        lower=_lower_gemm,
        supports=_supports_gemm,
        limits="integer operands with an `alpha` or `beta` that is none",
        dtypes=_KINDS,
        epilogue=True,
        flops=_flops,
        tolerance=2e-5,
    )
)
