"""Columns of windows back to images, and convolution at moved positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cpu_fallback.numeric import wide
from cpu_fallback.registry import Tensor, cpu_op
from cpu_fallback.spatial import sample


@cpu_op("Col2Im", since=18)
def col2im(
    x: Tensor,
    image_shape: Tensor,
    block_shape: Tensor,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Sums windows `x` [N, C * block, windows] into images [N, C, image_shape...].

    Raises: ValueError if the number of windows does not fit the image. Source: ONNX Col2Im-18.
    """
    image, block = [int(n) for n in image_shape], [int(n) for n in block_shape]
    rank = len(image)
    step, spread = list(strides or [1] * rank), list(dilations or [1] * rank)
    pad = list(pads or [0] * (2 * rank))
    padded = [image[d] + pad[d] + pad[rank + d] for d in range(rank)]
    counts = [(padded[d] - spread[d] * (block[d] - 1) - 1) // step[d] + 1 for d in range(rank)]
    if math.prod(counts) != x.shape[2]:
        raise ValueError(f"{x.shape[2]} windows for an image {image} that has {counts}")
    channels = x.shape[1] // max(math.prod(block), 1)
    taps = x.reshape(x.shape[0], channels, math.prod(block), *counts)
    result = np.zeros((x.shape[0], taps.shape[1], *padded), wide(x.dtype))
    for number, offset in enumerate(np.ndindex(*block)):
        starts = [offset[d] * spread[d] for d in range(rank)]
        where = tuple(
            slice(starts[d], starts[d] + (counts[d] - 1) * step[d] + 1, step[d])
            for d in range(rank)
        )
        result[(slice(None), slice(None), *where)] += taps[:, :, number]
    inner = tuple(slice(pad[d], pad[d] + image[d]) for d in range(rank))
    return np.ascontiguousarray(result[(slice(None), slice(None), *inner)], dtype=x.dtype)


@cpu_op("DeformConv", since=19)
def deform_conv(
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Convolution of `x` [N, C, ...] whose taps are moved by `offset` and scaled by `mask`.

    offset: [N, offset_group * taps * dims, out...]; mask: [N, offset_group * taps, out...];
    between pixels it interpolates linearly, outside it reads 0. Source: ONNX DeformConv-22.
    """
    kernel, out, rank = w.shape[2:], offset.shape[2:], x.ndim - 2
    step, spread = list(strides or [1] * rank), list(dilations or [1] * rank)
    pad, work = list(pads or [0] * (2 * rank)), wide(x.dtype)
    taps, places, batch = math.prod(kernel), math.prod(out), x.shape[0]
    moves = offset.reshape(batch, offset_group, taps, rank, places).astype(work)
    at_kernel = np.indices(kernel).reshape(rank, taps, 1)
    at_output = np.indices(out).reshape(rank, 1, places)
    channels = x.shape[1] // offset_group
    parts = []
    for g in range(offset_group):
        coordinates = []
        for d in range(rank):
            fixed = at_output[d] * step[d] - pad[d] + at_kernel[d] * spread[d]
            coordinates.append((moves[:, g, :, d] + fixed).reshape(batch, taps * places))
        image = x[:, g * channels : (g + 1) * channels]
        drawn = sample(image, coordinates, "linear", "zeros", True)
        if mask is not None:
            factor = mask.reshape(batch, offset_group, 1, taps * places)[:, g]
            drawn = drawn * factor.astype(work)
        parts.append(drawn.reshape(batch, channels, taps, places))
    inner = x.shape[1] // group * taps
    columns = np.concatenate(parts, axis=1).reshape(batch, group, inner, places)
    kernels = w.reshape(group, w.shape[0] // group, inner).astype(work)
    result = np.matmul(kernels[None], columns).reshape(batch, w.shape[0], *out)
    if bias is not None:
        result = result + bias.reshape(-1, *[1] * rank).astype(work)
    return np.asarray(result.astype(x.dtype))
