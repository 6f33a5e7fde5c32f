"""Operators that move elements: Transpose, Concat, Expand, Tile, Trilu, DepthToSpace,
SpaceToDepth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.dims import Dim
from engine.errors import ShapeError
from engine.ir import Array, TensorType, ValueType
from engine.ops import (
    InferView,
    NodeView,
    OpDef,
    register,
)
from engine.ops.shape import (
    as_content,
    broadcast_shapes,
    content,
    content_length,
    evaluate_by,
    fresh_dims,
    fresh_like,
    keep_type,
)


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


def _infer_expand(view: InferView) -> list[ValueType]:
    x, target = view.type(0), view.dim_list(1)
    if x.shape is None:
        return [x]
    if target is None:
        length = content_length(view, 1)
        rank = None if length is None else max(length, len(x.shape))
        return [TensorType(x.dtype, None if rank is None else fresh_dims(view, "expand", rank))]
    return [TensorType(x.dtype, broadcast_shapes(view, x.shape, tuple(target)))]


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


register(
    OpDef(
        "Transpose",
        infer=_infer_transpose,
        evaluate=evaluate_by(_transpose_content),
    )
)
register(OpDef("Concat", 4, infer=_infer_concat, evaluate=_evaluate_concat, variadic=True))
register(
    OpDef(
        "Expand",
        8,
        infer=_infer_expand,
        evaluate=evaluate_by(_expand_content),
        shape_inputs=(1,),
    )
)
register(
    OpDef("Tile", 6, infer=_infer_tile, evaluate=evaluate_by(_tile_content), shape_inputs=(1,))
)
register(OpDef("DepthToSpace", infer=_infer_depth_to_space))
register(OpDef("SpaceToDepth", infer=_infer_space_to_depth))
register(OpDef("Trilu", 14, infer=keep_type, shape_inputs=(1,)))
