"""Elementwise operators of com.microsoft on quantised tensors: levels in, levels out."""

from __future__ import annotations

from collections.abc import Callable

from engine.ir import TensorType, ValueType
from engine.ops import (
    YES,
    Elementwise,
    InferView,
    NodeView,
    OpDef,
    Support,
    no,
    register,
)
from engine.ops._shapes import broadcast_type
from engine.ops.elementwise_unary import EXP
from engine.ops.quant import LEVEL, MICROSOFT, difference, level

_BYTES = frozenset({"int8", "uint8", "float32", "bool"})


def _number(view: NodeView, index: int) -> str:
    """The expression of what operand `index` is a level of; its scale and zero point follow."""
    return f"f32({difference(view, index, index + 2)}) * {{{index + 1}}}"


def levels(
    op_type: str,
    data: tuple[int, ...],
    expr: Callable[..., str],
    *,
    condition: bool = False,
    includes: tuple[str, ...] = (),
    alpha: bool = False,
) -> OpDef:
    """An operator on operands `data`, each followed by its scale and zero point.

    The scale and zero point of the output come last.
    """
    scale = data[-1] + 3

    def infer(view: InferView) -> list[ValueType]:
        operands = (0, *data) if condition else data
        shaped = broadcast_type(view, operands, view.dtype(data[0]))
        return [TensorType(view.dtype(data[0]), shaped.shape)]

    def text(view: NodeView) -> str:
        value = expr(*(_number(view, i) for i in data))
        zero = f"{{{scale + 1}}}" if view.has(scale + 1) else ""
        return level(view, f"({value}) / {{{scale}}}", zero)

    def supports(view: NodeView) -> Support:
        for index in range(len(view.node.inputs)):
            if index in data or (condition and index == 0) or not view.has(index):
                continue
            if any(d != 1 for d in view.shape(index)):
                return no("its scales and zero points are not all of one element")
        return YES

    return register(
        OpDef(
            op_type,
            domain=MICROSOFT,
            infer=infer,
            elementwise=Elementwise(
                text, {"alpha": 0.01} if alpha else {}, (*LEVEL, *includes), scalar=True
            ),
            supports=supports,
            limits="scales and zero points of more than one element",
            dtypes=_BYTES,
            tolerance=0.0,
        )
    )


levels("QLinearAdd", (0, 3), lambda a, b: f"{a} + {b}")
levels("QLinearMul", (0, 3), lambda a, b: f"({a}) * ({b})")
levels("QLinearSigmoid", (0,), lambda x: f"1.0 / (1.0 + exp_f32(-({x})))", includes=EXP)
levels("QLinearLeakyRelu", (0,), lambda x: f"select({x}, {{alpha}} * ({x}), {x} < 0.0)", alpha=True)
levels("QLinearWhere", (1, 4), lambda x, y: f"select({y}, {x}, {{0}})", condition=True)
