"""Views and sizes: Reshape, Squeeze, Unsqueeze, Flatten, Identity, Shape, Size, ConstantOfShape,
Range."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from engine.dims import Dim, at_least, bounds, ceildiv, dmax, equal, floordiv, product
from engine.dtypes import INT64, DType, from_numpy
from engine.errors import ShapeError
from engine.ir import Array, Shape, TensorType, ValueType
from engine.ops import (
    ALL,
    NUMBERS,
    YES,
    Evaluate,
    InferView,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    linear,
    no,
    object_array,
    register,
)

MAX_CONTENT = 64


def content(view: NodeView, index: int) -> Array | None:
    """Content of integer input `index` as an object array, if known and of at most 64 elements."""
    constant = view.const(index)
    if constant is not None and constant.size > MAX_CONTENT:
        return None
    found = view.dims(index)
    return None if found is None or found.size > MAX_CONTENT else found


def as_content(value: object) -> Array | None:
    """An object array for a NumPy result (a scalar one included); None past 64 elements."""
    array = np.asarray(value, dtype=object)
    return array if array.size <= MAX_CONTENT else None


def evaluate_by(function: Callable[[NodeView, Array], object]) -> Evaluate:
    """An `evaluate` rule for one output, from the known content of input 0; None: not known."""

    def evaluate(view: NodeView) -> list[Array | None] | None:
        x = content(view, 0)
        found = None if x is None else function(view, x)
        return None if found is None else [as_content(found)]

    return evaluate


def fresh_dims(view: InferView, hint: str, count: int) -> Shape:
    """`count` new symbols."""
    return tuple(view.fresh(f"{hint}{i}") for i in range(count))


def content_length(view: NodeView, index: int) -> int | None:
    """Number of elements of a 1-D input, if it is known."""
    shape = view.type(index).static_shape
    return None if shape is None else math.prod(shape)


def fresh_like(view: InferView, index: int, dtype: DType) -> TensorType:
    """A type whose shape is the content of input `index`, which is unknown."""
    length = content_length(view, index)
    hint = view.node.op_type.lower()
    return TensorType(dtype, None if length is None else fresh_dims(view, hint, length))


def keep_type(view: InferView) -> list[ValueType]:
    """An `infer` rule: output 0 has the type of input 0."""
    return [view.type(0)]


def _infer_reshape(view: InferView) -> list[ValueType]:
    x = view.type(0)
    target = view.dim_list(1)
    if target is None:
        if content_length(view, 1) == 1 and x.shape is not None:
            return [TensorType(x.dtype, (product(x.shape),))]
        return [fresh_like(view, 1, x.dtype)]
    if any(isinstance(size, int) and size < -1 for size in target):
        raise ShapeError(f"{view.describe()}: {target} has a size below -1")
    sizes: list[Dim] = []
    keep_zero = int(view.attr("allowzero", 0))
    for axis, size in enumerate(target):
        if size != 0 or keep_zero:
            sizes.append(size)
        elif x.shape is None:
            sizes.append(view.fresh("reshape"))
        elif axis >= len(x.shape):
            raise ShapeError(f"{view.describe()}: size 0 at axis {axis} copies a missing axis")
        else:
            sizes.append(x.shape[axis])
    if x.shape is None:
        return [TensorType(x.dtype, tuple(view.fresh("reshape") if d == -1 else d for d in sizes))]
    return [TensorType(x.dtype, _solve(view, x.shape, sizes))]


def _solve(view: InferView, shape: Shape, sizes: list[Dim]) -> Shape:
    """`sizes` with its -1 replaced by what `shape` leaves for it."""
    total, wanted = product(shape), product(d for d in sizes if d != -1)
    unknown = [axis for axis, d in enumerate(sizes) if d == -1]
    static = isinstance(total, int) and isinstance(wanted, int)
    bad = len(unknown) > 1 or (wanted == 0 and bool(unknown))
    if static and not bad:
        bad = total % wanted != 0 if unknown else total != wanted
    if bad:
        raise ShapeError(f"{view.describe()}: cannot reshape {list(shape)} to {sizes}")
    if not unknown:
        if total != wanted:
            why = f"{total} elements are as many as {wanted} in {view.describe()}"
            view.guards.append(equal(total, wanted, why))
        return tuple(sizes)
    low = bounds(wanted)[0]
    quotient = floordiv(total, wanted)
    exact = quotient * wanted == total
    if not exact and (low is None or low < 1):
        quotient = floordiv(total, dmax(wanted, 1))
        for axis, size in enumerate(sizes):
            if size != -1 and not (axis < len(shape) and size == shape[axis]):
                why = f"{size} >= 1, as a size of 0 is another one in {view.describe()}"
                view.guards.append(at_least(size, 1, why))
    sizes[unknown[0]] = quotient
    return tuple(sizes)


def squeezed_axes(view: NodeView, shape: Shape) -> list[int] | None:
    """The axes that a Squeeze removes; None where unknown sizes or axes decide."""
    if view.has(1):
        axes = view.ints(1)
        if axes is None:
            return None
        return sorted(view.normal_axes(axes, len(shape)))
    if any(d != 1 and (bounds(d)[0] or 0) < 2 and d != 0 for d in shape):
        return None
    return [axis for axis, d in enumerate(shape) if d == 1]


def _infer_squeeze(view: InferView) -> list[ValueType]:
    x = view.type(0)
    axes = None if x.shape is None else squeezed_axes(view, x.shape)
    if axes is None or x.shape is None:
        return [TensorType(x.dtype)]
    for axis in axes:
        if isinstance(x.shape[axis], int) and x.shape[axis] != 1:
            raise ShapeError(f"{view.describe()}: axis {axis} has size {x.shape[axis]}, not 1")
    return [TensorType(x.dtype, tuple(d for i, d in enumerate(x.shape) if i not in axes))]


def _infer_unsqueeze(view: InferView) -> list[ValueType]:
    x, axes = view.type(0), view.ints(1)
    if x.shape is None or axes is None:
        length = content_length(view, 1)
        if x.shape is None or length is None:
            return [TensorType(x.dtype)]
        return [TensorType(x.dtype, fresh_dims(view, "unsqueeze", len(x.shape) + length))]
    rank = len(x.shape) + len(axes)
    at = set(view.normal_axes(axes, rank))
    rest = iter(x.shape)
    return [TensorType(x.dtype, tuple(1 if i in at else next(rest) for i in range(rank)))]


def _infer_flatten(view: InferView) -> list[ValueType]:
    x = view.type(0)
    if x.shape is None:
        return [TensorType(x.dtype, fresh_dims(view, "flatten", 2))]
    axis, rank = int(view.attr("axis", 1)), len(x.shape)
    if not -rank <= axis <= rank:
        raise ShapeError(f"{view.describe()}: axis {axis} is outside [-{rank}, {rank}]")
    axis += rank if axis < 0 else 0
    return [TensorType(x.dtype, (product(x.shape[:axis]), product(x.shape[axis:])))]


def _infer_identity(view: InferView) -> list[ValueType]:
    found = view.graph.values[view.node.inputs[0]].type
    if found is None:
        raise ShapeError(f"{view.describe()}: the type of the input is unknown")
    return [found]


def _reshape_content(view: NodeView, x: Array) -> Array | None:
    """Content of a view: the same elements in the shape that `infer` finds."""
    shape = view.out().static_shape
    return None if shape is None or math.prod(shape) != x.size else x.reshape(shape)


def _evaluate_view(view: NodeView) -> list[Array | None] | None:
    x = content(view, 0)
    if x is None or view.graph.tensor(view.node.outputs[0]) is None:
        return None
    return [_reshape_content(view, x)]


def _views() -> None:
    rules = {
        "Reshape": (5, _infer_reshape, (1,)),
        "Squeeze": (13, _infer_squeeze, (1,)),
        "Unsqueeze": (13, _infer_unsqueeze, (1,)),
        "Flatten": (1, _infer_flatten, ()),
        "Identity": (1, _infer_identity, ()),
    }
    for name, (since, infer, shape_inputs) in rules.items():
        register(
            OpDef(
                name,
                since,
                infer=infer,
                evaluate=_evaluate_view,
                view=True,
                dtypes=ALL,
                shape_inputs=shape_inputs,
                flops=lambda view: 0,
                tolerance=0.0,
            )
        )


_views()


def _sizes(view: NodeView) -> Shape | None:
    """The dims that Shape returns, cut by its `start` and `end`."""
    shape = view.type(0).shape
    if shape is None:
        return None
    end = view.attr("end")
    return shape[slice(int(view.attr("start", 0)), None if end is None else int(end))]


def _infer_shape(view: InferView) -> list[ValueType]:
    sizes = _sizes(view)
    return [TensorType(INT64, (view.fresh("rank") if sizes is None else len(sizes),))]


def _evaluate_shape(view: NodeView) -> list[Array | None] | None:
    sizes = _sizes(view)
    return None if sizes is None else [object_array(sizes)]


def _infer_size(view: InferView) -> list[ValueType]:
    return [TensorType(INT64, ())]


def _evaluate_size(view: NodeView) -> list[Array | None] | None:
    size = view.type(0).size
    return None if size is None else [object_array(size)]


register(OpDef("Shape", 1, infer=_infer_shape, evaluate=_evaluate_shape))
register(OpDef("Size", 1, infer=_infer_size, evaluate=_evaluate_size))


def _fill_value(view: NodeView) -> Array:
    """The attribute `value` of ConstantOfShape, [1]."""
    value = view.attr("value")
    return np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(-1)


def _infer_constant_of_shape(view: InferView) -> list[ValueType]:
    dtype = from_numpy(_fill_value(view).dtype)
    sizes = view.dim_list(0)
    return [fresh_like(view, 0, dtype) if sizes is None else TensorType(dtype, tuple(sizes))]


def _evaluate_constant_of_shape(view: NodeView) -> list[Array | None] | None:
    sizes, value = view.ints(0), _fill_value(view)
    if sizes is None or math.prod(sizes) > MAX_CONTENT or value.dtype.kind not in "iub":
        return None
    return [np.full(sizes, value[0].item(), dtype=object)]


def _lower_constant_of_shape(view: Lowering) -> Sequence[Stage]:
    kind = view.out().dtype.wgsl
    value = _fill_value(view)
    word = value.astype(np.uint32 if kind in ("bool", "u32") else np.dtype(_WORDS[kind]))
    size = product(view.out_shape())
    call = KernelCall(
        "shape_fill",
        {"y": view.node.outputs[0]},
        {"size": size, "bits": int(word.view(np.uint32)[0])},
        linear(ceildiv(size, 4)),
        text={"VALUE": "params.bits != 0u" if kind == "bool" else f"bitcast<{kind}>(params.bits)"},
    )
    return [(call,)]


_WORDS = {"f32": np.float32, "i32": np.int32}

register(
    OpDef(
        "ConstantOfShape",
        9,
        infer=_infer_constant_of_shape,
        evaluate=_evaluate_constant_of_shape,
        lower=_lower_constant_of_shape,
        dtypes=ALL,
        shape_inputs=(0,),
        epilogue=True,
        tolerance=0.0,
    )
)


def _range_terms(view: NodeView) -> tuple[Dim, Dim, int] | None:
    """start, limit and delta of an integer Range, if known."""
    found = [view.dim_list(i) for i in range(3)]
    if any(f is None or len(f) != 1 for f in found):
        return None
    start, limit, delta = (f[0] for f in found if f is not None)
    return (start, limit, delta) if isinstance(delta, int) else None


def _infer_range(view: InferView) -> list[ValueType]:
    dtype = view.dtype(0)
    terms = _range_terms(view)
    if terms is not None:
        start, limit, delta = terms
        if delta == 0:
            raise ShapeError(f"{view.describe()}: delta is 0")
        span = limit - start if delta > 0 else start - limit
        return [TensorType(dtype, (dmax(ceildiv(span, abs(delta)), 0),))]
    constants = [view.const(i) for i in range(3)]
    if any(c is None for c in constants):
        return [TensorType(dtype, (view.fresh("range"),))]
    first, last, step = (float(c.reshape(-1)[0]) for c in constants if c is not None)
    if step == 0:
        raise ShapeError(f"{view.describe()}: delta is 0")
    return [TensorType(dtype, (max(math.ceil((last - first) / step), 0),))]


def _evaluate_range(view: NodeView) -> list[Array | None] | None:
    terms = _range_terms(view)
    shape = view.out().static_shape
    if terms is None or shape is None or shape[0] > MAX_CONTENT:
        return None
    return [object_array([terms[0] + i * terms[2] for i in range(shape[0])])]


def _lower_range(view: Lowering) -> Sequence[Stage]:
    kind = view.dtype(0).wgsl
    terms = _range_terms(view)
    words: dict[str, Dim | float] = {}
    if terms is not None:
        words = {"start": terms[0], "delta": terms[2]}
    else:
        for name, index in (("start", 0), ("delta", 2)):
            constant = view.const(index)
            words[name] = 0.0 if constant is None else float(constant.reshape(-1)[0])
    size = product(view.out_shape())
    call = KernelCall(
        "shape_range",
        {"y": view.node.outputs[0]},
        {"size": size, **words},
        linear(size),
        text={"T": kind},
        extra_params=(("start", kind), ("delta", kind)),
    )
    return [(call,)]


def _supports_range(view: NodeView) -> Support:
    if view.dtype(0).is_float and any(view.const(i) is None for i in range(3)):
        return no("start, limit and delta of a float Range are not constants")
    if not view.dtype(0).is_float and _range_terms(view) is None:
        return no("start, limit or delta is not known when planning")
    return YES


register(
    OpDef(
        "Range",
        11,
        infer=_infer_range,
        evaluate=_evaluate_range,
        lower=_lower_range,
        supports=_supports_range,
        limits="operands not known when planning; float operands that are not constants",
        dtypes=NUMBERS,
        shape_inputs=(0, 1, 2),
        epilogue=True,
        tolerance=1e-6,
    )
)
