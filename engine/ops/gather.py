"""Operators that pick elements by index: Gather, GatherElements, GatherND, OneHot, Compress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np

from engine.dims import Dim, Guard, at_least, divisible, is_static, product
from engine.errors import ShapeError
from engine.indexing import Place, cut_place, index_map, row_major
from engine.ir import Array, TensorType, ValueType
from engine.ops import (
    ALL,
    YES,
    InferView,
    InPlace,
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
from engine.ops._fit import alike
from engine.ops._work import in_shape, out_nbytes, out_shape
from engine.ops.shape import as_content, content
from engine.work import CpuWork, GpuWork


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


def _lower_gather(view: Lowering) -> Sequence[Stage]:
    shape, axis = view.shape(0), view.axis(len(view.shape(0)))
    inner, picked = product(shape[axis + 1 :]), product(view.shape(1))
    size = product(view.out_shape())
    tensors = {
        "x": view.node.inputs[0],
        "indices": view.node.inputs[1],
        "y": view.node.outputs[0],
    }

    def call(unit: int, flags: frozenset[str], when: tuple[Guard, ...]) -> KernelCall:
        words: dict[str, Dim | float] = {
            "size": size // unit,
            "axis_size": shape[axis],
            "picked": picked,
            "inner": inner // unit,
        }
        text = {"T": view.dtype(0).wgsl}
        return KernelCall(
            "gather", tensors, words, linear(size // unit), flags=flags, text=text, when=when
        )

    by_four = divisible(inner, 4)
    narrow, wide = call(1, frozenset(), ()), call(4, frozenset({"WIDE"}), (by_four,))
    if by_four.known is None:
        return [(wide, narrow)]
    return [(call(4, frozenset({"WIDE"}), ()) if by_four.known else narrow,)]


def _gather_parts(view: NodeView) -> Mapping[int, Place]:
    """A single index that is known lies together with what is behind it."""
    indices, shape = _known_indices(view), view.shape(0)
    if indices is None or indices.size != 1:
        return {}
    axis, index = view.axis(len(shape)), int(indices.reshape(-1)[0])
    size = shape[axis]
    if at_least(size, index + 1 if index >= 0 else -index).known is not True:
        return {}
    return {0: cut_place(shape, axis, index if index >= 0 else size + index, 1)}


def _lower_gather_elements(view: Lowering) -> Sequence[Stage]:
    shape, picked = view.shape(0), view.shape(1)
    axis = view.axis(len(shape))
    strides = row_major(shape)
    base = index_map("base", picked, [s * (k != axis) for k, s in enumerate(strides)])
    size = product(picked)
    call = KernelCall(
        "gather_elements",
        {"x": view.node.inputs[0], "indices": view.node.inputs[1], "y": view.node.outputs[0]},
        {
            "size": size,
            "axis_size": shape[axis],
            "axis_stride": strides[axis],
            **dict(base.params),
        },
        linear(size),
        text={"T": view.dtype(0).wgsl, "MAP": base.text},
        extra_params=base.fields,
    )
    return [(call,)]


def tuple_lines(
    depth: int, at: str, target: str, shape: Sequence[Dim], strides: Sequence[Dim]
) -> tuple[str, dict[str, Dim]]:
    """WGSL that adds to `target` what the tuple of indices from element `at` on addresses."""
    lines = []
    words: dict[str, Dim] = {}
    for k in range(depth):
        words[f"axis_size{k}"], words[f"axis_stride{k}"] = shape[k], strides[k]
        lines += [
            f"let c{k} = wrap_index(i32(load_indices({at} + {k}u)), params.axis_size{k});",
            f"inside = inside && c{k} < params.axis_size{k};",
            f"{target} += c{k} * params.axis_stride{k};",
        ]
    return "\n".join(f"    {line}" for line in lines), words


def word_fields(words: Mapping[str, Dim]) -> tuple[tuple[str, str], ...]:
    """Declarations of words of Params, all of them u32."""
    return tuple((name, "u32") for name in words)


def _lower_gather_nd(view: Lowering) -> Sequence[Stage]:
    shape, picked, depth = view.shape(0), view.shape(1), index_depth(view) or 0
    batch = int(view.attr("batch_dims", 0))
    strides = row_major(shape)[batch:]
    body, words = tuple_lines(depth, f"tuple * {depth}u", "source", shape[batch:], strides)
    size = product(view.out_shape())
    call = KernelCall(
        "gather_nd",
        {"x": view.node.inputs[0], "indices": view.node.inputs[1], "y": view.node.outputs[0]},
        {
            "size": size,
            "inner": product(shape[batch + depth :]),
            "per_batch": product(picked[batch:-1]),
            "batch_stride": product(shape[batch:]),
            **words,
        },
        linear(size),
        text={"T": view.dtype(0).wgsl, "BODY": body},
        extra_params=word_fields(words),
    )
    return [(call,)]


def supports_nd(view: NodeView) -> Support:
    """Whether it is known how many axes the indices of GatherND and ScatterND address."""
    depth = index_depth(view)
    if depth is None:
        return no("how many axes an index addresses is not known when planning")
    return YES if depth else no("the indices address no axis")


def _lower_one_hot(view: Lowering) -> Sequence[Stage]:
    indices, out = view.shape(0), view.out_shape()
    axis = view.axis(len(indices) + 1, default=-1)
    size = product(out)
    call = KernelCall(
        "gather_onehot",
        {"indices": view.node.inputs[0], "values": view.node.inputs[2], "y": view.node.outputs[0]},
        {"size": size, "depth": out[axis], "inner": product(indices[axis:])},
        linear(size),
    )
    return [(call,)]


def _supports_one_hot(view: NodeView) -> Support:
    if view.dtype(0).wgsl != "i32":
        return no(f"its indices are {view.dtype(0)}")
    return YES


def _cpu(view: NodeView) -> CpuWork:
    """Runs of elements behind the axis, each found by one index."""
    axis = view.axis(len(view.shape(0)))
    run = max(prod(in_shape(view, 0)[axis + 1 :]), 1)
    return CpuWork(3, gathers=prod(out_shape(view)) // run, passes=(2 * out_nbytes(view),))


def _cpu_picked(view: NodeView) -> CpuWork:
    return CpuWork(6, gathers=2 * prod(out_shape(view)))


def _index_loads(view: NodeView) -> float:
    """How often Gather loads an index: by each element of what it picks, or each four of them."""
    shape, axis = in_shape(view, 0), view.axis(len(view.shape(0)))
    inner = prod(shape[axis + 1 :])
    return prod(shape[:axis]) * (inner // 4 if inner % 4 == 0 else inner)


def _gpu(view: NodeView) -> GpuWork:
    return GpuWork(1, gathers=prod(out_shape(view)))


def agree_coordinates(view: NodeView) -> Iterator[Guard]:
    """The axes of the batch are those of the data."""
    batch = int(view.attr("batch_dims", 0))
    yield from alike(view, view.shape(0)[:batch], view.shape(1)[:batch])


def agree_elements(view: NodeView) -> Iterator[Guard]:
    shape, indices = view.shape(0), view.shape(1)
    axis = view.axis(len(shape), default=0)
    if len(shape) != len(indices):
        raise ShapeError(f"{view.describe()}: the indices need the rank of the data")
    for place, (size, count) in enumerate(zip(shape, indices, strict=True)):
        if place != axis and size != count:
            yield at_least(size, count)


def _agree_one_hot(view: NodeView) -> Iterator[Guard]:
    """There are a value for no and one for yes."""
    yield from alike(view, view.shape(2), (2,))


register(
    OpDef(
        "Gather",
        infer=_infer_gather,
        evaluate=_evaluate_gather,
        lower=_lower_gather,
        dtypes=ALL,
        loads={1: _index_loads},
        epilogue=True,
        in_place=InPlace(False, _gather_parts, lambda view, _: _lower_gather(view)),
        tolerance=0.0,
        cpu=_cpu,
        gpu=_gpu,
    )
)
register(
    OpDef(
        "GatherElements",
        11,
        infer=_infer_gather_elements,
        agree=agree_elements,
        evaluate=_evaluate_gather_elements,
        lower=_lower_gather_elements,
        dtypes=ALL,
        epilogue=True,
        tolerance=0.0,
        cpu=_cpu_picked,
        gpu=_gpu,
    )
)
register(
    OpDef(
        "GatherND",
        11,
        infer=_infer_gather_nd,
        agree=agree_coordinates,
        evaluate=_evaluate_gather_nd,
        lower=_lower_gather_nd,
        supports=supports_nd,
        limits="indices whose last dimension is 0 or not known when planning",
        dtypes=ALL,
        epilogue=True,
        tolerance=0.0,
        cpu=_cpu_picked,
        gpu=_gpu,
    )
)
register(
    OpDef(
        "OneHot",
        9,
        infer=_infer_one_hot,
        agree=_agree_one_hot,
        lower=_lower_one_hot,
        supports=_supports_one_hot,
        limits="float indices",
        dtypes=ALL,
        shape_inputs=(1,),
        epilogue=True,
        tolerance=0.0,
    )
)
register(OpDef("Compress", 9, infer=_infer_compress))
