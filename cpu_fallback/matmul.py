"""MatMul and Gemm, through BLAS for floats."""

from __future__ import annotations

import numpy as np

from cpu_fallback.elementwise import broadcasts
from cpu_fallback.numeric import is_integer, wide
from cpu_fallback.products import product
from cpu_fallback.registry import Tensor, cpu_op

FEW_ROWS = 32
"""For so small an M, BLAS is a fourth faster at [N, K] times [K, M] than at its transpose."""
UNPACKED = 10**6
"""OpenBLAS multiplies M x K by K x N without packing them first if M * K * N is at most that."""
STRIP, MAX_STRIP = 64, 192
"""Columns of a strip: a multiple, and the most. All strips end at multiples, so that equal columns
give equal results (see `products`)."""
NARROW = 8
"""Up to so many rows strips of `STRIP` columns are faster than the whole; with more, wider ones."""
MAX_CUT_ROWS = 16
MIN_CUT = 1 << 17
"""Elements of an operand that is cut."""


@cpu_op("MatMul", since=1)
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """[..., M, K] times [..., K, N], batches broadcast; a 1-D operand is a row or a column.

    float16 and bfloat16 are summed in float32; integers wrap. Source: ONNX MatMul-13.
    """
    if is_integer(a.dtype):
        return np.asarray(np.matmul(a, b))
    kind = wide(a.dtype)
    x, y = a.astype(kind, copy=False), b.astype(kind, copy=False)
    if x.ndim < 2 or y.ndim < 2:
        result = np.asarray(np.matmul(x, y))
    elif y.ndim == 2 and x.ndim > 2 and x.flags.c_contiguous and x.size:
        result = _rows(x.reshape(-1, x.shape[-1]), y).reshape(*x.shape[:-1], y.shape[1])
    elif x.ndim == y.ndim == 2:
        result = _rows(x, y)
    else:
        result = product(x, y)
    return result.astype(a.dtype, copy=False)


def _rows(x: Tensor, y: Tensor) -> Tensor:
    """`x` [M, K] times `y` [K, N]: few rows in strips of columns small enough not to be packed."""
    rows, inner = x.shape
    if not 1 < rows <= MAX_CUT_ROWS or y.size < MIN_CUT or y.shape[1] % STRIP:
        return product(x, y)
    width = min(MAX_STRIP, UNPACKED // (rows * inner)) // STRIP * STRIP
    least = STRIP if rows <= NARROW else 2 * STRIP
    if not least <= width < y.shape[1] or not y.flags.c_contiguous or x.dtype != np.float32:
        return product(x, y)
    out = np.empty((rows, y.shape[1]), x.dtype)
    for start in range(0, y.shape[1], width):
        strip = slice(start, start + width)
        np.matmul(x, y[:, strip], out=out[:, strip])
    return out


@cpu_op("Gemm", since=7)
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Tensor:
    """`alpha * A' B' + beta * C` with A' [M, K], B' [K, N] (transposed if asked for).

    `c` broadcasts to [M, N]; where beta is 0 it does not count, NaN included. float16 and bfloat16
    are computed in float32. Source: ONNX Gemm-13.
    """
    kind = np.dtype(np.float64) if is_integer(a.dtype) else wide(a.dtype)
    exact = is_integer(a.dtype) and float(alpha).is_integer() and float(beta).is_integer()
    if exact:
        kind, alpha, beta = a.dtype, int(alpha), int(beta)
    x = (a.T if transA else a).astype(kind, copy=False)
    y = (b.T if transB else b).astype(kind, copy=False)
    if exact:
        result = x @ y
    elif transB and x.shape[0] <= FEW_ROWS:
        result = np.ascontiguousarray(product(y.T, x.T).T)
    else:
        result = _rows(x, y)
    if alpha != 1:
        result *= np.asarray(alpha).astype(kind)  # integers wrap, as products of them do
    if c is not None and beta != 0:
        if not broadcasts(c.shape, result.shape):
            raise ValueError(f"C of shape {c.shape} is larger than A B, {result.shape}")
        term = c.astype(kind, copy=False)
        result += term if beta == 1 else term * np.asarray(beta).astype(kind)
    return np.asarray(result).astype(a.dtype, copy=False)
