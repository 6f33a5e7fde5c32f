"""Elementwise operators on several operands: arithmetic, comparison, logic, Where, Clip."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import SPECIAL, Array, Data, Form, as_dtype, is_float
from tests.properties.oracles import reference

ARITHMETIC = ("Add", "Sub", "Mul", "Div")
COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
LOGIC = ("And", "Or", "Xor")
BITS = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
LEGACY = (*ARITHMETIC, "And", "Or", "Xor", "Equal", "Less", "Greater", "Pow")
"""Operators that before version 7 broadcast only if told so, and along an axis."""


def operands(
    form: Form, data: Data, dtype: np.dtype[Any], count: int, **contents: Any
) -> list[Array]:
    """Arrays that broadcast with each other, each of a rank of its own."""
    ranks = [form.rank() for _ in range(count)]
    whole = data.shape(max(ranks))
    return [data.array(dtype, data.broadcast(whole, r), **contents) for r in ranks]


def legacy(op: str, form: Form, data: Data, **contents: Any) -> Case:
    """A form before version 7: the second operand lies along some axes of the first."""
    dtype = form.dtype(op, 6)
    rank = form.rank(1, 5)
    shape = data.shape(rank)
    a = data.array(dtype, shape, **contents)
    if form.chance(0.3):
        return Case([a, data.array(dtype, shape, **contents)], {}, 6, each=True)
    first = form.int(0, rank - 1)
    count = form.int(1, rank - first)
    suffix = first + count == rank and form.chance(0.5)
    attrs = {"broadcast": 1, **({} if suffix else {"axis": first})}
    b = data.array(dtype, shape[first : first + count], **contents)

    def oracle(a: Array, b: Array) -> list[Array]:
        spread = b.reshape(*b.shape, *(1,) * (rank - first - count))
        return reference(op, Case([a, spread], {}, 7))

    because = "it knows the broadcasting of version 7 only"
    return Case([a, b], attrs, 6, each=True, oracle=oracle, because=because)


def legacy_opset(op: str, form: Form) -> int:
    return 6 if op in LEGACY and form.chance(0.15) else form.opset(op, 7)


@draws(*ARITHMETIC)
def arithmetic(op: str, form: Form, data: Data) -> Case:
    """Overflow wraps; a divisor of 0 is for floats only: ONNX does not define it for integers."""
    opset = legacy_opset(op, form)
    contents: dict[str, Any] = {"edges": SPECIAL}
    if opset == 6:
        case = legacy(op, form, data, **contents)
    else:
        dtype = form.dtype(op, opset)
        case = Case(operands(form, data, dtype, 2, **contents), {}, opset, each=True)
    b = case.inputs[1]
    if op == "Div" and b is not None and b.dtype.kind in "iu":
        b[b == 0] = 7
    return case


@draws("Mod")
def mod(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    fmod = form.int(0, 1) or int(is_float(dtype))
    a, b = operands(form, data, dtype, 2)
    b[b == 0] = 3
    return Case([a, b], {"fmod": 1} if fmod else {}, opset, each=True, tol=1e-6)


@draws("Pow")
def power(op: str, form: Form, data: Data) -> Case:
    opset = legacy_opset(op, form)
    if opset == 6:
        return legacy(op, form, data, low=0.25, high=3)
    dtype = form.dtype(op, opset)
    a, b = operands(form, data, dtype, 2)
    kinds = [dtype.name] if opset < 12 else ["float32", "int32", "int64", dtype.name]
    kind = as_dtype(form.one_of(kinds))
    if is_float(kind):
        fractions = data.chance(0.5)
        b = data.array(kind, b.shape, *((-2.5, 2.5) if fractions else (-3, 3)), SPECIAL)
        return Case([np.abs(a) if fractions else a, b], {}, opset, each=True, tol=2e-6)
    low = -2 if is_float(dtype) else 0
    b = data.integers(kind, b.shape, low, 4)
    return Case([a, b], {}, opset, each=True, tol=2e-6)


@draws("PRelu")
def prelu(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op, 7)
    dtype = form.dtype(op, opset)
    rank = form.rank(0)
    shape = data.shape(rank)
    slope = data.broadcast(shape, form.int(0, rank))
    x = data.array(dtype, shape, edges=SPECIAL)
    return Case([x, data.array(dtype, slope)], {}, opset, each=True)


@draws(*BITS)
def bits(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    return Case(operands(form, data, form.dtype(op, opset), 2, whole=True), {}, opset)


@draws("BitShift")
def bit_shift(op: str, form: Form, data: Data) -> Case:
    """By amounts below the width: others are undefined."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    a, b = operands(form, data, dtype, 2, whole=True)
    b = data.integers(dtype, b.shape, 0, 8 * dtype.itemsize - 1)
    return Case([a, b], {"direction": form.one_of(["LEFT", "RIGHT"])}, opset)


@draws(*COMPARISONS)
def comparison(op: str, form: Form, data: Data) -> Case:
    opset = legacy_opset(op, form)
    if opset == 6:
        return legacy(op, form, data, low=-2, high=2)
    dtype = form.dtype(op, opset)
    contents: dict[str, Any] = {"low": -2, "high": 2, "edges": SPECIAL}
    if form.chance(0.3):
        contents = {"whole": True, "edges": SPECIAL}
    return Case(operands(form, data, dtype, 2, **contents), {}, opset)


@draws(*LOGIC)
def logic(op: str, form: Form, data: Data) -> Case:
    opset = legacy_opset(op, form)
    if opset == 6:
        return legacy(op, form, data)
    return Case(operands(form, data, np.dtype(np.bool_), 2), {}, opset)


@draws("Sum", "Mean", "Max", "Min")
def several(op: str, form: Form, data: Data) -> Case:
    """One to six operands, some of them the same."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    count = form.int(1, 6)
    if opset < 8:
        shape = data.shape(form.rank())
        arrays = [data.array(dtype, shape) for _ in range(count)]
    else:
        edges = SPECIAL if data.chance(0.5) else ()
        arrays = operands(form, data, dtype, count, edges=edges)
    case = Case(arrays, {}, opset, each=True, tol=2e-6)
    if op != "Mean":
        return case
    because = "it adds in place, so that no operand may have more axes than the first"
    return dataclasses.replace(case, oracle=mean, because=because)


def mean(*arrays: Array) -> Array:
    wide = [a.astype(np.float64) for a in arrays]
    return np.asarray(sum(wide[1:], wide[0]) / len(wide))


@draws("Where")
def where(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset, 1)
    _, a, b = pair = operands(form, data, dtype, 3, edges=SPECIAL, whole=form.chance(0.5))
    condition = data.array(np.dtype(np.bool_), pair[0].shape)
    return Case([condition, a, b], {}, opset, tol=0)


@draws("Clip")
def clip(op: str, form: Form, data: Data) -> Case:
    """Bounds as attributes before version 11, as inputs that may be left out since."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    x = data.array(dtype, data.shape(form.rank()), edges=SPECIAL)
    if opset < 11:
        given = form.some(["min", "max"])
        values = {"min": -1.5, "max": 2.25}
        return Case([x], {k: values[k] for k in given}, opset, each=True, tol=1e-6)
    bounds: list[Array | None] = []
    for low, high in ((-3, 1), (0, 3)):
        given = form.chance(0.7)
        bounds.append(data.array(dtype, (), low, high) if given else None)
    while bounds and bounds[-1] is None:
        bounds.pop()
    constants = (1, 2) if form.chance(0.5) else None
    return Case([x, *bounds], {}, opset, constants=constants, tol=0)
