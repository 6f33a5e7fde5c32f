"""Operators that cut and join: Slice, Split, Concat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from engine.dims import (
    Dim,
    bounds,
    ceildiv,
    divisible,
    dmax,
    dmin,
    is_static,
    product,
)
from engine.errors import ShapeError
from engine.indexing import Place, cut_place, row_major
from engine.ir import Array, Shape, TensorType, ValueType
from engine.ops import (
    ALL,
    InferView,
    InPlace,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    linear,
    register,
)
from engine.ops._work import copies
from engine.ops.layout import copy_stage
from engine.ops.shape import as_content, content, content_length, fresh_dims
from engine.records import dataclass
from engine.work import CpuWork

FAR = (1 << 31) - 1
"""Slices end at this or later to say "to the end", whatever the size."""


def split_sizes(view: NodeView, size: Dim) -> list[Dim] | None:
    """Sizes along the axis of each output of a Split; None where data decide."""
    count = len(view.node.outputs)
    if view.has(1):
        sizes = view.dim_list(1)
        if sizes is not None and len(sizes) != count:
            raise ShapeError(f"{view.describe()}: {len(sizes)} sizes for {count} outputs")
        return sizes
    if view.attr("num_outputs") is None and isinstance(size, int) and size % count:
        raise ShapeError(f"{view.describe()}: {count} outputs do not divide size {size}")
    chunk = ceildiv(size, count)
    return [dmin(chunk, dmax(size - k * chunk, 0)) for k in range(count)]


def _infer_split(view: InferView) -> list[ValueType]:
    x, count = view.type(0), len(view.node.outputs)
    if x.shape is None:
        return [x] * count
    axis = view.axis(len(x.shape))
    sizes = split_sizes(view, x.shape[axis]) or fresh_dims(view, "split", count)
    if is_static(sizes) and isinstance(x.shape[axis], int) and sum(sizes) != x.shape[axis]:
        raise ShapeError(f"{view.describe()}: sizes {list(sizes)} do not add up")
    return [TensorType(x.dtype, (*x.shape[:axis], s, *x.shape[axis + 1 :])) for s in sizes]


def _evaluate_split(view: NodeView) -> list[Array | None] | None:
    x = content(view, 0)
    if x is None:
        return None
    axis = view.axis(x.ndim)
    sizes = split_sizes(view, x.shape[axis])
    if sizes is None or not is_static(sizes):
        return None
    cuts = np.cumsum([int(s) for s in sizes])[:-1]  # type: ignore[arg-type]
    return [as_content(part) for part in np.split(x, cuts, axis=axis)]


@dataclass(frozen=True)
class AxisSlice:
    """One axis of a Slice: elements start, start + step, ..., `count` of them."""

    start: Dim
    step: int
    count: Dim


def _from_front(at: Dim, size: Dim) -> Dim:
    """A start or end counted from the front: `size` is added where it is negative."""
    low, high = bounds(at)
    if low is not None and low >= 0:
        return at
    if high is not None and high < 0:
        return at + size
    return at + size * dmin(dmax(0 - at, 0), 1)


def _place(at: Dim, size: Dim, low: Dim, high: Dim) -> Dim:
    """A start or end counted from the front and clamped to [low, high]."""
    if isinstance(at, int) and at >= FAR:
        return high
    if at == -1 and high == size - 1:
        return high
    if isinstance(at, int) and at < 0 and high == size:
        return dmax(at + size, low) if at > -FAR else low
    if isinstance(at, int) and at <= -FAR:
        return dmin(low, high)
    return dmin(dmax(_from_front(at, size), low), high)


def axis_slice(start: Dim, end: Dim, step: int, size: Dim) -> AxisSlice:
    """A slice of an axis of `size` with ONNX's rules for negative and outlying positions."""
    if step > 0:
        begin, stop = _place(start, size, 0, size), _place(end, size, 0, size)
        count = ceildiv(stop - begin, step)
        return AxisSlice(begin, step, count if stop == size else dmax(count, 0))
    begin = _place(start, size, 0, size - 1)
    stop = _place(end, size, -1, size - 1)
    return AxisSlice(begin, step, dmax(ceildiv(begin - stop, -step), 0))


def slices(view: NodeView, shape: Shape) -> dict[int, AxisSlice] | None:
    """The sliced axes of a Slice node; None where data decide."""
    starts, ends = view.dim_list(1), view.dim_list(2)
    if starts is None or ends is None:
        return None
    axes = slice_axes(view, len(shape), len(starts))
    steps = view.ints(4) if view.has(4) else [1] * len(starts)
    if axes is None or steps is None:
        return None
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ShapeError(f"{view.describe()}: starts, ends, axes and steps differ in length")
    if 0 in steps:
        raise ShapeError(f"{view.describe()}: a step is 0")
    return {
        axis: axis_slice(start, end, step, shape[axis])
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    }


def slice_axes(view: NodeView, rank: int, count: int) -> list[int] | None:
    """The axes input of a Slice counted from the front (default: the first ones)."""
    if not view.has(3):
        return list(range(count))
    axes = view.ints(3)
    return None if axes is None else view.normal_axes(axes, rank)


def _infer_slice(view: InferView) -> list[ValueType]:
    x = view.type(0)
    if x.shape is None:
        return [x]
    found = slices(view, x.shape)
    if found is not None:
        dims = tuple(found[i].count if i in found else d for i, d in enumerate(x.shape))
        return [TensorType(x.dtype, dims)]
    length = content_length(view, 1)
    axes = None if length is None else slice_axes(view, len(x.shape), length)
    moved = set(range(len(x.shape)) if axes is None else axes)
    dims = tuple(view.fresh(f"slice{i}") if i in moved else d for i, d in enumerate(x.shape))
    return [TensorType(x.dtype, dims)]


def _evaluate_slice(view: NodeView) -> list[Array | None] | None:
    x = content(view, 0)
    found = None if x is None else slices(view, x.shape)
    if x is None or found is None:
        return None
    for axis, part in found.items():
        if not (isinstance(part.start, int) and isinstance(part.count, int)):
            return None
        x = np.take(x, [part.start + k * part.step for k in range(part.count)], axis=axis)
    return [as_content(x)]


def same_dim(view: NodeView, a: Dim, b: Dim) -> Dim:
    """The better known of two sizes that must be equal. Raises: ShapeError if they differ."""
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise ShapeError(f"{view.describe()}: sizes {a} and {b} must be equal")
    return b if isinstance(b, int) else a


def _infer_concat(view: InferView) -> list[ValueType]:
    types = [view.type(i) for i in range(len(view.node.inputs))]
    shapes = [t.shape for t in types if t.shape is not None]
    if len(shapes) < len(types):
        if not shapes:
            return [TensorType(types[0].dtype)]
        return [TensorType(types[0].dtype, fresh_dims(view, "concat", len(shapes[0])))]
    rank = len(shapes[0])
    axis = view.axis(rank)
    dims = list(shapes[0])
    for shape in shapes[1:]:
        if len(shape) != rank:
            raise ShapeError(f"{view.describe()}: ranks differ")
        for i in range(rank):
            dims[i] = dims[i] + shape[i] if i == axis else same_dim(view, dims[i], shape[i])
    return [TensorType(types[0].dtype, tuple(dims))]


def _evaluate_concat(view: NodeView) -> list[Array | None] | None:
    parts = [content(view, i) for i in range(len(view.node.inputs))]
    if any(p is None for p in parts):
        return None
    known = [p for p in parts if p is not None]
    return [as_content(np.concatenate(known, axis=int(view.attr("axis", 0))))]


def _lower_slice(view: Lowering) -> Sequence[Stage]:
    shape = view.shape(0)
    found = slices(view, shape) or {}
    strides, sizes = list(row_major(shape)), list(view.out_shape())
    offset: Dim = 0
    for axis, part in found.items():
        offset = offset + part.start * strides[axis]
        strides[axis] = strides[axis] * part.step
    return [copy_stage(view, sizes, strides, offset)]


def _slice_parts(view: NodeView) -> Mapping[int, Place]:
    shape, place = list(view.shape(0)), Place()
    for axis, part in sorted((slices(view, view.shape(0)) or {}).items()):
        inner = cut_place(shape, axis, part.start, part.count).within(place)
        if part.step != 1 or inner is None:
            return {}
        place, shape[axis] = inner, part.count
    return {0: place}


def chunks(members: Sequence[int], limit: int) -> list[Sequence[int]]:
    """At most `limit` of the members each, in order."""
    return [members[k : k + limit] for k in range(0, len(members), limit)]


def columns_call(
    shader: str,
    tensors: Mapping[str, str],
    rows: Dim,
    widths: Sequence[Dim],
    members: Sequence[int],
    copy: Callable[[int, str, str], str],
    text: Mapping[str, str],
    wide: bool,
    around: tuple[str, str] = ("", ""),
) -> KernelCall:
    """Copies between one matrix [rows, sum of widths] and one for each of `members`.

    Args:
        widths: columns of every part of the wide matrix.
        members: the parts that this call copies.
        copy: WGSL statement for part k, given the index into it and into the wide matrix.
        wide: in groups of four elements; the guards are added.
        around: statements before and behind those of the parts.
    """
    unit = 4 if wide else 1
    leads = [sum(widths[:k], start=0) for k in members]
    total, width = sum(widths, start=0), sum((widths[k] for k in members), start=0)
    lines, fields = [], []
    params: dict[str, Dim | float] = {
        "size": rows * width // unit,
        "columns": total // unit,
        "width": width // unit,
    }
    passed: Dim = 0
    for place, (k, lead) in enumerate(zip(members, leads, strict=True)):
        params[f"width{place}"], params[f"begin{place}"] = widths[k] // unit, passed // unit
        params[f"lead{place}"] = lead // unit
        fields += [(f"{word}{place}", "u32") for word in ("width", "begin", "lead")]
        passed = passed + widths[k]
        inside = f"(row * params.width{place} + column - params.begin{place})"
        scale = " * 4u" if wide else ""
        moved = f"(place + params.lead{place} - params.begin{place})"
        statement = copy(place, f"{inside}{scale}", f"{moved}{scale}")
        last = place + 1 == len(members)
        test = "{" if last else f"if (column < params.begin{place + 1}) {{"
        lines.append(f"{test} {statement} }}")
    body = (around[0], "\n    else ".join(lines), around[1])
    guards = [divisible(d, 4) for d in (*(widths[k] for k in members), *leads, total)]
    return KernelCall(
        shader,
        tensors,
        params,
        linear(rows * width // unit),
        frozenset({"ONE_ROW"} if rows == 1 else ()),
        text={**text, "BODY": "\n".join(f"    {x}" for x in body if x)},
        extra_params=tuple(fields),
        when=tuple(g for g in guards if g.known is not True) if wide else (),
    )


def columns_stage(make: Callable[[bool], KernelCall]) -> Stage:
    """The copy by fours where it may be possible, then by ones."""
    wide = make(True)
    if not wide.when:
        return (wide,)
    narrow = make(False)
    return (narrow,) if any(g.known is False for g in wide.when) else (wide, narrow)


def declare(names: Sequence[str], first: int, access: str) -> str:
    """Declarations of tensors from binding `first` on."""
    return "\n".join(
        f"@group(0) @binding({first + k}) var<storage, {access}> {name}: array<T>;"
        for k, name in enumerate(names)
    )


def _concat_call(
    view: Lowering, rows: Dim, widths: Sequence[Dim], members: Sequence[int], wide: bool
) -> KernelCall:
    four = "4" if wide else ""
    names = [f"x{place}" for place in range(len(members))]
    tensors = {n: view.node.inputs[k] for n, k in zip(names, members, strict=True)}
    text = {
        "INPUTS": declare(names, 0, "read"),
        "COUNT": str(len(names)),
        "LAST": str(len(names) + 1),
    }

    def copy(place: int, part: str, whole: str) -> str:
        return f"at = {whole}; value = load{four}_x{place}({part});"

    kind = view.dtype(0).wgsl
    # stored in one place, as what is fused into the store is text of its own at each
    begin = f"var at: u32;\n    var value: {f'vec4<{kind}>' if wide else kind};"
    around = (begin, f"store{four}_y(at, value);")
    tensors["y"] = view.node.outputs[0]
    return columns_call("slice_concat", tensors, rows, widths, members, copy, text, wide, around)


def _copy_operands(view: Lowering, members: Sequence[int]) -> Sequence[Stage]:
    """Copies some operands of a Concat to where they belong."""
    shapes = [view.shape(i) for i in range(len(view.node.inputs))]
    axis = view.axis(len(shapes[0]))
    widths = [product(s[axis:]) for s in shapes]
    rows = product(view.out_shape()[:axis])
    parts = chunks(members, view.target.max_storage_buffers_per_shader_stage - 1)
    return [columns_stage(partial(_concat_call, view, rows, widths, part)) for part in parts]


def _lower_concat(view: Lowering) -> Sequence[Stage]:
    return _copy_operands(view, range(len(view.node.inputs)))


def _concat_parts(view: NodeView) -> Mapping[int, Place]:
    shape = view.out_shape()
    axis = view.axis(len(shape))
    found: dict[int, Place] = {}
    begin: Dim = 0
    for k in range(len(view.node.inputs)):
        width = view.shape(k)[axis]
        found[k] = cut_place(shape, axis, begin, width)
        begin = begin + width
    return found


def _split_call(
    view: Lowering, rows: Dim, widths: Sequence[Dim], members: Sequence[int], wide: bool
) -> KernelCall:
    four = "4" if wide else ""
    names = [f"y{place}" for place in range(len(members))]
    text = {
        "OUTPUTS": declare(names, 1, "read_write"),
        "LAST": str(len(names) + 1),
    }

    def copy(place: int, part: str, whole: str) -> str:
        return f"store{four}_{names[place]}({part}, load{four}_x({whole}));"

    outputs = {n: view.node.outputs[k] for n, k in zip(names, members, strict=True)}
    tensors = {"x": view.node.inputs[0], **outputs}
    return columns_call("slice_split", tensors, rows, widths, members, copy, text, wide)


def _copy_outputs(view: Lowering, members: Sequence[int]) -> Sequence[Stage]:
    """Copies some outputs of a Split from where they lie; those that nobody wants are left out."""
    shape = view.shape(0)
    axis = view.axis(len(shape))
    rows = product(shape[:axis])
    widths = [s * product(shape[axis + 1 :]) for s in split_sizes(view, shape[axis]) or ()]
    wanted = [k for k in members if view.wants(k)]
    parts = chunks(wanted, view.target.max_storage_buffers_per_shader_stage - 1)
    return [columns_stage(partial(_split_call, view, rows, widths, part)) for part in parts]


def _lower_split(view: Lowering) -> Sequence[Stage]:
    return _copy_outputs(view, range(len(view.node.outputs)))


def _split_parts(view: NodeView) -> Mapping[int, Place]:
    shape = view.shape(0)
    axis = view.axis(len(shape))
    found: dict[int, Place] = {}
    begin: Dim = 0
    for k, size in enumerate(split_sizes(view, shape[axis]) or ()):
        found[k] = cut_place(shape, axis, begin, size)
        begin = begin + size
    return found


def _split_cpu(view: NodeView) -> CpuWork:
    """Views; finding where to cut takes a few calls."""
    return CpuWork(16 + 2 * len(view.node.outputs))


register(
    OpDef(
        "Concat",
        4,
        infer=_infer_concat,
        evaluate=_evaluate_concat,
        lower=_lower_concat,
        dtypes=ALL,
        variadic=True,
        epilogue=True,
        in_place=InPlace(True, _concat_parts, _copy_operands),
        tolerance=0.0,
        cpu=copies,
    )
)

register(
    OpDef(
        "Split",
        13,
        infer=_infer_split,
        evaluate=_evaluate_split,
        lower=_lower_split,
        dtypes=ALL,
        shape_inputs=(1,),
        variadic=True,
        in_place=InPlace(False, _split_parts, _copy_outputs),
        tolerance=0.0,
        cpu=_split_cpu,
    )
)
register(
    OpDef(
        "Slice",
        10,
        infer=_infer_slice,
        evaluate=_evaluate_slice,
        lower=_lower_slice,
        dtypes=ALL,
        shape_inputs=(1, 2, 3, 4),
        epilogue=True,
        in_place=InPlace(False, _slice_parts, lambda view, _: _lower_slice(view)),
        tolerance=0.0,
        cpu=lambda view: CpuWork(6),
    )
)
