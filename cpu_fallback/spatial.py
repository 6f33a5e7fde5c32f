"""Sampling and rearranging of feature maps: GridSample, RoiAlign, DepthToSpace and others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from cpu_fallback.numeric import wide
from cpu_fallback.registry import Tensor, cpu_op

_MODES = {"bilinear": "linear", "linear": "linear", "bicubic": "cubic", "cubic": "cubic",
          "nearest": "nearest"}  # fmt: skip
_CUBIC_ALPHA = -0.75


def _reflect(x: Tensor, low: float, high: float) -> Tensor:
    """`x` mirrored at `low` and `high` until it lies between them."""
    span = high - low
    if span <= 0:
        return np.full_like(x, low)
    below, above = x < low, x > high
    distance = np.where(below, low - x, np.where(above, x - high, 0))
    turns = np.floor(distance / span)
    rest = distance - turns * span
    even = turns % 2 == 0
    mirrored = np.where(even == below, low + rest, high - rest)
    return np.where(below | above, mirrored, x).astype(x.dtype)


def _place(x: Tensor, size: int, padding_mode: str, align_corners: bool) -> Tensor:
    """Coordinates in pixels, brought inside as the padding mode asks."""
    low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
    if padding_mode == "border":
        return np.where((x < low) | (x > high), np.clip(x, 0, size - 1), x)
    return _reflect(x, low, high) if padding_mode == "reflection" else x


def _pixels(
    index: Tensor, size: int, padding_mode: str, align_corners: bool
) -> tuple[Tensor, Tensor]:
    """Valid pixel indices and a mask of those that count."""
    inside = (index >= 0) & (index <= size - 1)
    if padding_mode == "reflection":
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        index = _reflect(index, low, high)
    safe = np.clip(np.nan_to_num(index), 0, size - 1).astype(np.int64)
    return safe, inside if padding_mode == "zeros" else np.ones_like(inside)


def _taps(x: Tensor, mode: str) -> list[tuple[Tensor, Tensor]]:
    """(index, weight) of the pixels along one dimension that a coordinate draws from."""
    if mode == "nearest":
        return [(x, np.ones_like(x))]
    base = np.floor(x)
    t = x - base
    if mode == "linear":
        return [(base, 1 - t), (base + 1, t)]
    a = _CUBIC_ALPHA

    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [
        (base - 1, far(t + 1)),
        (base, near(t)),
        (base + 1, near(1 - t)),
        (base + 2, far(2 - t)),
    ]


def sample(
    x: Tensor, coordinates: Sequence[Tensor], mode: str, padding_mode: str, align_corners: bool
) -> Tensor:
    """Values of `x` [N, C, sizes...] at pixel coordinates ([N, P] per dimension): [N, C, P]."""
    sizes = x.shape[2:]
    flat = x.reshape(*x.shape[:2], math.prod(sizes)).astype(wide(x.dtype))
    per_dim = []
    for value, size in zip(coordinates, sizes, strict=True):
        limited = np.clip(value, -(2.0**24), 2.0**24)
        start = np.rint(limited) if mode == "nearest" else limited
        placed = start
        if mode != "cubic" or padding_mode == "reflection":
            placed = _place(start, size, padding_mode, align_corners)
        per_dim.append(_taps(np.rint(placed) if mode == "nearest" else placed, mode))
    result = np.zeros((*x.shape[:2], coordinates[0].shape[1]), flat.dtype)
    for combination in itertools.product(*per_dim):
        position: Tensor = np.zeros(coordinates[0].shape, np.int64)
        weight: Tensor = np.ones(coordinates[0].shape, flat.dtype)
        for (index, factor), size in zip(combination, sizes, strict=True):
            pixel, counts = _pixels(index, size, padding_mode, align_corners)
            position = position * size + pixel
            weight = weight * np.where(counts, factor, 0)
        values = np.take_along_axis(flat, position[:, None], axis=2)
        result += np.where(weight[:, None] == 0, 0, values * weight[:, None])
    return result


@cpu_op("GridSample", since=16)
def grid_sample(
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Tensor:
    """`x` [N, C, sizes...] at normalised positions `grid` [N, out..., dims], last size first.

    Raises: ValueError for an unknown mode or padding mode, or a grid that does not fit `x`.
    Source: ONNX GridSample-22.
    """
    if mode not in _MODES or padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(f"GridSample: mode {mode!r} with padding_mode {padding_mode!r}")
    if (grid.ndim, grid.shape[0], grid.shape[-1]) != (x.ndim, x.shape[0], x.ndim - 2):
        raise ValueError(f"GridSample: a grid of shape {grid.shape} for an input of {x.shape}")
    out_sizes, work = grid.shape[1:-1], wide(x.dtype)
    points = grid.reshape(x.shape[0], math.prod(out_sizes), x.ndim - 2).astype(work)
    coordinates = []
    for dim, size in enumerate(x.shape[2:]):
        value = points[..., points.shape[-1] - 1 - dim]
        if align_corners:
            coordinates.append((value + 1) / work.type(2) * (size - 1))
        else:
            coordinates.append(((value + 1) * size - 1) / work.type(2))
    result = sample(x, coordinates, _MODES[mode], padding_mode, bool(align_corners))
    return np.asarray(result.reshape(*x.shape[:2], *out_sizes).astype(x.dtype))


@cpu_op("AffineGrid", since=20)
def affine_grid(theta: Tensor, size: Tensor, *, align_corners: int = 0) -> Tensor:
    """Grid for `grid_sample`: theta [N, dims, dims + 1] applied to each output position.

    Source: ONNX AffineGrid-20.
    """
    sizes, work = [int(n) for n in size[2:]], np.float64
    axes = []
    for n in sizes:
        steps = np.arange(n, dtype=work)
        if align_corners:
            axes.append(-1 + steps * (2 / (n - 1)) if n > 1 else np.zeros(1))
        else:
            axes.append((2 * steps + 1) / n - 1)
    mesh = np.meshgrid(*axes, indexing="ij")
    homogeneous = np.stack([*reversed(mesh), np.ones(sizes)], axis=-1).reshape(-1, len(sizes) + 1)
    grid = homogeneous @ theta.astype(work).transpose(0, 2, 1)
    return np.asarray(grid.reshape(theta.shape[0], *sizes, len(sizes)).astype(theta.dtype))


def _axis_weights(positions: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lower and upper pixel, fraction between them, and whether the position counts at all."""
    counts = (positions >= -1.0) & (positions <= size)
    inside = np.maximum(positions, 0)
    low = np.minimum(inside.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    return low, high, np.where(low >= size - 1, 0, inside - low), counts


def _roi_samples(
    image: Tensor, start: Sequence[float], bins: Sequence[float], grid: Sequence[int],
    pooled: Sequence[int], take_max: bool,
) -> Tensor:  # fmt: skip
    """[C, out_h, out_w]: average or greatest sample of each bin of one region."""
    axes = []
    for d in range(2):
        steps = (np.arange(grid[d], dtype=image.dtype) + 0.5) * bins[d] / grid[d]
        places = np.arange(pooled[d], dtype=image.dtype)[:, None]
        positions = start[d] + places * bins[d] + steps
        axes.append(_axis_weights(positions.reshape(-1), image.shape[1 + d]))
    (y0, y1, fy, ok_y), (x0, x1, fx, ok_x) = axes
    counts = ok_y[:, None] & ok_x
    corners = []
    for rows, wy in ((y0, 1 - fy), (y1, fy)):
        for columns, wx in ((x0, 1 - fx), (x1, fx)):
            weight = np.where(counts, wy[:, None] * wx, 0).astype(image.dtype)
            corners.append(image[:, rows[:, None], columns] * weight)
    stacked = np.stack(corners)
    samples = stacked.max(axis=0) if take_max else stacked.sum(axis=0)
    samples = samples.reshape(-1, pooled[0], grid[0], pooled[1], grid[1])
    return np.asarray(samples.max(axis=(2, 4)) if take_max else samples.mean(axis=(2, 4)))


@cpu_op("RoiAlign", since=10)
def roi_align(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    """Regions (x1, y1, x2, y2) of `x` [N, C, H, W] pooled to [regions, C, out_h, out_w].

    Raises: ValueError for an unknown mode or an image that is not there.
    Source: ONNX RoiAlign-22.
    """
    if mode not in ("avg", "max"):
        raise ValueError(f"RoiAlign mode {mode!r} is neither avg nor max")
    if np.any((batch_indices < 0) | (batch_indices >= x.shape[0])):
        raise ValueError(f"batch_indices {batch_indices.tolist()} for {x.shape[0]} images")
    half_pixel, work = coordinate_transformation_mode == "half_pixel", wide(x.dtype)
    boxes = rois.astype(work) * work.type(spatial_scale) - work.type(0.5 if half_pixel else 0)
    pooled = (output_height, output_width)
    result = np.zeros((rois.shape[0], x.shape[1], *pooled), work)
    images = x.astype(work)
    for n, (x1, y1, x2, y2) in enumerate(boxes):
        spans = [y2 - y1, x2 - x1]
        if not half_pixel:
            spans = [max(span, work.type(1)) for span in spans]
        bins = [span / out for span, out in zip(spans, pooled, strict=True)]
        grid = [sampling_ratio if sampling_ratio > 0 else int(np.ceil(b)) for b in bins]
        if min(grid) > 0:
            image = images[int(batch_indices[n])]
            result[n] = _roi_samples(image, (y1, x1), bins, grid, pooled, mode == "max")
    return result.astype(x.dtype)


@cpu_op("MaxRoiPool", since=1)
def max_roi_pool(
    x: Tensor, rois: Tensor, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> Tensor:
    """Greatest value in each bin of regions (batch, x1, y1, x2, y2): [regions, C, out_h, out_w].

    Empty bins give 0. Source: ONNX MaxRoiPool-22.
    """
    result = np.zeros((rois.shape[0], x.shape[1], *pooled_shape), x.dtype)
    scaled = rois[:, 1:].astype(np.float64) * spatial_scale
    corners = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int64)
    for n, (x1, y1, x2, y2) in enumerate(corners):
        image = x[int(rois[n, 0])]
        edges = []
        for d, (low, high) in enumerate(((y1, y2), (x1, x2))):
            step = max(high - low + 1, 1) / pooled_shape[d]
            bins = np.arange(pooled_shape[d])
            starts = np.clip(np.floor(bins * step) + low, 0, image.shape[1 + d]).astype(int)
            ends = np.clip(np.ceil((bins + 1) * step) + low, 0, image.shape[1 + d]).astype(int)
            edges.append(list(zip(starts, ends, strict=True)))
        for i, (top, bottom) in enumerate(edges[0]):
            for j, (left, right) in enumerate(edges[1]):
                if top < bottom and left < right:
                    result[n, :, i, j] = image[:, top:bottom, left:right].max(axis=(1, 2))
    return result
