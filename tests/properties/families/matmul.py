"""MatMul and Gemm."""

from __future__ import annotations

from typing import Any

from tests.properties.cases import Case, draws
from tests.properties.drawing import Array, Data, Form, is_float

SIZES = (3, 1, 4, 5, 8, 16, 2, 17, 33, 64, 65, 0)


def matrices(form: Form, data: Data) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes that multiply: vectors, matrices, and batches of them that broadcast."""
    rows, inner, columns = (data.one_of(SIZES) for _ in range(3))
    ranks = form.one_of([(2, 2), (3, 2), (2, 3), (3, 3), (4, 4), (1, 2), (2, 1), (1, 1), (5, 3)])
    batch = tuple(data.size(0, 3) for _ in range(max(*ranks, 2) - 2))
    left, right = (
        (*data.broadcast(batch, rank - 2), *end) if rank > 1 else (inner,)
        for rank, end in zip(ranks, ((rows, inner), (inner, columns)), strict=True)
    )
    return left, right


@draws("MatMul")
def matmul(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    constants = form.one_of([(), (1,)])
    if constants:
        fixed = Data(form)
        inner, columns = fixed.one_of(SIZES), fixed.one_of(SIZES)
        shapes = ((*data.shape(form.int(0, 2), long=False), inner), (inner, columns))
        a, b = data.array(dtype, shapes[0]), fixed.array(dtype, shapes[1])
    else:
        a, b = (data.array(dtype, s) for s in matrices(form, data))
    return Case([a, b], {}, opset, constants=constants, tol=2e-5)


@draws("Gemm")
def gemm(op: str, form: Form, data: Data) -> Case:
    """C broadcasts to the product; it may be left out since version 11."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rows, inner, columns = (data.one_of(SIZES) for _ in range(3))
    attrs: dict[str, Any] = {}
    shapes = []
    for name, shape in (("transA", (rows, inner)), ("transB", (inner, columns))):
        flip = form.int(0, 1)
        attrs |= {name: flip} if flip or form.chance(0.2) else {}
        shapes.append(shape[::-1] if flip else shape)
    factors = [0.5, 2.0, -1.25] if is_float(dtype) else [2.0, 3.0]
    for name in ("alpha", "beta"):
        attrs |= form.maybe({name: form.one_of([*factors, 0.0])}, 0.4)
    inputs: list[Array | None] = [data.array(dtype, s) for s in shapes]
    if opset < 11 or form.chance(0.7):
        forms = ((columns,), (rows, 1), (1, columns), (rows, columns), (1,), (), (1, 1))
        inputs.append(data.array(dtype, form.one_of(forms)))
    if opset == 6:
        attrs["broadcast"] = 1
    return Case(inputs, attrs, opset, tol=2e-5)
