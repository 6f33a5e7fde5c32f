"""Elementwise operators and Cast."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.random_graphs import Candidate, RandomGraph
from tests.random_nodes.makers import least, maker, need, span

SMOOTH = (
    "LeakyRelu Elu Selu Celu Sigmoid HardSigmoid HardSwish Tanh Softplus Softsign Exp Erf Sin Cos "
    "Atan Mish Gelu Sinh Asinh"
).split()
EXACT = "Abs Neg Relu Identity Sign Floor Ceil Round Shrink ThresholdedRelu IsNaN IsInf".split()
JUMPS = {"Sign", "Floor", "Ceil", "Round", "Shrink", "ThresholdedRelu"}


@maker
def smooth(g: RandomGraph) -> Candidate:
    x = g.pick("f", lambda a: span(a) < 6)
    op = g.one_of(SMOOTH)
    attrs = {"alpha": 0.3} if op in ("LeakyRelu", "Elu", "Celu") and g.chance(0.5) else {}
    if op == "Gelu" and g.chance(0.5):
        attrs = {"approximate": "tanh"}
    return Candidate(op, [x], attrs, keeps=False)


@maker
def exact(g: RandomGraph) -> Candidate:
    op = g.one_of(EXACT)
    kinds = "fi" if op in ("Abs", "Neg", "Identity", "Sign") else "f"
    return Candidate(op, [g.pick(kinds)], steady=op not in JUMPS)


@maker
def roots(g: RandomGraph) -> Candidate:
    x = g.pick("f", lambda a: bool(a.size == 0 or a.min() > 0.05))
    return Candidate(g.one_of(["Sqrt", "Log", "Reciprocal"]), [x], keeps=False)


@maker
def arithmetic(g: RandomGraph) -> Candidate:
    a = g.pick("ffiu")
    b = g.partner(a)
    pair = [a, b] if g.chance(0.5) else [b, a]
    return Candidate(g.one_of(["Add", "Sub", "Mul", "Add", "Mul"]), pair)


@maker
def division(g: RandomGraph) -> Candidate:
    a = g.pick("ffi")
    b = g.partner(a)
    need(least(g.array(b)) > 0.1)
    op = g.one_of(["Div", "Div", "Mod"])
    is_float = g.array(a).dtype.kind == "f"
    attrs = {"fmod": 1} if op == "Mod" and (is_float or g.chance(0.4)) else {}
    return Candidate(op, [a, b], attrs, steady=op == "Div", keeps=op == "Mod")


@maker
def power(g: RandomGraph) -> Candidate:
    base = g.pick("f", lambda a: bool(a.size == 0 or (a.min() > 0.1 and a.max() < 4)))
    exponent = g.partner(base)
    if g.chance(0.5):
        base = g.pick("f")
        exponent = g.constant(g.one_of([0, 1, 2, 3]), "float32")
    return Candidate("Pow", [base, exponent], keeps=False)


@maker
def many(g: RandomGraph) -> Candidate:
    a = g.pick("f")
    names = [a, *(g.partner(a) for _ in range(g.int(0, 2)))]
    op = g.one_of(["Min", "Max", "Sum", "Mean"])
    return Candidate(op, names, keeps=op != "Mean")


@maker
def compare(g: RandomGraph) -> Candidate:
    a = g.pick("fi", exact=True)
    op = g.one_of(["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
    return Candidate(op, [a, g.partner(a)], steady=False)


@maker
def logic(g: RandomGraph) -> Candidate:
    a = g.pick("b")
    if g.chance(0.2):
        return Candidate("Not", [a])
    return Candidate(g.one_of(["And", "Or", "Xor", "Equal"]), [a, g.partner(a)])


@maker
def bits(g: RandomGraph) -> Candidate:
    a = g.pick("iu")
    if g.chance(0.2):
        return Candidate("BitwiseNot", [a])
    if g.array(a).dtype.kind == "u" and g.chance(0.4):
        direction = g.one_of(["LEFT", "RIGHT"])
        return Candidate("BitShift", [a, g.partner(a)], {"direction": direction})
    op = g.one_of(["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
    return Candidate(op, [a, g.partner(a)])


@maker
def where(g: RandomGraph) -> Candidate:
    a = g.pick("ffi")
    shape = g.array(a).shape
    return Candidate("Where", [g.pick("b", shape=lambda: shape), a, g.partner(a)])


@maker
def clip(g: RandomGraph) -> Candidate:
    x = g.pick("f")
    low, high = sorted(g.rng.integers(-8, 9, 2) / 4)
    low_name = g.constant(low, "float32") if g.chance(0.8) else ""
    high_name = g.constant(high, "float32") if g.chance(0.8) else ""
    return Candidate("Clip", [x, low_name, high_name])


CASTS = {
    "FLOAT": TensorProto.FLOAT,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "INT8": TensorProto.INT8,
    "FLOAT16": TensorProto.FLOAT16,
    "DOUBLE": TensorProto.DOUBLE,
}


@maker
def cast(g: RandomGraph) -> Candidate:
    x = g.pick("fiub")
    kind = CASTS[g.one_of(["FLOAT", "FLOAT", "INT32", "INT64", "BOOL", "DOUBLE", "UINT8", "INT8"])]
    array = g.array(x)
    if kind == TensorProto.UINT8:
        need(bool(array.size == 0 or array.astype(np.float64).min() >= 0))
    if kind in (TensorProto.UINT8, TensorProto.INT8):
        need(span(array.astype(np.float64)) < 127)
    return Candidate("Cast", [x], {"to": kind}, steady=kind in (1, 11))


@maker
def back_to_float(g: RandomGraph) -> Candidate:
    names = [n for n, k in g.known.items() if k.array.dtype != np.float32]
    need(bool(names))
    return Candidate("Cast", [g.one_of(names)], {"to": TensorProto.FLOAT})
