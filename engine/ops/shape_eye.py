"""EyeLike: a matrix of ones on one diagonal."""

from __future__ import annotations

from collections.abc import Sequence

from engine.dims import product
from engine.dtypes import from_code
from engine.errors import ShapeError
from engine.ir import TensorType, ValueType
from engine.ops import ALL, InferView, KernelCall, Lowering, OpDef, Stage, linear, register

FAR = 1 << 30


def _infer(view: InferView) -> list[ValueType]:
    x, code = view.type(0), view.attr("dtype")
    if x.shape is not None and len(x.shape) != 2:
        raise ShapeError(f"{view.describe()}: the input must be a matrix")
    return [TensorType(x.dtype if code is None else from_code(int(code)), x.shape)]


def _lower(view: Lowering) -> Sequence[Stage]:
    shape = view.out_shape()
    diagonal = max(-FAR, min(FAR, int(view.attr("k", 0))))
    call = KernelCall(
        "shape_eye",
        {"y": view.node.outputs[0]},
        {"size": product(shape), "columns": shape[1], "diagonal": diagonal},
        linear(product(shape)),
        text={"T": view.out().dtype.wgsl},
    )
    return [(call,)]


register(OpDef("EyeLike", 9, infer=_infer, lower=_lower, dtypes=ALL, epilogue=True, tolerance=0.0))
