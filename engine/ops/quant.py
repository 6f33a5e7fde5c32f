"""Quantisation: QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear.

Products and convolutions of integers are in `quant_matmul.py` and `quant_conv.py`, elementwise
operators of com.microsoft in `quant_levels.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat

from engine import dtypes
from engine.dims import Dim, at_least, ceildiv, divisible, dmin, equal, floordiv, product
from engine.dtypes import FLOAT32, UINT8, DType
from engine.ir import Shape, TensorType, ValueType
from engine.ops import (
    FLOATS,
    NIBBLES,
    SMALL_INTS,
    YES,
    Elementwise,
    InferView,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    Walk,
    linear,
    no,
    register,
    yes_if,
)
from engine.ops._loads import times
from engine.ops._quant import along, every, is_single
from engine.ops._variants import MAX_TRIPS
from engine.ops._work import SUM_PASSES, whole_passes

MICROSOFT = "com.microsoft"
LEVEL = ("lib/level.wgsl",)
SCALES = FLOATS | SMALL_INTS | NIBBLES | {"int32"}


def level(view: NodeView, value: str, zero: str) -> str:
    """The expression of a float as a level of the output's type; `zero` may be ""."""
    low, high = view.out().dtype.limits
    shift = f"f32({zero})" if zero else "0.0"
    return f"{{T}}(level({value}, {shift}, {low}.0, {high}.0))"


def difference(view: NodeView, index: int, zero_index: int) -> str:
    """The expression of an operand less its zero point, an i32."""
    value = f"i32({{{index}}})"
    return f"({value} - i32({{{zero_index}}}))" if view.has(zero_index) else value


def _blocks(view: NodeView) -> tuple[int, Shape, int]:
    """Axis, shape of the data and size of a block (0: none) of a (de)quantisation."""
    shape = view.shape(0)
    size = int(view.attr("block_size", 0))
    return view.axis(len(shape), 1), shape, size


def _is_per_tensor(view: NodeView) -> bool:
    return all(is_single(view, i) and len(view.shape(i)) <= 1 for i in (1, 2) if view.has(i))


def _walks(view: NodeView) -> Mapping[int, Walk]:
    """Where scale and zero point lie: one for all, one for each index of an axis, or blocks."""
    if _is_per_tensor(view):
        return {}
    axis, shape, block = _blocks(view)
    lead, trail = product(shape[:axis]), product(shape[axis + 1 :])
    if block:
        count = floordiv(shape[axis], block)
        walk: Walk = ((lead, count, block, trail), (count * trail, trail, 0, 1))
        return {i: walk for i in (1, 2) if view.has(i)}
    walk = ((lead, shape[axis], trail), (0, 1, 0))
    return {i: walk for i in (1, 2) if not is_single(view, i)}


def _fits(view: NodeView) -> Support:
    """Whether scale and zero point fit the data."""
    if _is_per_tensor(view):
        return YES
    axis, shape, block = _blocks(view)
    if not block:
        return every(*(along(view, i, shape[axis] if shape else None) for i in (1, 2)))
    blocks = (*shape[:axis], floordiv(shape[axis], block), *shape[axis + 1 :])
    guards = [divisible(shape[axis], block)]
    for index in (1, 2):
        if view.has(index):
            if len(view.shape(index)) != len(shape):
                return no("its scales or zero points are not those of blocks")
            guards += map(equal, view.shape(index), blocks, repeat("its blocks fit its data"))
    if any(g.known is False for g in guards):
        return no(f"blocks of {block} along axis {axis} do not divide its data")
    return yes_if(*(g for g in guards if g.known is None))


def _quantized_type(view: NodeView) -> DType:
    if view.has(2):
        return view.dtype(2)
    code = int(view.attr("output_dtype", 0))
    return dtypes.from_code(code) if code else UINT8


def _work(view: NodeView) -> DType:
    code = int(view.attr("precision", 0))
    return dtypes.from_code(code) if code else view.dtype(1)


def _quantize_expr(view: NodeView) -> str:
    work, value = _work(view), "f32({0})"
    if work.narrow and view.dtype(0) != work:
        value = f"narrow_{work.narrow}({value})"
    scaled = f"{value} / {{1}}"
    if work.narrow:
        scaled = f"narrow_{work.narrow}({scaled})"
    return level(view, scaled, "{2}" if view.has(2) else "")


def _quantize_supports(view: NodeView) -> Support:
    if view.out().dtype.name not in SMALL_INTS | NIBBLES:
        return no(f"its kernel makes no {view.out().dtype}")
    if _work(view).name not in FLOATS or not view.dtype(1).is_float:
        return no(f"its kernel does not divide in {_work(view)}")
    return _fits(view)


def _dequantize_expr(view: NodeView) -> str:
    value = "{0}" if view.dtype(0).name == "int32" else difference(view, 0, 2)
    return f"f32({value}) * {{1}}"


def _dequantize_supports(view: NodeView) -> Support:
    if not view.dtype(1).is_float or not view.out().dtype.is_float:
        return no(f"its kernel has no scale of {view.dtype(1)}")
    if view.dtype(0).is_float:
        return no(f"its kernel takes integers, not {view.dtype(0)}")
    if view.dtype(0).name == "int32" and view.has(2):
        points = view.const(2)
        if points is None or points.any():
            return no("a difference of int32 may need more than 32 bits")
    return _fits(view)


def _infer_dequantize(view: InferView) -> list[ValueType]:
    code = int(view.attr("output_dtype", 0))
    dtype = dtypes.from_code(code) if code else view.dtype(1)
    return [TensorType(dtype, view.type(0).shape)]


for _domain, _since in (("", 10), (MICROSOFT, 1)):
    register(
        OpDef(
            "QuantizeLinear",
            _since,
            domain=_domain,
            infer=lambda view: [TensorType(_quantized_type(view), view.type(0).shape)],
            elementwise=Elementwise(
                _quantize_expr,
                includes=(*LEVEL, "lib/narrow_f16.wgsl", "lib/narrow_bf16.wgsl"),
                scalar=True,
                walks=_walks,
            ),
            supports=_quantize_supports,
            limits="results other than integers of 16 bits or less",
            dtypes=SCALES,
            tolerance=0.0,
        )
    )
    register(
        OpDef(
            "DequantizeLinear",
            _since,
            domain=_domain,
            infer=_infer_dequantize,
            elementwise=Elementwise(_dequantize_expr, scalar=True, walks=_walks),
            supports=_dequantize_supports,
            limits="floats of 8 bits or less; int32 with a zero point",
            dtypes=SCALES,
            tolerance=1e-6,
        )
    )


def dynamic_stages(view: Lowering, x: str, tensors: tuple[str, str, str], size: Dim) -> list[Stage]:
    """Dispatches that quantise value `x` of `size` elements over its own range.

    Args:
        tensors: the values to write: levels, scale and zero point.
    """
    levels, scale, zero_point = tensors
    write = KernelCall(
        "quant_dynamic",
        {"x": x, "scale": scale, "zero_point": zero_point, "y": levels},
        {"size": size},
        linear(ceildiv(size, 4)),
    )
    return [*range_stages(view, x, scale, zero_point, size), (write,)]


def range_stages(view: Lowering, x: str, scale: str, zero_point: str, size: Dim) -> list[Stage]:
    """Dispatches that find scale and zero point of the range of value `x` of `size` elements."""
    parts = dmin(ceildiv(size, 1024), 64)
    ends = view.scratch(FLOAT32, (64, 2))
    words: dict[str, Dim | float] = {"size": size, "parts": parts}
    first = KernelCall(
        "quant_range",
        {"x": x, "ends": ends},
        words,
        (parts, 1, 1),
        trips=(ceildiv(size, 64 * 256) + 4) * 5 + 8,
    )
    last = KernelCall(
        "quant_range",
        {"x": ends, "scale": scale, "zero_point": zero_point},
        words,
        (1, 1, 1),
        frozenset({"LAST"}),
        trips=16,
    )
    return [(first,), (last,)]


def _lower_dynamic(view: Lowering) -> Sequence[Stage]:
    levels, scale, zero_point = (
        view.node.outputs[i] if view.wants(i) else view.scratch(kind, ())
        for i, kind in enumerate((UINT8, FLOAT32, UINT8))
    )
    size = product(view.shape(0))
    return dynamic_stages(view, view.node.inputs[0], (levels, scale, zero_point), size)


def _dynamic_supports(view: NodeView) -> Support:
    size = product(view.shape(0))
    guards = (
        at_least(size, 1, "there are elements to take the range of"),
        at_least(MAX_TRIPS // 5 * 256, size, "the range is found in loops that are short enough"),
    )
    if not view.wants(0):
        return no("its levels are not used")
    if any(g.known is False for g in guards):
        return no("its range is that of no or of too many elements")
    return yes_if(*(g for g in guards if g.known is None))


register(
    OpDef(
        "DynamicQuantizeLinear",
        11,
        infer=lambda view: [
            TensorType(UINT8, view.type(0).shape),
            TensorType(FLOAT32, ()),
            TensorType(UINT8, ()),
        ],
        lower=_lower_dynamic,
        supports=_dynamic_supports,
        limits="no element, or more than loops take",
        dtypes=frozenset({"float32"}),
        scratch=1,
        loads=times(2),
        flops=lambda view: 6 * product(view.shape(0)),
        cpu=lambda view: whole_passes(view, 30, 2 * SUM_PASSES + 8, 8),
        tolerance=1e-6,
    )
)
