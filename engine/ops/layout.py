"""Operators that move elements: Transpose, Expand, Tile, Trilu, DepthToSpace, SpaceToDepth."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from engine.dims import Dim, Guard, divisible, dmax, dmin, product
from engine.errors import ShapeError
from engine.indexing import IndexMap, broadcast_strides, index_map, merge_axes, row_major
from engine.ir import Array, Shape, TensorType, ValueType
from engine.ops import (
    ALL,
    InferView,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    linear,
    register,
)
from engine.ops._fit import fits
from engine.ops._shapes import broadcast_shapes
from engine.ops._work import copies, in_steps, out_nbytes
from engine.ops.shape import (
    content_length,
    evaluate_by,
    fresh_dims,
    fresh_like,
)
from engine.work import CpuWork


def permutation(view: NodeView, rank: int) -> tuple[int, ...]:
    """The attribute `perm`, or the reverse order. Raises: ShapeError if it is none of the rank."""
    perm = view.attr("perm")
    order = tuple(range(rank))[::-1] if perm is None else tuple(int(p) % max(rank, 1) for p in perm)
    if sorted(order) != list(range(rank)):
        raise ShapeError(f"{view.describe()}: perm {list(order)} does not fit rank {rank}")
    return order


def _infer_transpose(view: InferView) -> list[ValueType]:
    x = view.type(0)
    if x.shape is None:
        return [x]
    order = permutation(view, len(x.shape))
    return [TensorType(x.dtype, tuple(x.shape[p] for p in order))]


def _transpose_content(view: NodeView, x: Array) -> object:
    return np.transpose(x, permutation(view, x.ndim))


def _infer_expand(view: InferView) -> list[ValueType]:
    x, target = view.type(0), view.dim_list(1)
    if x.shape is None:
        return [x]
    if target is None:
        length = content_length(view, 1)
        rank = None if length is None else max(length, len(x.shape))
        return [TensorType(x.dtype, None if rank is None else fresh_dims(view, "expand", rank))]
    return [TensorType(x.dtype, broadcast_shapes(view, [x.shape, tuple(target)]))]


def _expand_content(view: NodeView, x: Array) -> Array | None:
    shape = view.out().static_shape
    return None if shape is None else np.broadcast_to(x, shape)


def _infer_tile(view: InferView) -> list[ValueType]:
    x, repeats = view.type(0), view.dim_list(1)
    if x.shape is None:
        return [x if repeats is None else fresh_like(view, 1, x.dtype)]
    if repeats is None:
        return [TensorType(x.dtype, fresh_dims(view, "tile", len(x.shape)))]
    if len(repeats) != len(x.shape):
        raise ShapeError(f"{view.describe()}: {len(repeats)} repeats for rank {len(x.shape)}")
    return [TensorType(x.dtype, tuple(d * r for d, r in zip(x.shape, repeats, strict=True)))]


def _tile_content(view: NodeView, x: Array) -> Array | None:
    repeats, shape = view.ints(1), view.out().static_shape
    if repeats is None or shape is None or np.prod(shape) > 64:
        return None
    return np.tile(x, repeats)


def _block(view: NodeView) -> int:
    size = int(view.attr("blocksize", 0))
    if size < 1:
        raise ShapeError(f"{view.describe()}: blocksize {size} is not positive")
    return size


def _infer_depth_to_space(view: InferView) -> list[ValueType]:
    x, b = view.type(0), _block(view)
    if x.shape is None:
        return [TensorType(x.dtype, fresh_dims(view, "depthtospace", 4))]
    n, c, h, w = _four(view, x.shape)
    if isinstance(c, int) and c % (b * b):
        raise ShapeError(f"{view.describe()}: {b * b} does not divide {c} channels")
    return [TensorType(x.dtype, (n, c // (b * b), h * b, w * b))]


def _infer_space_to_depth(view: InferView) -> list[ValueType]:
    x, b = view.type(0), _block(view)
    if x.shape is None:
        return [TensorType(x.dtype, fresh_dims(view, "spacetodepth", 4))]
    n, c, h, w = _four(view, x.shape)
    if any(isinstance(d, int) and d % b for d in (h, w)):
        raise ShapeError(f"{view.describe()}: blocksize {b} does not divide {h} x {w}")
    return [TensorType(x.dtype, (n, c * (b * b), h // b, w // b))]


def _four(view: NodeView, shape: Sequence[Dim]) -> tuple[Dim, Dim, Dim, Dim]:
    if len(shape) != 4:
        raise ShapeError(f"{view.describe()}: rank {len(shape)} is not 4")
    n, c, h, w = shape
    return n, c, h, w


def copy_stage(
    view: Lowering,
    sizes: Sequence[Dim],
    strides: Sequence[Dim],
    offset: Dim = 0,
    x: str = "",
    y: str = "",
) -> Stage:
    """y[i] = x[offset + sum(coordinate * stride)], i running over `sizes`; in elements.

    Four neighbours at a time where sizes and strides allow, decided when sizes are bound.
    """
    tensors = {"x": x or view.node.inputs[0], "y": y or view.node.outputs[0]}
    sizes, strides = merge_axes(sizes, strides)
    calls: list[KernelCall] = []
    for call in _by_fours(tensors, sizes, strides, offset):
        if any(guard.known is False for guard in call.when):
            continue
        open_guards = tuple(g for g in call.when if g.known is None)
        calls.append(dataclasses.replace(call, when=open_guards))
        if not calls[-1].when:
            return tuple(calls)
    source = index_map("source", sizes, strides, offset)
    return (*calls, _copy_call(tensors, source, product(sizes)))


def _copy_call(
    tensors: Mapping[str, str],
    source: IndexMap,
    size: Dim,
    flag: str = "",
    when: Sequence[Dim] = (),
    step: Dim = 1,
) -> KernelCall:
    """A call of layout_copy.wgsl, if 4 divides every dim in `when`."""
    words: dict[str, Dim | float] = {"size": size, **dict(source.params)}
    fields = source.fields
    if flag == "FOUR":
        words["step"], fields = step, (*fields, ("step", "u32"))
    return KernelCall(
        "layout_copy",
        tensors,
        words,
        linear(size),
        flags=frozenset({flag} if flag else ()),
        text={"MAP": source.text},
        extra_params=fields,
        when=tuple(divisible(d, 4) for d in when),
    )


def _by_fours(
    tensors: Mapping[str, str], sizes: Shape, strides: Shape, offset: Dim
) -> Iterator[KernelCall]:
    """Copies of several elements an invocation, best first, with the guards they need."""
    if not sizes:
        return
    inner, step = sizes[-1], strides[-1]
    groups = (*sizes[:-1], inner // 4)
    size = product(groups)
    if step == 1:
        units = (*(s // 4 for s in strides[:-1]), 1)
        source = index_map("source", groups, units, offset // 4)
        yield _copy_call(tensors, source, size, "WIDE", (inner, *strides[:-1], offset))
    source = index_map("source", groups, (*strides[:-1], step * 4), offset)
    if step == 0:
        yield _copy_call(tensors, source, size, "SPLAT", (inner,))
        return
    if 1 in strides[:-1]:
        yield _turn_call(tensors, sizes, strides, offset)
    yield _copy_call(tensors, source, size, "FOUR", (inner,), step)


def _turn_call(tensors: Mapping[str, str], sizes: Shape, strides: Shape, offset: Dim) -> KernelCall:
    """The copy by blocks of 4 x 4: along the last axis of y, and along that of x."""
    axis, last = strides.index(1), len(sizes) - 1
    along = (axis, last)
    blocks = [d // 4 if k in along else d for k, d in enumerate(sizes)]
    places = row_major(sizes)
    maps = (
        index_map(
            "source", blocks, [s * 4 if k in along else s for k, s in enumerate(strides)], offset
        ),
        index_map("place", blocks, [s * 4 if k in along else s for k, s in enumerate(places)]),
    )
    size = product(blocks)
    others = (s for k, s in enumerate(strides) if k != axis)
    words = {name: dim for m in maps for name, dim in m.params}
    return KernelCall(
        "layout_transpose",
        tensors,
        {"size": size, "x_step": strides[-1], "y_step": places[axis], **words},
        linear(size),
        text={"MAPS": maps[0].text + maps[1].text},
        extra_params=maps[0].fields + maps[1].fields,
        when=tuple(divisible(d, 4) for d in (sizes[axis], sizes[-1], offset, *others)),
    )


def _lower_transpose(view: Lowering) -> Sequence[Stage]:
    shape = view.shape(0)
    order = permutation(view, len(shape))
    strides = row_major(shape)
    return [copy_stage(view, [shape[p] for p in order], [strides[p] for p in order])]


def _lower_expand(view: Lowering) -> Sequence[Stage]:
    onto = view.out_shape()
    return [copy_stage(view, onto, broadcast_strides(view.shape(0), onto))]


def _lower_tile(view: Lowering) -> Sequence[Stage]:
    shape, repeats = view.shape(0), view.dim_list(1) or []
    sizes: list[Dim] = []
    strides: list[Dim] = []
    for repeat, size, stride in zip(repeats, shape, row_major(shape), strict=True):
        sizes += [repeat, size]
        strides += [0, stride]
    return [copy_stage(view, sizes, strides)]


def _lower_blocks(view: Lowering) -> Sequence[Stage]:
    """DepthToSpace and SpaceToDepth: a transpose of x seen with six axes."""
    x, b = view.shape(0), _block(view)
    n, c, h, w = _four(view, x)
    column_first = view.attr("mode", "DCR") != "DCR"
    if view.node.op_type == "DepthToSpace":
        c = c // (b * b)
        sizes: tuple[Dim, ...] = (n, c, b, b, h, w) if column_first else (n, b, b, c, h, w)
        order = (0, 1, 4, 2, 5, 3) if column_first else (0, 3, 4, 1, 5, 2)
    else:
        sizes = (n, c, h // b, b, w // b, b)
        order = (0, 1, 3, 5, 2, 4) if column_first else (0, 3, 5, 1, 2, 4)
    strides = row_major(sizes)
    return [copy_stage(view, [sizes[p] for p in order], [strides[p] for p in order])]


def _infer_trilu(view: InferView) -> list[ValueType]:
    x = view.type(0)
    if x.shape is not None and len(x.shape) < 2:
        raise ShapeError(f"{view.describe()}: it takes matrices")
    return [x]


def _lower_trilu(view: Lowering) -> Sequence[Stage]:
    shape = view.shape(0)
    diagonal = (view.dim_list(1) or [0])[0]
    diagonal = dmin(dmax(diagonal, -1 * shape[-2]), shape[-1])
    size = product(shape)
    call = KernelCall(
        "layout_trilu",
        {"x": view.node.inputs[0], "y": view.node.outputs[0]},
        {"size": size, "rows": shape[-2], "columns": shape[-1], "diagonal": diagonal},
        linear(size),
        flags=frozenset({"UPPER"} if view.attr("upper", 1) else ()),
        text={"T": view.dtype(0).wgsl},
    )
    return [(call,)]


def _transposed(view: NodeView) -> CpuWork:
    """A view; who reads it pays for reading it in steps."""
    return CpuWork(2, passes=(out_nbytes(view),))


register(
    OpDef(
        "Transpose",
        infer=_infer_transpose,
        evaluate=evaluate_by(_transpose_content),
        lower=_lower_transpose,
        dtypes=ALL,
        epilogue=True,
        tolerance=0.0,
        cpu=_transposed,
    )
)


def _agree_expand(view: NodeView) -> Iterator[Guard]:
    for shape in (view.shape(0), tuple(view.dim_list(1) or ())):
        yield from fits(view, shape, view.out_shape())


def _agree_blocks(view: NodeView) -> Iterator[Guard]:
    size, shape = int(view.attr("blocksize")), view.shape(0)
    deep = view.node.op_type == "DepthToSpace"
    for dim in shape[1:2] if deep else shape[2:]:
        yield divisible(dim, size * size if deep else size)


register(
    OpDef(
        "Expand",
        8,
        infer=_infer_expand,
        agree=_agree_expand,
        evaluate=evaluate_by(_expand_content),
        lower=_lower_expand,
        dtypes=ALL,
        shape_inputs=(1,),
        epilogue=True,
        tolerance=0.0,
        cpu=copies,
    )
)
register(
    OpDef(
        "Tile",
        6,
        infer=_infer_tile,
        evaluate=evaluate_by(_tile_content),
        lower=_lower_tile,
        dtypes=ALL,
        shape_inputs=(1,),
        epilogue=True,
        tolerance=0.0,
        cpu=copies,
    )
)
for _name, _rule in (
    ("DepthToSpace", _infer_depth_to_space),
    ("SpaceToDepth", _infer_space_to_depth),
):
    register(
        OpDef(
            _name,
            infer=_rule,
            agree=_agree_blocks,
            lower=_lower_blocks,
            dtypes=ALL,
            epilogue=True,
            cpu=in_steps,
            tolerance=0.0,
        )
    )
register(
    OpDef(
        "Trilu",
        14,
        infer=_infer_trilu,
        lower=_lower_trilu,
        dtypes=ALL,
        shape_inputs=(1,),
        epilogue=True,
        tolerance=0.0,
    )
)
