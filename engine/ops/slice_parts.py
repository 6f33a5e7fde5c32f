"""Concat and Split: copies between a whole and its parts along an axis.

Both are one matrix: rows are the axes before, columns the axis and those behind it, and each part
has some of the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from engine.dims import Dim, Guard, ceildiv, divisible, dmax, dmin, is_static, product
from engine.errors import ShapeError
from engine.indexing import Place, cut_place
from engine.ir import Array, TensorType, ValueType
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
from engine.ops._fit import same
from engine.ops._work import copies
from engine.ops.shape import as_content, content, fresh_dims
from engine.work import CpuWork


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


def same_dim(view: InferView, a: Dim, b: Dim) -> Dim:
    """The better known of two sizes that must be equal. Raises: ShapeError if they differ."""
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise ShapeError(f"{view.describe()}: sizes {a} and {b} must be equal")
    same = view.same(a, b)
    return same if same is not None else b if isinstance(b, int) else a


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


def _agree_concat(view: NodeView) -> Iterator[Guard]:
    first = view.shape(0)
    axis = view.axis(len(first))
    for index in range(1, len(view.node.inputs)):
        for place, (a, b) in enumerate(zip(first, view.shape(index), strict=True)):
            if place != axis:
                yield from same(view, a, b)


def _agree_split(view: NodeView) -> Iterator[Guard]:
    shape = view.shape(0)
    axis = view.axis(len(shape), default=0)
    parts: Dim = 0
    for index in range(len(view.node.outputs)):
        parts = parts + view.out_shape(index)[axis]
    yield from same(view, shape[axis], parts)


register(
    OpDef(
        "Concat",
        4,
        infer=_infer_concat,
        agree=_agree_concat,
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
        agree=_agree_split,
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
