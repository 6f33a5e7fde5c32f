"""Convolutions of integers: ConvInteger and QLinearConv, exact in i32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from engine.dims import Dim, Guard, at_least, ceildiv, divisible, product
from engine.dtypes import INT32
from engine.errors import ShapeError
from engine.ir import TensorType, ValueType
from engine.ops import (
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
    yes_if,
)
from engine.ops._convolution import grouped
from engine.ops._fit import same
from engine.ops._quant import along, every, is_single, zero_word
from engine.ops._variants import choose
from engine.ops.quant import LEVEL, level
from engine.windows import Windows, windows

_BYTES = frozenset({"int8", "uint8"})


def _operands(view: NodeView) -> tuple[int, int]:
    """Indices of the data and of the weights."""
    return (0, 3) if view.node.op_type == "QLinearConv" else (0, 1)


def _zeros(view: NodeView) -> tuple[int, int]:
    """Indices of their zero points."""
    return (2, 5) if view.node.op_type == "QLinearConv" else (2, 3)


def _windows(view: NodeView) -> Windows:
    x, w = (view.shape(i) for i in _operands(view))
    if len(x) < 3 or len(x) != len(w):
        raise ShapeError(f"{view.describe()}: data and weights need the same rank, at least 3")
    given = view.attr("kernel_shape")
    return windows(
        x[2:],
        w[2:] if given is None else tuple(given),
        auto_pad=view.attr("auto_pad", "NOTSET"),
        strides=view.attr("strides"),
        dilations=view.attr("dilations"),
        pads=view.attr("pads"),
    )


def _infer(view: InferView) -> list[ValueType]:
    x, w = (view.shape(i) for i in _operands(view))
    dtype = view.dtype(7) if view.node.op_type == "QLinearConv" else INT32
    return [TensorType(dtype, (x[0], w[0], *_windows(view).out))]


def _group_out(view: NodeView) -> Dim:
    channels, group = view.shape(_operands(view)[1])[0], int(view.attr("group", 1))
    if isinstance(channels, int) and channels % group:
        raise ShapeError(f"{view.describe()}: {channels} channels, and {group} groups")
    return channels // group


def _supports(view: NodeView) -> Support:
    x, w = (view.shape(i) for i in _operands(view))
    if len(x) > 5:
        return no("kernels have at most three spatial axes")
    if any(view.dtype(i).name not in _BYTES for i in _operands(view)):
        return no("its kernel takes integers of 8 bits")
    x_zero, w_zero = _zeros(view)
    found = [along(view, x_zero, None), along(view, w_zero, w[0])]
    if view.node.op_type == "QLinearConv":
        found += [along(view, 4, w[0]), *(along(view, i, None) for i in (1, 6, 7))]
        if view.out().dtype.name not in _BYTES:
            return no(f"its kernel makes no {view.out().dtype}")
    trips = at_least(view.target.max_loop_trips, product(w[1:]))
    if trips.known is False:
        return no("its reduction is longer than a loop may be")
    return every(*found, yes_if(*(() if trips.known else (trips,))))


def _lower(view: Lowering) -> Sequence[Stage]:
    (x, w), group = _operands(view), int(view.attr("group", 1))
    win, group_out = _windows(view).without_units(), _group_out(view)
    tensors = {"x": view.node.inputs[x], "w": view.node.inputs[w], "y": view.node.outputs[0]}
    flags, words = set(), dict(win.params())
    for name, index in zip("xw", _zeros(view), strict=True):
        word = zero_word(view, index)
        words[f"{name}_level"] = word or 0
        if word is None:
            tensors[f"{name}_zero"] = view.node.inputs[index]
            flags.add(f"{name.upper()}_ZERO")
    if view.node.op_type == "QLinearConv" and view.has(8):
        tensors["b"] = view.node.inputs[8]
        flags.add("BIAS")
    blocks, tiles_w = ceildiv(group_out, 4), ceildiv(win.out[2], 4)
    tiles = view.shape(x)[0] * group * blocks * win.out[0] * win.out[1] * tiles_w
    words |= {
        "tiles": tiles,
        "tiles_w": tiles_w,
        "blocks": blocks,
        "groups": group,
        "group_in": view.shape(w)[1],
        "group_out": group_out,
        "w_zero_step": int(not is_single(view, _zeros(view)[1])),
    }
    calls = [
        KernelCall(
            "quant_conv",
            tensors,
            words,
            linear(tiles),
            frozenset(flags | {"WIDE"} if wide else flags),
            trips=product(view.shape(w)[1:]),
            when=(divisible(win.out[2], 4),) if wide else (),
        )
        for wide in (True, False)
    ]
    return [choose(calls)]


def _flops(view: NodeView) -> Dim:
    return 2 * product(view.out_shape()) * product(view.shape(_operands(view)[1])[1:])


def _requantize(view: NodeView) -> str:
    return level(view, "f32({acc}) * ({1} * {4} / {6})", "{7}")


def _walks(view: NodeView) -> Mapping[int, Walk]:
    shape = view.out_shape()
    if is_single(view, 4):
        return {}
    return {4: ((shape[0], shape[1], product(shape[2:])), (0, 1, 0))}


def _agree(view: NodeView) -> Iterator[Guard]:
    yield from grouped(view, view.shape(0), view.shape(1))


def _agree_quantised(view: NodeView) -> Iterator[Guard]:
    yield from grouped(view, view.shape(0), view.shape(3))
    if view.has(8):
        yield from same(view, view.shape(8)[0], view.shape(3)[0])


register(
    OpDef(
        "ConvInteger",
        10,
        infer=_infer,
        agree=_agree,
        lower=_lower,
        supports=_supports,
        limits="more than three spatial axes; scales and zero points but for the whole or channels",
        dtypes=_BYTES,
        epilogue=True,
        inlines_scalars=True,
        flops=_flops,
        tolerance=0.0,
    )
)
register(
    OpDef(
        "QLinearConv",
        10,
        infer=_infer,
        agree=_agree_quantised,
        lower=_lower,
        supports=_supports,
        limits="more than three spatial axes; scales and zero points but for the whole or channels",
        dtypes=_BYTES | {"float32", "int32"},
        tail=Tail(
            Elementwise(_requantize, includes=LEVEL, scalar=True, walks=_walks), (1, 4, 6, 7), "i32"
        ),
        epilogue=True,
        inlines_scalars=True,
        flops=_flops,
        tolerance=0.0,
    )
)
