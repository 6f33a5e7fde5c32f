"""Transpose, Expand, Tile, DepthToSpace, SpaceToDepth, Trilu: elements that only move."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpu_fallback.registry import Tensor, cpu_op


@cpu_op("Transpose", since=1)
def transpose(data: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    """View of `data` with its axes in the order `perm` (default: reversed).

    Source: ONNX Transpose-25.
    """
    return np.transpose(data, perm)


@cpu_op("Expand", since=8)
def expand(x: Tensor, shape: Tensor) -> Tensor:
    """`x` broadcast against `shape` ([rank] int64), both ways. Source: ONNX Expand-13."""
    sizes = np.broadcast_shapes(x.shape, tuple(int(d) for d in shape.reshape(-1)))
    return np.broadcast_to(x, sizes).copy()


@cpu_op("Tile", since=6)
def tile(x: Tensor, repeats: Tensor) -> Tensor:
    """`x` repeated `repeats` ([rank] int64) times along each axis. Source: ONNX Tile-13."""
    if repeats.size != x.ndim:
        raise ValueError(f"{repeats.size} repeats for {x.ndim} axes")
    return np.tile(x, [int(r) for r in repeats.reshape(-1)])


@cpu_op("DepthToSpace", since=1)
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """[N, C, H, W] to [N, C / b^2, H b, W b]: channels become b x b blocks of pixels.

    Source: ONNX DepthToSpace-28.
    """
    n, c, h, w = x.shape
    b, depth = blocksize, c // blocksize**2
    if mode == "DCR":
        blocks = x.reshape(n, b, b, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, depth, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, depth, h * b, w * b)


@cpu_op("SpaceToDepth", since=1)
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """[N, C, H, W] to [N, C b^2, H / b, W / b]: b x b blocks of pixels become channels.

    Source: ONNX SpaceToDepth-28.
    """
    n, c, h, w = x.shape
    b = blocksize
    blocks = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.transpose(order).reshape(n, c * b * b, h // b, w // b)


@cpu_op("Trilu", since=14)
def trilu(x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    """The triangle of the matrices `x` [..., rows, columns] from diagonal `k` up, or down.

    Raises: ValueError for a rank below 2. Source: ONNX Trilu-14.
    """
    if x.ndim < 2:
        raise ValueError(f"Trilu takes matrices, not an operand of shape {x.shape}")
    diagonal = 0 if k is None else int(k.reshape(-1)[0])
    diagonal = min(max(diagonal, -x.shape[-2]), x.shape[-1])
    return np.triu(x, diagonal) if upper else np.tril(x, diagonal)
