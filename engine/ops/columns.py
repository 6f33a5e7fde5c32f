"""Col2Im: the sum of overlapping windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.dims import Dim, equal, floordiv, product
from engine.errors import ShapeError
from engine.ir import TensorType, ValueType
from engine.ops import (
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


def _infer(view: InferView) -> list[ValueType]:
    x, image, block = view.type(0), view.dim_list(1), view.dim_list(2)
    if x.shape is None or image is None:
        return [TensorType(x.dtype)]
    if len(x.shape) != 3:
        raise ShapeError(f"{view.describe()}: the input must be [N, C * block, windows]")
    channels = view.fresh("channels") if block is None else floordiv(x.shape[1], product(block))
    return [TensorType(x.dtype, (x.shape[0], channels, *image))]


def _geometry(view: NodeView) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations and pads."""
    rank = len(view.dim_list(1) or [])
    strides = [int(n) for n in view.attr("strides") or [1] * rank]
    dilations = [int(n) for n in view.attr("dilations") or [1] * rank]
    pads = [int(n) for n in view.attr("pads") or [0] * (2 * rank)]
    return strides, dilations, pads


def _counts(view: NodeView, image: Sequence[Dim], block: Sequence[int]) -> list[Dim]:
    """Windows along each axis."""
    strides, dilations, pads = _geometry(view)
    rank = len(image)
    return [
        floordiv(
            image[d] + pads[d] + pads[rank + d] - dilations[d] * (block[d] - 1) - 1, strides[d]
        )
        + 1
        for d in range(rank)
    ]


def _supports(view: NodeView) -> Support:
    block, image, x = view.ints(2), view.dim_list(1), view.shape(0)
    if block is None or image is None:
        return no("the shape of the image or of its blocks is not known when planning")
    taps = math.prod(block)
    if min(block, default=1) < 1:
        return no("its blocks are empty")
    if taps > view.target.max_loop_trips:
        return no("its blocks are larger than a loop may be long")
    return yes_if(
        equal(product(_counts(view, image, block)), x[2], "the windows fit the image"),
        equal(floordiv(x[1], taps) * taps, x[1], "the channels hold whole blocks"),
    )


def _lower(view: Lowering) -> Sequence[Stage]:
    out, image, block = view.out_shape(), view.dim_list(1) or [], view.ints(2) or []
    strides, dilations, pads = _geometry(view)
    counts, rank = _counts(view, image, block), len(image)
    words: dict[str, Dim] = {}
    places, finds = [], []
    for d in reversed(range(rank)):
        words[f"image{d}"], words[f"count{d}"] = image[d], counts[d]
        places += [
            f"let at{d} = i32(rest % params.image{d}) + {pads[d]};",
            f"rest /= params.image{d};",
        ]
        finds += [
            f"let from{d} = at{d} - i32(tap % {block[d]}u) * {dilations[d]};",
            f"tap /= {block[d]}u;",
            f"inside = inside && from{d} >= 0 && from{d} % {strides[d]} == 0"
            f" && from{d} / {strides[d]} < i32(params.count{d});",
        ]
    finds += ["var window = 0u;"] + [
        f"window = window * params.count{d} + u32(from{d} / {strides[d]});" for d in range(rank)
    ]
    taps = product(block)
    call = KernelCall(
        "columns_image",
        {"x": view.node.inputs[0], "y": view.node.outputs[0]},
        {"size": product(out), "taps": taps, "windows": view.shape(0)[2], **words},
        linear(product(out)),
        text={
            "PLACES": "\n".join(f"    {line}" for line in places),
            "FINDS": "\n".join(f"        {line}" for line in finds),
        },
        extra_params=tuple((name, "u32") for name in words),
        trips=taps,
    )
    return [(call,)]


def _flops(view: NodeView) -> Dim:
    return product(view.out_shape()) * product(view.ints(2) or [1]) * 8


register(
    OpDef(
        "Col2Im",
        18,
        infer=_infer,
        lower=_lower,
        supports=_supports,
        limits="shapes not known when planning; blocks over a loop's length",
        shape_inputs=(1, 2),
        epilogue=True,
        flops=_flops,
    )
)
