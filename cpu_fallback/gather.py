"""Gather, GatherElements, GatherND, ScatterElements, ScatterND, OneHot, Compress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cpu_fallback.registry import Tensor, cpu_op

Index = tuple[Any, ...]


@cpu_op("Gather", since=1)
def gather(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """Slices of `data` along `axis` at `indices` (int32/int64, any rank, negative from the end).

    Raises: IndexError for an index outside the axis. Source: ONNX Gather-13.
    """
    return np.asarray(np.take(data, indices, axis=axis))


def _along(indices: Tensor, rank: int, axis: int) -> Index:
    """The index that reads or writes one element for each of `indices`, along `axis`."""
    if indices.ndim != rank:
        raise ValueError(f"the indices have rank {indices.ndim}, the data {rank}")
    grid: list[Any] = list(np.indices(indices.shape, sparse=True))
    if rank:
        grid[axis] = indices
    return tuple(grid)


@cpu_op("GatherElements", since=11)
def gather_elements(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """`data[i][indices[i][j]]` (axis 1), and so for other ranks and axes; shape of `indices`.

    Raises: IndexError for an index outside the axis. Source: ONNX GatherElements-13.
    """
    return np.asarray(data[_along(indices, data.ndim, axis)])


def _nd(indices: Tensor, batch_dims: int = 0) -> Index:
    """The index that addresses leading axes by the last axis of `indices`."""
    batch = np.indices(indices.shape[:batch_dims], sparse=True)
    lead = indices.ndim - 1 - batch_dims
    grid = [b.reshape(b.shape + (1,) * lead) for b in batch]
    return (*grid, *np.moveaxis(indices, -1, 0))


@cpu_op("GatherND", since=11)
def gather_nd(data: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """Slices of `data` whose leading axes are addressed by the last axis of `indices` (int64).

    Raises: IndexError for an index outside its axis; ValueError if sizes of the batch differ.
    Source: ONNX GatherND-13.
    """
    lead = indices.shape[:-1]
    if lead[:batch_dims] != data.shape[:batch_dims]:
        raise ValueError(f"batches {data.shape[:batch_dims]} and {lead[:batch_dims]} differ")
    rest = data.shape[batch_dims + indices.shape[-1] :]
    if not indices.shape[-1] and not batch_dims:
        return np.broadcast_to(data, lead + rest).copy()
    return np.asarray(data[_nd(indices, batch_dims)]).reshape(lead + rest)


_REDUCTIONS: dict[str, Callable[[Tensor, Index, Tensor], None]] = {
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _scatter(data: Tensor, index: Index, updates: Tensor, reduction: str) -> Tensor:
    y = data.copy()
    if reduction == "none":
        y[index] = updates
    elif reduction in _REDUCTIONS:
        _REDUCTIONS[reduction](y, index, updates)
    else:
        raise ValueError(f"unknown reduction {reduction!r}")
    return y


def _check_updates(updates: Tensor, shape: tuple[int, ...]) -> None:
    """Raises: ValueError unless there is one update for each place, as NumPy would repeat them."""
    if updates.shape != shape:
        raise ValueError(f"updates of shape {updates.shape} do not fit places of shape {shape}")


@cpu_op("ScatterElements", since=11)
def scatter_elements(
    data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """A copy of `data` with elements along `axis` replaced by, or reduced with, `updates`.

    Of updates to one place the last wins. Raises: IndexError for an index outside the axis.
    Source: ONNX ScatterElements-18.
    """
    _check_updates(updates, indices.shape)
    return _scatter(data, _along(indices, data.ndim, axis), updates, reduction)


@cpu_op("ScatterND", since=11)
def scatter_nd(
    data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none"
) -> Tensor:
    """A copy of `data` with slices at `indices` replaced by, or reduced with, `updates`.

    Of updates to one place the last wins. Raises: IndexError for an index outside its axis.
    Source: ONNX ScatterND-18.
    """
    _check_updates(updates, indices.shape[:-1] + data.shape[indices.shape[-1] :])
    return _scatter(data, _nd(indices), updates, reduction)


@cpu_op("OneHot", since=9)
def one_hot(indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    """`values[1]` where the new axis equals the index, else `values[0]`.

    Indices in [-depth, depth) count; others give no `values[1]`.

    Raises: ValueError if there are not two values. Source: ONNX OneHot-28.
    """
    if values.shape != (2,):
        raise ValueError(f"values of shape [2] are needed, not {list(values.shape)}")
    size = int(depth.reshape(-1)[0])
    places = indices.astype(np.int64)
    places = np.where(places < 0, places + size, places)
    at = axis + indices.ndim + 1 if axis < 0 else axis
    steps = np.arange(size).reshape((size,) + (1,) * (indices.ndim - at))
    return np.where(np.expand_dims(places, at) == steps, values[1:2], values[0:1])


@cpu_op("Compress", since=9)
def compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    """Slices of `x` along `axis` (default: elements) where `condition` ([n] bool) is true.

    Source: ONNX Compress-28.
    """
    return np.compress(condition, x, axis=axis)
