"""Reductions over any axes, ArgMax and ArgMin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from engine import dims
from engine.dims import Dim, Guard, at_least, ceildiv, divisible, product
from engine.dtypes import BOOL, FLOAT32, INT32, INT64, UINT32
from engine.errors import ShapeError
from engine.indexing import IndexMap, index_map, row_major
from engine.ir import Array, Shape, TensorType, ValueType
from engine.ops import (
    ALL,
    FLOATS,
    NUMBERS,
    SMALL_INTS,
    InferView,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    _symbolic,
    linear,
    object_array,
    register,
    yes_if,
)
from engine.ops._loads import times
from engine.ops._reductions import Formula, formula, position
from engine.ops._symbolic import contents
from engine.ops._variants import MAX_TRIPS, choose
from engine.ops._work import SUM_PASSES, in_nbytes, in_shape, out_nbytes, out_shape
from engine.records import dataclass
from engine.target import Target
from engine.work import CpuWork, GpuWork

WORKGROUP = 64
ALONE = 1024
"""Elements of a row that an invocation takes in software, even where there are one or two rows."""
CHUNKS = 64
"""Workgroups that share one output where there are few outputs of very many elements."""
_DTYPES = {"f32": FLOAT32, "i32": INT32, "u32": UINT32, "bool": BOOL}


def reduced_axes(view: NodeView, rank: int) -> tuple[int, ...]:
    """The axes that a Reduce, ArgMax or ArgMin node removes, in order.

    Raises: ShapeError if they are not known, outside the rank, or given twice.
    """
    if view.node.op_type.startswith("Arg"):
        return (view.axis(rank),)
    axes = view.ints(1) if view.has(1) else []
    if axes is None:
        raise ShapeError(f"{view.describe()}: the axes are not known")
    if not axes:
        return () if view.attr("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(view.normal_axes(axes, rank)))


def _infer(view: InferView) -> Sequence[ValueType]:
    dtype = INT64 if view.node.op_type.startswith("Arg") else view.dtype(0)
    shape = view.type(0).shape
    keep = view.attr("keepdims", 1)
    if shape is None:
        return [TensorType(dtype)]
    if view.has(1) and view.ints(1) is None:
        return [TensorType(dtype, _unknown_axes(view, shape) if keep else None)]
    axes = reduced_axes(view, len(shape))
    kept = tuple(d for i, d in enumerate(shape) if i not in axes)
    full = tuple(1 if i in axes else d for i, d in enumerate(shape))
    return [TensorType(dtype, full if keep else kept)]


def _unknown_axes(view: InferView, shape: Shape) -> Shape:
    return tuple(1 if d == 1 else view.fresh(f"reduced{i}") for i, d in enumerate(shape))


@dataclass(frozen=True)
class _Problem:
    """A reduction as index maps: `size` outputs of `count` elements each."""

    kept: IndexMap
    along: IndexMap
    size: Dim
    count: Dim


def _problem(shape: Shape, axes: Sequence[int]) -> _Problem:
    strides = row_major(shape)
    rest = [i for i in range(len(shape)) if i not in axes]
    return _Problem(
        index_map("kept", [shape[i] for i in rest], [strides[i] for i in rest]),
        index_map("along", [shape[i] for i in axes], [strides[i] for i in axes]),
        product(shape[i] for i in rest),
        product(shape[i] for i in axes),
    )


def by_workgroup(size: Dim, count: Dim, contiguous: bool, target: Target) -> tuple[Guard, ...]:
    """When a workgroup an output pays: long rows, too few outputs to fill a GPU one by one.

    Where the elements of a row are neighbours, a GPU loads them fast if invocations that are
    neighbours read them. A CPU gains nothing from that, but must wait at barriers: there an
    invocation a row is faster as soon as a few rows fill a vector, and compiled in half of the
    time, which a call makes up for by microseconds where rows are short.
    """
    if target.software:
        return at_least(count, ALONE + 1), at_least(2, size)
    if not contiguous:
        return at_least(count, 256), at_least(256, size)
    return (at_least(count, 64),)


def lanes_of(
    rows: Dim, count: Dim, contiguous: bool, target: Target
) -> list[tuple[int, tuple[Guard, ...]]]:
    """Invocations that share a row, 1 to WORKGROUP, and when that many are best; in order."""
    found: list[tuple[int, tuple[Guard, ...]]]
    found = [(WORKGROUP, by_workgroup(rows, count, contiguous, target))]
    if contiguous and not target.software:
        found = [(WORKGROUP, (at_least(count, 256),)), (WORKGROUP // 4, (at_least(count, 32),))]
    return [*found, (1, (at_least(MAX_TRIPS, count * 3),)), (WORKGROUP, ())]


def _calls(
    problem: _Problem,
    text: Mapping[str, str],
    tensors: tuple[str, str],
    target: Target,
    *,
    total: Dim,
    chunks: int = 1,
) -> list[KernelCall]:
    """Kernels that reduce value `tensors[0]` to `tensors[1]`, best first.

    Args:
        text: of the shader files, see there.
        total: elements behind one output in all, which a mean divides by.
        chunks: partial results for each output; only kernels with more than one workgroup then.
    """
    size, count = problem.size, problem.count
    length = count if chunks == 1 else ceildiv(count, 4 * chunks) * 4
    contiguous = problem.along.identity

    def call(shared: bool, wide: bool, *when: Guard) -> KernelCall:
        words: dict[str, Dim | float] = {"size": size, "count": count, "total": total}
        if shared:
            words.update(chunks=chunks, length=length)
        lanes = WORKGROUP if shared else 1
        trips = ceildiv(length, lanes * (4 if wide else 1)) + ceildiv(length, lanes * 256)
        return KernelCall(
            "reduce_workgroup" if shared else "reduce",
            {"data": tensors[0], "reduced": tensors[1]},
            {**words, **dict(problem.kept.params + problem.along.params)},
            linear(size * chunks * WORKGROUP if shared else size, WORKGROUP),
            frozenset({"VEC4"}) if wide else frozenset(),
            text,
            extra_params=problem.kept.fields + problem.along.fields,
            trips=trips,
            when=(divisible(count, 4), *when) if wide else when,
        )

    fits = at_least(MAX_TRIPS, count + ceildiv(count, 256))
    orders: list[tuple[bool, tuple[Guard, ...]]] = [(True, ())]
    if chunks == 1:
        orders = [
            (True, by_workgroup(size, count, contiguous, target)),
            (False, (fits,)),
            (True, ()),
        ]
    widths = (True, False) if contiguous else (False,)
    return [call(shared, wide, *when) for shared, when in orders for wide in widths]


def _text(problem: _Problem, rule: Formula, types: tuple[str, str], stage: str) -> dict[str, str]:
    maps = [problem.kept.text, problem.along.text]
    operation = "\n".join([rule.text(*types, stage), *maps])
    return {"ACC": rule.partial(types[0]), "OPERATION": operation}


def _is_split(problem: _Problem, rule: Formula) -> bool:
    """Whether several workgroups share an output: few outputs of very many elements."""
    most, fewest = dims.bounds(problem.size)[1], dims.bounds(problem.count)[0]
    return not rule.acc and (most or CHUNKS + 1) <= CHUNKS and (fewest or 0) >= 1 << 16


def _rule(view: NodeView) -> Formula:
    element = view.dtype(0).wgsl
    if view.node.op_type.startswith("Arg"):
        largest = view.node.op_type == "ArgMax"
        return position(element, largest, bool(view.attr("select_last_index", 0)))
    return formula(view.node.op_type, element)


def _lower(view: Lowering) -> Sequence[Stage]:
    shape, rule = view.shape(0), _rule(view)
    element, result = view.dtype(0).wgsl, view.out().dtype.wgsl
    problem = _problem(shape, reduced_axes(view, len(shape)))
    source, reduced = view.node.inputs[0], view.node.outputs[0]
    if not _is_split(problem, rule):
        text = _text(problem, rule, (element, result), "whole")
        return [choose(_calls(problem, text, (source, reduced), view.target, total=problem.count))]
    acc = rule.partial(element)
    between = view.scratch(_DTYPES[acc], (problem.size, CHUNKS))
    second = _problem((problem.size, CHUNKS), (1,))
    text = _text(problem, rule, (element, result), "first")
    last = _text(second, rule, (element, result), "second")
    return [
        choose(
            _calls(
                problem, text, (source, between), view.target, total=problem.count, chunks=CHUNKS
            )
        ),
        choose(_calls(second, last, (between, reduced), view.target, total=problem.count)),
    ]


def _supports(view: NodeView) -> Support:
    shape, op_type, dtype = view.shape(0), view.node.op_type, view.dtype(0)
    problem = _problem(shape, reduced_axes(view, len(shape)))
    guards = []
    if not _is_split(problem, _rule(view)):
        guards.append(at_least(MAX_TRIPS * WORKGROUP, problem.count, "one output fits a workgroup"))
    if op_type.startswith("Arg"):
        guards.append(at_least(problem.count, 1, "the reduced axis is not empty"))
    elif dtype.name in SMALL_INTS | {"int64"} and op_type in ("ReduceMax", "ReduceMin"):
        guards.append(at_least(problem.count, 1, f"an {dtype} extreme is not of an empty set"))
    return yes_if(*guards)


_CONTENTS: dict[str, Callable[..., Dim | None]] = {
    "ReduceSum": _symbolic.add,
    "ReduceMax": _symbolic.largest,
    "ReduceMin": _symbolic.smallest,
    "ReduceProd": lambda *items: product(items),
}


def _evaluate(view: NodeView) -> Sequence[Array | None] | None:
    rule, found = _CONTENTS.get(view.node.op_type), contents(view, 0)
    if rule is None or found is None or not found.size or (view.has(1) and view.ints(1) is None):
        return None
    axes = reduced_axes(view, found.ndim)
    rest = [i for i in range(found.ndim) if i not in axes]
    lines = found.transpose(*rest, *axes).reshape(-1, int(np.prod([found.shape[i] for i in axes])))
    results = [rule(*line) for line in lines]
    shape = [1 if i in axes else d for i, d in enumerate(found.shape)]
    if not view.attr("keepdims", 1):
        shape = [found.shape[i] for i in rest]
    known = [r for r in results if r is not None]
    return (object_array(known, shape),) if len(known) == len(results) else None


def _flops(view: NodeView) -> Dim:
    return product(view.shape(0))


def _cpu(view: NodeView) -> CpuWork:
    """Rows that are shorter than a cache line are summed one by one."""
    shape, result = in_shape(view, 0), prod(out_shape(view))
    short = bool(shape) and result > 0 and prod(shape) // result < SHORT and prod(shape) > result
    inner = bool(shape) and out_shape(view)[-1:] != shape[-1:]
    one_by_one = SHORT * result if short and inner else 0
    return CpuWork(6, passes=(SUM_PASSES * in_nbytes(view, 0),), strided=one_by_one)


def _gpu(view: NodeView) -> GpuWork:
    return GpuWork(1, loads=prod(in_shape(view, 0)), nbytes=out_nbytes(view))


SHORT = 16
_LIMITS = "more elements for an output than the loops of a workgroup take"


def reduction(
    op_type: str, since: int, dtypes: frozenset[str], tolerance: float = 1e-5, limits: str = _LIMITS
) -> OpDef:
    """A Reduce operator: axes in input 1, or an attribute `axis`."""
    return register(
        OpDef(
            op_type,
            since,
            infer=_infer,
            evaluate=_evaluate if op_type in _CONTENTS else None,
            lower=_lower,
            supports=_supports,
            limits=limits,
            dtypes=dtypes,
            shape_inputs=(1,),
            loads=times(1),
            epilogue=True,
            scratch=1,
            flops=_flops,
            cpu=_cpu,
            gpu=_gpu,
            tolerance=tolerance,
        )
    )


for _op in ("ReduceMax", "ReduceMin"):
    reduction(_op, 18, ALL, 0.0, limits=f"{_LIMITS}; an int64 extreme of no element")
for _op in ("ReduceProd", "ReduceL1", "ReduceSumSquare"):
    reduction(_op, 18, NUMBERS)
reduction("ReduceSum", 13, NUMBERS)
for _op in ("ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"):
    reduction(_op, 18, FLOATS)
for _op in ("ArgMax", "ArgMin"):
    reduction(_op, 11, NUMBERS, limits=f"{_LIMITS}; an empty axis")
