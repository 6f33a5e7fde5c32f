"""TopK: the largest or smallest elements along an axis, and where they stand; types of Unique."""

from __future__ import annotations

from collections.abc import Sequence

from engine.dims import Dim, Guard, at_least, product
from engine.dtypes import INT64
from engine.errors import ShapeError
from engine.ir import Shape, TensorType, ValueType
from engine.ops import (
    NUMBERS,
    InferView,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    linear,
    register,
    yes_if,
)
from engine.ops._variants import MAX_TRIPS, choose

CAPACITY = 1024
"""Longest row that a workgroup sorts."""
WORKGROUP = 256


def _infer(view: InferView) -> list[ValueType]:
    x = view.type(0)
    if x.shape is None:
        return [x, TensorType(INT64)]
    if not x.shape:
        raise ShapeError(f"{view.describe()}: the input must have at least one axis")
    axis = view.axis(len(x.shape), -1)
    known = view.dim_list(1)
    k = known[0] if known else view.fresh("k")
    count = x.shape[axis]
    if isinstance(k, int) and isinstance(count, int) and not 0 <= k <= count:
        raise ShapeError(f"{view.describe()}: k is {k} of {count} elements")
    shape: Shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [TensorType(x.dtype, shape), TensorType(INT64, shape)]


_KEYS = {
    "f32": """
    let bits = bitcast<u32>(value);
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return 0xffffffffu;
    }
    let up = select(size | 0x80000000u, ~bits, bits > 0x80000000u);""",
    "i32": "\n    let up = bitcast<u32>(value) ^ 0x80000000u;",
    "u32": "\n    let up = value;",
}


def _key(kind: str, largest: bool) -> str:
    """`order_key`: a number that is smaller the earlier an element comes; NaN is last."""
    return (
        f"fn order_key(value: {kind}) -> u32 {{{_KEYS[kind]}\n"
        f"    return {'~up' if largest else 'up'};\n}}\n"
    )


def _lower(view: Lowering) -> Sequence[Stage]:
    shape = view.shape(0)
    axis = view.axis(len(shape), -1)
    k, count, inner = view.out_shape()[axis], shape[axis], product(shape[axis + 1 :])
    rows = product(shape[:axis]) * inner
    tensors = {"x": view.node.inputs[0]}
    for index, name in enumerate(("values", "indices")):
        if view.wants(index):
            tensors[name] = view.node.outputs[index]
    flags = frozenset(name.upper() for name in tensors if name != "x")
    text = {"KEY": _key(view.dtype(0).wgsl, bool(view.attr("largest", 1)))}
    words: dict[str, Dim | float] = {"rows": rows, "count": count, "k": k, "inner": inner}

    def call(shader: str, grid: tuple[Dim, Dim, Dim], trips: Dim, *when: Guard) -> KernelCall:
        return KernelCall(
            shader, tensors, words, grid, flags=flags, text=text, trips=trips, when=when
        )

    fits = at_least(CAPACITY, count)
    sort = call("selection_top_k", linear(rows * WORKGROUP, WORKGROUP), 1000, fits)
    rank = call("selection_rank", linear(rows * count), count)
    return [choose([sort, rank])]


def _supports(view: NodeView) -> Support:
    shape = view.shape(0)
    axis = view.axis(len(shape), -1)
    count, k = shape[axis], view.out_shape()[axis]
    return yes_if(
        at_least(MAX_TRIPS, count, f"a row has at most {MAX_TRIPS} elements"),
        at_least(count, k, "k is at most the size of the axis"),
    )


def _flops(view: NodeView) -> Dim:
    shape = view.shape(0)
    count = shape[view.axis(len(shape), -1)]
    long = isinstance(count, int) and count > CAPACITY
    return product(shape) * (count * 2 if long else 64)


register(
    OpDef(
        "TopK",
        10,
        infer=_infer,
        lower=_lower,
        supports=_supports,
        limits="k not known when planning; rows over a loop's length",
        dtypes=NUMBERS,
        shape_inputs=(1,),
        flops=_flops,
        tolerance=0.0,
    )
)


def _infer_unique(view: InferView) -> list[ValueType]:
    x, count = view.type(0), view.fresh("unique")
    if x.shape is None:
        return [x, *[TensorType(INT64, (view.fresh("unique"),)) for _ in range(3)]]
    size: Dim = product(x.shape)
    shape: Shape = (count,)
    if view.attr("axis") is not None:
        axis = view.axis(len(x.shape))
        size, shape = x.shape[axis], (*x.shape[:axis], count, *x.shape[axis + 1 :])
    indices, inverse = TensorType(INT64, (count,)), TensorType(INT64, (size,))
    return [TensorType(x.dtype, shape), indices, inverse, indices]


register(OpDef("Unique", 11, infer=_infer_unique))
