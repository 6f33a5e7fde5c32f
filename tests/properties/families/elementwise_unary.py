"""Elementwise functions of one operand."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tests.properties.cases import Case, draws
from tests.properties.drawing import EXTREMES, SPECIAL, Array, Data, Form, as_dtype

WAVES = ("Sin", "Cos", "Tan")
EXACT = ("Abs", "Neg", "Ceil", "Floor", "Round", "Sign", "IsNaN", "IsInf", "Not", "BitwiseNot")
SMOOTH = (
    *("Sqrt", "Reciprocal", "Exp", "Log", "Erf", *WAVES, "Asin", "Acos", "Atan", "Sinh", "Cosh"),
    *("Tanh", "Asinh", "Acosh", "Atanh", "Sigmoid", "Relu", "Softplus", "HardSwish"),
    *("Mish", "Elu", "LeakyRelu", "Celu", "Swish", "ThresholdedRelu"),
)


def one_operand(
    op: str, form: Form, data: Data, attrs: dict[str, Any] | None = None, **more: Any
) -> Case:
    """A case of a function of one operand, any type and shape that it takes."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    shape = data.shape(form.rank())
    edges = SPECIAL if op in WAVES else EXTREMES
    whole = dtype.kind in "iu" and data.chance(0.5)
    x = data.array(dtype, shape, -6, 6, edges, whole)
    return Case([x], attrs or {}, opset, each=True, **more)


@draws(*EXACT, *SMOOTH)
def function(op: str, form: Form, data: Data) -> Case:
    attrs: dict[str, Any] = {}
    if op in ("Elu", "LeakyRelu", "Celu", "Swish", "ThresholdedRelu"):
        attrs = form.maybe({"alpha": form.one_of([0.5, 1.75, 0.1])})
    if op == "IsInf":
        attrs = form.maybe({f"detect_{k}": form.int(0, 1) for k in ("positive", "negative")})
    return one_operand(op, form, data, attrs)


@draws("Softsign")
def softsign(op: str, form: Form, data: Data) -> Case:
    def oracle(x: Array) -> Array:
        wide = x.astype(np.float64)
        return np.asarray(wide / (1 + np.abs(wide)))

    because = "of a scalar it makes no array"
    return one_operand(op, form, data, oracle=oracle, because=because)


@draws("Selu")
def selu(op: str, form: Form, data: Data) -> Case:
    attrs = form.maybe({"alpha": form.one_of([1.5, 0.5]), "gamma": form.one_of([1.25, 2.0])})
    return one_operand(op, form, data, attrs)


@draws("HardSigmoid")
def hard_sigmoid(op: str, form: Form, data: Data) -> Case:
    attrs = form.maybe({"alpha": form.one_of([0.5, 0.25]), "beta": form.one_of([0.0, 0.25])})
    return one_operand(op, form, data, attrs)


@draws("Shrink")
def shrink(op: str, form: Form, data: Data) -> Case:
    attrs = form.maybe({"bias": form.one_of([0.5, -0.25]), "lambd": form.one_of([1.0, 0.0])})
    return one_operand(op, form, data, attrs)


@draws("Gelu")
def gelu(op: str, form: Form, data: Data) -> Case:
    return one_operand(op, form, data, form.maybe({"approximate": form.one_of(["tanh", "none"])}))


@draws("Cast")
def cast(op: str, form: Form, data: Data) -> Case:
    """To every type. What floats beyond an integer type become is up to the implementation."""
    opset = form.opset(op)
    source = form.dtype(op, opset)
    names = ["float32", "int32", "bool", "uint8", "int8", "uint32", "int16", "uint16", "float16"]
    if opset >= 13:
        names.append("bfloat16")
    target = form.one_of([*names, "int64"])
    shape = data.shape(form.rank())
    low, high = (0, 99) if target.startswith("u") else (-99, 99)
    edges = SPECIAL if target.startswith(("float", "bfloat", "bool")) else (-0.0, 0.0, 0.5, -0.5)
    whole = source.kind in "iu" and not target.startswith(("float", "bfloat"))
    x = data.array(source, shape, low, high, edges, whole)
    attrs = {"to": int(helper.np_dtype_to_tensor_dtype(as_dtype(target)))}
    return Case([x], attrs, opset, each=True, tol=0)


@draws("BitCast")
def bit_cast(op: str, form: Form, data: Data) -> Case:
    """To a type of the same size: the bits stay, those of NaN too."""
    opset = form.opset(op)
    source = form.dtype(op, opset)
    sizes = {1: "uint8 int8", 2: "uint16 int16 float16 bfloat16", 4: "uint32 int32 float32"}
    names = sizes.get(source.itemsize, "int64").split()
    target = as_dtype("bool" if source == np.bool_ else form.one_of(names))
    x = data.array(source, data.shape(form.rank()), -99, 99, SPECIAL, whole=True)
    attrs = {"to": int(helper.np_dtype_to_tensor_dtype(target))}

    def oracle(x: Array) -> Array:
        return x.view(target)

    return Case([x], attrs, opset, tol=0, oracle=oracle, because="bits are compared as numbers")
