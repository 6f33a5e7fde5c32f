"""Products of integer matrices: MatMulInteger, QLinearMatMul, MatMulIntegerToFloat."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from engine.dims import Dim, Guard, product
from engine.dtypes import INT32
from engine.ir import TensorType, ValueType
from engine.ops import (
    Elementwise,
    InferView,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    Tail,
    Walk,
    no,
    register,
)
from engine.ops._matmul_calls import product_stage
from engine.ops._matmul_tiles import Zero
from engine.ops._matmul_work import operands_gpu, product_cpu
from engine.ops._quant import along, every, is_single, zero_word
from engine.ops._work import in_shape, out_shape
from engine.ops.matmul import matrices_agree, matrix_product, product_type
from engine.ops.quant import LEVEL, MICROSOFT, level
from engine.work import CpuWork, GpuWork

_BYTES = frozenset({"int8", "uint8"})
_PLACES = {
    # indices of the matrices and of their zero points
    "MatMulInteger": ((0, 1), (2, 3)),
    "QLinearMatMul": ((0, 3), (2, 5)),
    "MatMulIntegerToFloat": ((0, 1), (4, 5)),
}


def _infer(view: InferView) -> list[ValueType]:
    (a, b), _ = _PLACES[view.node.op_type]
    dtype = {"QLinearMatMul": 7, "MatMulIntegerToFloat": 2}.get(view.node.op_type)
    kind = INT32 if dtype is None else view.dtype(dtype)
    return [TensorType(kind, product_type(view, view.type(a), view.type(b)).shape)]


def _flops(view: NodeView) -> Dim:
    return 2 * product(view.out_shape()) * view.shape(0)[-1]


def _cpu(view: NodeView) -> CpuWork:
    """Levels become integers, then floats in which the sums are exact, and integers again."""
    places, _ = _PLACES[view.node.op_type]
    converted = sum(prod(in_shape(view, i)) for i in places)
    found = product_cpu(view, *places)
    doubled = CpuWork(20, found.products * 2, passes=(12 * converted, 12 * converted))
    return doubled + CpuWork(0, passes=(40 * converted, 24 * prod(out_shape(view))))


def _gpu(view: NodeView) -> GpuWork:
    places, _ = _PLACES[view.node.op_type]
    found = operands_gpu(*(in_shape(view, i) for i in places))
    return dataclasses.replace(found, fmas=UNPACKED * found.fmas)


UNPACKED = 4
"""A multiply-add of levels takes as long as so many of floats."""


def _supports(view: NodeView) -> Support:
    places, zeros = _PLACES[view.node.op_type]
    if any(view.dtype(i).name not in _BYTES for i in places):
        return no("its kernel takes integers of 8 bits")
    a, b = (view.shape(i) for i in places)
    # one zero point for each row of a matrix, or for each column
    sizes = a[0] if len(a) == 2 else None, b[1] if len(b) == 2 else None
    return every(*(along(view, i, size) for i, size in zip(zeros, sizes, strict=True)))


def _agree(view: NodeView) -> Iterator[Guard]:
    places, _ = _PLACES[view.node.op_type]
    yield from matrices_agree(view, *places)


def _lower(view: Lowering) -> Sequence[Stage]:
    places, zeros = _PLACES[view.node.op_type]
    found = matrix_product(view, *places, "i32")
    points = []
    for index in zeros:
        word = zero_word(view, index)
        name = view.node.inputs[index] if word is None else ""
        step = int(bool(name) and not is_single(view, index))
        points.append(Zero(name, word or 0, step))
    kinds = [view.dtype(i).wgsl for i in places]
    p = dataclasses.replace(
        found,
        a_kind=kinds[0],
        b_kind=kinds[1],
        a_zero=points[0],
        b_zero=points[1],
        of_bytes=not view.target.software,
    )
    return [product_stage(p, view.node.outputs[0], view.target)]


def _requantize(view: NodeView) -> str:
    return level(view, "f32({acc}) * (f32({1}) * f32({4}) / f32({6}))", "{7}")


def _row_walk(view: NodeView) -> Mapping[int, Walk]:
    """The scale of `a` may be one for each row."""
    shape = view.out_shape()
    if is_single(view, 1):
        return {}
    if len(view.shape(3)) == 1:
        return {1: ((product(shape[:-1]), shape[-1]), (0, 1))}
    return {1: ((product(shape[:-2]), shape[-2], shape[-1]), (0, 1, 0))}


def _requantize_supports(view: NodeView) -> Support:
    a, b = view.shape(0), view.shape(3)
    if view.out().dtype.name not in _BYTES:
        return no(f"its kernel makes no {view.out().dtype}")
    return every(
        along(view, 1, a[0] if len(a) == 2 else None),
        along(view, 4, b[1] if len(b) == 2 else None),
        along(view, 6, None),
        along(view, 7, None),
        _supports(view),
    )


def _to_float(view: NodeView) -> str:
    bias = " + {6}" if view.has(6) else ""
    return "f32({acc}) * ({2} * {3})" + bias


def _to_float_supports(view: NodeView) -> Support:
    b = view.shape(1)
    columns = b[-1] if len(b) > 1 else None
    return every(
        along(view, 2, None), along(view, 3, columns), along(view, 6, columns), _supports(view)
    )


def _register(op_type: str, domain: str = "", **rules: object) -> None:
    fields: dict[str, object] = {
        "infer": _infer,
        "agree": _agree,
        "lower": _lower,
        "supports": _supports,
        "limits": "scales and zero points but for the whole, a row of A or a column of B",
        "dtypes": _BYTES,
        "epilogue": True,
        "inlines_scalars": True,
        "flops": _flops,
        "cpu": _cpu,
        "gpu": _gpu,
        "tolerance": 0.0,
    }
    register(OpDef(op_type, 1 if domain else 10, domain, **{**fields, **rules}))  # type: ignore[arg-type]


_register("MatMulInteger")
_register(
    "QLinearMatMul",
    supports=_requantize_supports,
    dtypes=_BYTES | {"float32", "float16", "bfloat16"},
    tail=Tail(
        Elementwise(_requantize, includes=LEVEL, scalar=True, walks=_row_walk), (1, 4, 6, 7), "i32"
    ),
)
_register(
    "MatMulIntegerToFloat",
    MICROSOFT,
    supports=_to_float_supports,
    dtypes=_BYTES | {"float32", "float16"},
    tail=Tail(Elementwise(_to_float, scalar=True), (2, 3, 6), "i32"),
    tolerance=1e-6,
)
