"""Operators that pick elements by index: Gather, GatherElements, GatherND, ScatterElements,
ScatterND, OneHot, Compress."""

from __future__ import annotations

import numpy as np

from engine.dims import is_static
from engine.errors import ShapeError
from engine.ir import Array, TensorType, ValueType
from engine.ops import InferView, NodeView, OpDef, register
from engine.ops.shape import as_content, content, keep_type


def _infer_gather(view: InferView) -> list[ValueType]:
    x, indices = view.type(0), view.type(1)
    if x.shape is None or indices.shape is None:
        return [TensorType(x.dtype)]
    axis = view.axis(_positive_rank(view, x))
    return [TensorType(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))]


def _positive_rank(view: NodeView, x: TensorType) -> int:
    if not x.shape:
        raise ShapeError(f"{view.describe()}: the data must have at least one axis")
    return len(x.shape)


def _known_indices(view: NodeView) -> Array | None:
    """Input 1 as int64, if it is small and every element is known."""
    found = content(view, 1)
    if found is None or not is_static(found.reshape(-1)):
        return None
    return found.astype(np.int64)


def _evaluate_gather(view: NodeView) -> list[Array | None] | None:
    x, indices = content(view, 0), _known_indices(view)
    if x is None or indices is None:
        return None
    axis = view.axis(x.ndim)
    _check_range(view, indices, x.shape[axis])
    return [as_content(np.take(x, indices, axis=axis))]


def _check_range(view: NodeView, indices: Array, size: int) -> None:
    if indices.size and not (-size <= indices.min() and indices.max() < size):
        raise ShapeError(f"{view.describe()}: an index is outside [-{size}, {size})")


def _infer_gather_elements(view: InferView) -> list[ValueType]:
    return [TensorType(view.dtype(0), view.type(1).shape)]


def _evaluate_gather_elements(view: NodeView) -> list[Array | None] | None:
    x, indices = content(view, 0), _known_indices(view)
    if x is None or indices is None:
        return None
    axis = view.axis(x.ndim)
    size = x.shape[axis]
    _check_range(view, indices, size)
    window = tuple(slice(None) if i == axis else slice(0, d) for i, d in enumerate(indices.shape))
    return [as_content(np.take_along_axis(x[window], indices % max(size, 1), axis=axis))]


def index_depth(view: NodeView) -> int | None:
    """The last size of input 1 of GatherND and ScatterND: how many axes an index addresses."""
    shape = view.type(1).shape
    if shape is None:
        return None
    if not shape:
        raise ShapeError(f"{view.describe()}: the indices must have at least one axis")
    return shape[-1] if isinstance(shape[-1], int) else None


def _infer_gather_nd(view: InferView) -> list[ValueType]:
    x, indices, depth = view.type(0), view.type(1), index_depth(view)
    if x.shape is None or indices.shape is None or depth is None:
        return [TensorType(x.dtype)]
    batch = int(view.attr("batch_dims", 0))
    if batch + depth > len(x.shape):
        raise ShapeError(f"{view.describe()}: indices address {batch + depth} axes")
    return [TensorType(x.dtype, (*indices.shape[:-1], *x.shape[batch + depth :]))]


def _evaluate_gather_nd(view: NodeView) -> list[Array | None] | None:
    x, indices = content(view, 0), _known_indices(view)
    if x is None or indices is None or int(view.attr("batch_dims", 0)):
        return None
    for axis in range(indices.shape[-1]):
        _check_range(view, indices[..., axis], x.shape[axis])
    return [as_content(x[tuple(np.moveaxis(indices, -1, 0))])]


def _infer_one_hot(view: InferView) -> list[ValueType]:
    indices, dtype = view.type(0).shape, view.dtype(2)
    if indices is None:
        return [TensorType(dtype)]
    depth = view.dim_list(1)
    constant = view.const(1)
    size = view.fresh("depth") if depth is None and constant is None else 0
    if depth is not None:
        size = depth[0]
    elif constant is not None:
        size = int(constant.reshape(-1)[0])
    axis = view.axis(len(indices) + 1, default=-1)
    return [TensorType(dtype, (*indices[:axis], size, *indices[axis:]))]


def _infer_compress(view: InferView) -> list[ValueType]:
    x = view.type(0)
    count = view.fresh("compress")
    if view.attr("axis") is None:
        return [TensorType(x.dtype, (count,))]
    if x.shape is None:
        return [x]
    axis = view.axis(_positive_rank(view, x))
    return [TensorType(x.dtype, (*x.shape[:axis], count, *x.shape[axis + 1 :]))]


register(OpDef("Gather", infer=_infer_gather, evaluate=_evaluate_gather))
register(
    OpDef("GatherElements", 11, infer=_infer_gather_elements, evaluate=_evaluate_gather_elements)
)
register(OpDef("GatherND", 11, infer=_infer_gather_nd, evaluate=_evaluate_gather_nd))
register(OpDef("ScatterElements", 11, infer=keep_type))
register(OpDef("ScatterND", 11, infer=keep_type))
register(OpDef("OneHot", 9, infer=_infer_one_hot))
register(OpDef("Compress", 9, infer=_infer_compress))
