"""Matrix products: MatMul and Gemm."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from engine.dims import Dim, Guard, product
from engine.errors import ShapeError
from engine.indexing import broadcast_strides
from engine.ir import Array, TensorType, ValueType
from engine.ops import (
    FLOATS,
    YES,
    InferView,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    no,
    register,
)
from engine.ops._fit import fits, same
from engine.ops._loads import PRODUCT
from engine.ops._matmul_calls import product_stages
from engine.ops._matmul_text import PANEL
from engine.ops._matmul_tiles import PARTS, STYLES, Product
from engine.ops._matmul_work import gemm_cpu, gemm_gpu, matmul_cpu, matmul_gpu
from engine.ops._shapes import broadcast_shapes
from engine.ops._variants import shares_loads


def _inner(view: NodeView, a: Dim, b: Dim) -> Dim:
    """The size summed over. Raises: ShapeError if the operands disagree about it."""
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise ShapeError(f"{view.describe()}: inner sizes {a} and {b} differ")
    return b if isinstance(b, int) else a


def _infer_matmul(view: InferView) -> list[ValueType]:
    return [product_type(view, view.type(0), view.type(1))]


def product_type(view: NodeView, a: TensorType, b: TensorType) -> TensorType:
    """Type of `a` @ `b`. Raises: ShapeError if they do not fit."""
    if a.shape is None or b.shape is None:
        return TensorType(a.dtype)
    if not a.shape or not b.shape:
        raise ShapeError(f"{view.describe()}: operands must have at least one axis")
    _inner(view, a.shape[-1], b.shape[-2] if len(b.shape) > 1 else b.shape[0])
    batch = broadcast_shapes(view, [a.shape[:-2], b.shape[:-2]])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if len(b.shape) > 1 else ()
    return TensorType(a.dtype, (*batch, *rows, *columns))


def _infer_gemm(view: InferView) -> list[ValueType]:
    a, b = view.type(0), view.type(1)
    rows = _axes(view, a, "transA")
    columns = _axes(view, b, "transB")
    if rows is not None and columns is not None:
        _inner(view, rows[1], columns[0])
    m = view.fresh("m") if rows is None else rows[0]
    n = view.fresh("n") if columns is None else columns[1]
    return [TensorType(a.dtype, (m, n))]


def _axes(view: NodeView, matrix: TensorType, attribute: str) -> tuple[Dim, Dim] | None:
    """Rows and columns of an operand of Gemm, transposed if its attribute says so."""
    if matrix.shape is None:
        return None
    if len(matrix.shape) != 2:
        raise ShapeError(f"{view.describe()}: an operand has rank {len(matrix.shape)}, not 2")
    rows, columns = matrix.shape
    return (columns, rows) if view.attr(attribute, 0) else (rows, columns)


def _flops(view: NodeView) -> Dim:
    """Two for each multiplication of the sum."""
    a = view.shape(0)
    inner = a[0] if view.node.op_type == "Gemm" and view.attr("transA", 0) else a[-1]
    return 2 * product(view.out_shape()) * inner


def _lower_matmul(view: Lowering) -> Sequence[Stage]:
    p = matrix_product(view, 0, 1, view.dtype(0).wgsl)
    p = dataclasses.replace(p, b_panels=_panels(view, False))
    return product_stages(view, p, view.node.outputs[0])


def matrix_product(view: NodeView, left: int, right: int, kind: str) -> Product:
    """The product of inputs `left` and `right` as NumPy's matmul, computed in `kind`."""
    a, b = view.shape(left), view.shape(right)
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    rows, inner, columns = a[-2], _inner(view, a[-1], b[-2]), b[-1]
    batch = broadcast_shapes(view, [a[:-2], b[:-2]])
    p = Product(
        kind=kind,
        a=view.node.inputs[left],
        b=view.node.inputs[right],
        rows=rows,
        columns=columns,
        inner=inner,
    )
    if all(d == 1 for d in b[:-2]):
        p = dataclasses.replace(p, rows=product(batch) * rows)
    else:
        a_strides = broadcast_strides(a[:-2], batch)
        b_strides = broadcast_strides(b[:-2], batch)
        p = dataclasses.replace(
            p,
            batch=batch,
            a_batch=tuple(s * (rows * inner) for s in a_strides),
            b_batch=tuple(s * (inner * columns) for s in b_strides),
        )
    return p


def _panels(view: Lowering, transposed: bool) -> str:
    """Constant operand b in panels, or "" if nothing could use them."""
    w = view.const(1)
    software = view.target.software or shares_loads(view.target)
    if w is None or not software or w.ndim < 2 or w.size != prod(w.shape[-2:]):
        return ""

    def make(w: Array) -> Array:
        b = w.reshape(w.shape[-2:])
        b = b.T if transposed else b
        if b.shape[1] % PANEL:
            b = np.pad(b, ((0, 0), (0, -b.shape[1] % PANEL)))
        return np.ascontiguousarray(b.reshape(len(b), b.shape[1] // PANEL, PANEL).swapaxes(0, 1))

    return view.derived(1, f"panels{PANEL}{'-transposed' if transposed else ''}", make)


def _transposed(view: Lowering, index: int, attribute: str) -> tuple[str, bool]:
    """Operand of Gemm, and whether it is still stored transposed (constants are turned once)."""
    if not view.attr(attribute, 0):
        return view.node.inputs[index], False
    if view.const(index) is None:
        return view.node.inputs[index], True
    return view.derived(index, "transpose", lambda w: np.ascontiguousarray(w.T)), False


def _lower_gemm(view: Lowering) -> Sequence[Stage]:
    rows, columns = view.out_shape()
    a, a_transposed = _transposed(view, 0, "transA")
    b, b_transposed = _transposed(view, 1, "transB")
    beta = float(view.attr("beta", 1.0))
    biased = view.has(2) and beta != 0
    c_strides = broadcast_strides(view.shape(2), (rows, columns)) if biased else (0, 0)
    p = Product(
        kind=view.dtype(0).wgsl,
        a=a,
        b=b,
        rows=rows,
        columns=columns,
        inner=_inner(
            view,
            view.shape(0)[0 if view.attr("transA", 0) else 1],
            view.shape(1)[1 if view.attr("transB", 0) else 0],
        ),
        a_transposed=a_transposed,
        b_transposed=b_transposed,
        b_panels=_panels(view, bool(view.attr("transB", 0))),
        c=view.node.inputs[2] if biased else "",
        c_strides=((0, 0, *c_strides)[-2], (0, 0, *c_strides)[-1]),
        alpha=float(view.attr("alpha", 1.0)),
        beta=beta if biased else 1.0,
    )
    return product_stages(view, p, view.node.outputs[0])


def _supports_gemm(view: NodeView) -> Support:
    if view.dtype(0).is_float:
        return YES
    for name in ("alpha", "beta"):
        if not float(view.attr(name, 1.0)).is_integer():
            return no(f"{name} is no integer, but the operands are")
    return YES


_KINDS = FLOATS | {"int32", "uint32"}


def matrices_agree(view: NodeView, left: int = 0, right: int = 1) -> Iterator[Guard]:
    """Inputs `left` and `right` can be multiplied to output 0."""
    a, b, out = view.shape(left), view.shape(right), view.out_shape()
    yield from same(view, a[-1], b[-2] if len(b) > 1 else b[0])
    batch = out[: max(len(a), len(b)) - 2]
    yield from fits(view, a[:-2], batch)
    yield from fits(view, b[:-2], batch)


def _agree_gemm(view: NodeView) -> Iterator[Guard]:
    a, b = view.shape(0), view.shape(1)
    inner = (a[0] if view.attr("transA", 0) else a[1], b[1] if view.attr("transB", 0) else b[0])
    yield from same(view, *inner)
    if view.has(2):
        yield from fits(view, view.shape(2), view.out_shape())


register(
    OpDef(
        "MatMul",
        infer=_infer_matmul,
        agree=matrices_agree,
        lower=_lower_matmul,
        dtypes=_KINDS,
        loads=PRODUCT,
        epilogue=True,
        flops=_flops,
        styles=(*STYLES, *PARTS),
        cpu=matmul_cpu,
        gpu=matmul_gpu,
        tolerance=2e-5,
    )
)
register(
    OpDef(
        "Gemm",
        7,
        infer=_infer_gemm,
        agree=_agree_gemm,
        lower=_lower_gemm,
        supports=_supports_gemm,
        limits="integer operands with an `alpha` or `beta` that is none",
        dtypes=_KINDS,
        loads=PRODUCT,
        epilogue=True,
        flops=_flops,
        styles=(*STYLES, *PARTS),
        cpu=gemm_cpu,
        gpu=gemm_gpu,
        tolerance=2e-5,
    )
)
