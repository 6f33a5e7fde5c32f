"""DeformConv: what moved taps see, then a matrix product."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from engine.dims import Dim, Guard, divisible, floordiv, product
from engine.dtypes import FLOAT32
from engine.errors import ShapeError
from engine.ir import TensorType, ValueType
from engine.ops import (
    YES,
    Elementwise,
    InferView,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    Tail,
    Walk,
    linear,
    no,
    register,
)
from engine.ops._convolution import grouped
from engine.ops._fit import alike
from engine.ops._matmul_calls import product_stage
from engine.ops._matmul_tiles import Product
from engine.windows import Windows, windows

X, W, OFFSET, BIAS, MASK = range(5)


def _windows(view: NodeView) -> Windows:
    return windows(
        view.shape(X)[2:],
        view.shape(W)[2:],
        strides=view.attr("strides"),
        dilations=view.attr("dilations"),
        pads=view.attr("pads"),
    )


def _infer(view: InferView) -> list[ValueType]:
    x, w = view.type(X), view.type(W)
    if x.shape is None or w.shape is None:
        return [TensorType(x.dtype)]
    if len(x.shape) != len(w.shape) or len(x.shape) < 3:
        raise ShapeError(f"{view.describe()}: x and w must be of one rank, at least 3")
    return [TensorType(x.dtype, (x.shape[0], w.shape[0], *_windows(view).out))]


def _supports(view: NodeView) -> Support:
    return no("kernels have at most three spatial axes") if len(view.shape(X)) > 5 else YES


def _agree(view: NodeView) -> Iterator[Guard]:
    x, w, out = view.shape(X), view.shape(W), view.out_shape()
    moved = int(view.attr("offset_group", 1))
    yield divisible(x[1], moved)
    yield from grouped(view, x, w)
    channels = moved * product(w[2:])
    for index, count in ((OFFSET, channels * (len(x) - 2)), (MASK, channels)):
        if view.has(index):
            yield from alike(view, view.shape(index), (x[0], count, *out[2:]))
    if view.has(BIAS):
        yield from alike(view, view.shape(BIAS), w[:1])


def _lines(win: Windows, places: str) -> tuple[str, str, dict[str, Dim]]:
    """WGSL that reads the coordinates of a tap, that finds a corner, and its words."""
    reads, finds = [], []
    words: dict[str, Dim] = {}
    rank = len(win.size)
    for d in reversed(range(rank)):
        words |= {f"size{d}": win.size[d], f"out{d}": win.out[d], f"kernel{d}": win.kernel[d]}
        at = (
            f"i32(output_rest % params.out{d} * {win.strides[d]}u"
            f" + kernel_rest % params.kernel{d} * {win.dilations[d]}u) - {win.begin[d]}"
        )
        reads += [
            f"let p{d} = clamp(f32({at}) + load_offset(moved + {d}u * {places}), -FAR, FAR);",
            f"let b{d} = floor(p{d});",
            f"let f{d} = p{d} - b{d};",
            f"output_rest /= params.out{d};",
            f"kernel_rest /= params.kernel{d};",
        ]
    for d in range(rank):
        finds += [
            f"let c{d} = (corner >> {d}u) & 1u;",
            f"let i{d} = i32(b{d}) + i32(c{d});",
            f"weight *= select(1.0 - f{d}, f{d}, c{d} == 1u);",
            f"inside = inside && i{d} >= 0 && i{d} < i32(params.size{d});",
            f"position = position * params.size{d} + u32(i{d});",
        ]
    return (
        "\n".join(f"    {line}" for line in reads),
        "\n".join(f"        {line}" for line in finds),
        words,
    )


def _lower(view: Lowering) -> Sequence[Stage]:
    x, w, out = view.shape(X), view.shape(W), view.out_shape()
    win, rank = _windows(view), len(x) - 2
    group, moved = int(view.attr("group", 1)), int(view.attr("offset_group", 1))
    taps, places = product(w[2:]), product(out[2:])
    columns = view.scratch(FLOAT32, (x[0], x[1] * taps, places))
    reads, finds, words = _lines(win, "params.places")
    tensors = {"x": view.node.inputs[X], "offset": view.node.inputs[OFFSET]}
    if view.has(MASK):
        tensors["mask"] = view.node.inputs[MASK]
    size = x[0] * x[1] * taps * places
    draw = KernelCall(
        "columns_deform",
        {**tensors, "columns": columns},
        {
            "size": size,
            "places": places,
            "taps": taps,
            "channels": x[1],
            "offset_groups": moved,
            "group_channels": floordiv(x[1], moved),
            "pixels": product(x[2:]),
            **words,
        },
        linear(size),
        frozenset({"MASK"} if view.has(MASK) else ()),
        {"READS": reads, "FINDS": finds, "RANK": f"{rank}u", "CORNERS": f"{2**rank}u"},
        extra_params=tuple((name, "u32") for name in words),
        trips=2**rank,
    )
    rows, inner = floordiv(w[0], group), w[1] * taps
    weigh = Product(
        kind="f32",
        a=view.node.inputs[W],
        b=columns,
        rows=rows,
        columns=places,
        inner=inner,
        batch=(x[0], group),
        a_batch=(0, rows * inner),
        b_batch=(x[1] * taps * places, inner * places),
    )
    return [(draw,), product_stage(weigh, view.node.outputs[0], view.target)]


def _bias_walk(view: NodeView) -> Mapping[int, Walk]:
    """A bias for each output channel."""
    if not view.has(BIAS):
        return {}
    out = view.out_shape()
    return {BIAS: ((out[0], out[1], product(out[2:])), (0, 1, 0))}


def _flops(view: NodeView) -> Dim:
    w = view.shape(W)
    drawn = view.shape(X)[0] * view.shape(X)[1] * product(w[2:]) * product(view.out_shape()[2:])
    return 2 * product(view.out_shape()) * product(w[1:]) + 20 * drawn


register(
    OpDef(
        "DeformConv",
        19,
        infer=_infer,
        agree=_agree,
        lower=_lower,
        supports=_supports,
        limits="more than three spatial axes",
        tail=Tail(
            Elementwise(
                lambda view: f"{{acc}} + {{{BIAS}}}" if view.has(BIAS) else "{acc}",
                walks=_bias_walk,
            ),
            (BIAS,),
            "f32",
        ),
        epilogue=True,
        scratch=1,
        flops=_flops,
        tolerance=2e-5,
    )
)
