"""MaxUnpool: what MaxPool kept, back at its places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.dims import Dim, Guard, at_least, ceildiv, product
from engine.dtypes import UINT32
from engine.errors import ShapeError
from engine.indexing import index_map, row_major
from engine.ir import TensorType, ValueType
from engine.ops import (
    FLOATS,
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
    yes_if,
)
from engine.ops._fit import alike
from engine.ops._index_ranges import unpooled


def _natural(view: NodeView) -> tuple[Dim, ...]:
    """The shape in which the indices count."""
    shape, kernel = view.shape(0), view.attr("kernel_shape")
    rank = len(shape) - 2
    if rank < 1 or len(kernel) != rank:
        raise ShapeError(f"{view.describe()}: kernel_shape has {len(kernel)} sizes for {rank} axes")
    return unpooled(view.node, shape)


def _infer(view: InferView) -> list[ValueType]:
    x = view.type(0)
    if x.shape is None:
        return [x]
    if not view.has(2):
        return [TensorType(x.dtype, _natural(view))]
    sizes = view.dim_list(2)
    if sizes is None:
        sizes = [view.fresh("unpooled") for _ in x.shape]
    return [TensorType(x.dtype, tuple(sizes))]


def _supports(view: NodeView) -> Support:
    natural, out = _natural(view), view.out_shape()
    if len(natural) != len(out):
        return no("its output_shape has another rank than its input")
    why = "what is unpooled fits output_shape"
    return yes_if(*(at_least(o, n, why) for o, n in zip(out, natural, strict=True)))


def _lower(view: Lowering) -> Sequence[Stage]:
    natural, out = _natural(view), view.out_shape()
    size, y = product(view.shape(0)), view.node.outputs[0]
    target = index_map("target_of", natural, row_major(out))
    winners = view.scratch(UINT32, (product(natural),))

    def fill(name: str, count: Dim, value: str) -> KernelCall:
        words: dict[str, Dim | float] = {"size": count, "bits": 0}
        grid = linear(ceildiv(count, 4))
        return KernelCall("shape_fill", {"y": name}, words, grid, text={"VALUE": value})

    words: dict[str, Dim | float] = {"size": size, "places": product(natural)}
    tensors = {"indices": view.node.inputs[1], "winners": winners}
    claim = KernelCall("pool_unpool", tensors, words, linear(size), frozenset({"CLAIM"}))
    place = KernelCall(
        "pool_unpool",
        {**tensors, "x": view.node.inputs[0], "y": y},
        {**words, **dict(target.params)},
        linear(size),
        text={"MAP": target.text},
        extra_params=target.fields,
    )
    return [
        (fill(y, product(out), "bitcast<f32>(params.bits)"),),
        (fill(winners, product(natural), "params.bits"),),
        (claim,),
        (place,),
    ]


def _agree(view: NodeView) -> Iterator[Guard]:
    yield from alike(view, view.shape(0), view.shape(1))


register(
    OpDef(
        "MaxUnpool",
        9,
        infer=_infer,
        agree=_agree,
        lower=_lower,
        supports=_supports,
        limits="output_shape not known when planning",
        dtypes=FLOATS | {"int64"},
        shape_inputs=(2,),
        flops=lambda view: product(view.out_shape()),
        scratch=1,
        launches=lambda view: 4,
        tolerance=0.0,
    )
)
