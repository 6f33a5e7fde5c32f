"""AffineGrid, GridSample and RoiAlign."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import Array, Data, Form
from tests.properties.oracles import reference, runtime


@draws("AffineGrid")
def affine_grid(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    spatial = form.int(2, 3)
    n = data.int(1, 3)
    theta = data.floats(dtype, (n, spatial, spatial + 1), -2, 2)
    size = np.asarray([n, data.int(1, 3), *(data.int(2, 6) for _ in range(spatial))], np.int64)
    return Case([theta, size], form.maybe({"align_corners": form.int(0, 1)}), opset)


@draws("GridSample")
def grid_sample(op: str, form: Form, data: Data) -> Case:
    """Grids reach beyond the image; coordinates are kept off the middle between two pixels."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    spatial = 2 if opset < 20 else form.one_of([2, 3])
    words = ("bilinear", "bicubic") if opset < 20 else ("linear", "cubic")
    modes = ["nearest", words[0], *(words[1:] if spatial == 2 else ())]
    attrs: dict[str, Any] = form.maybe({"mode": form.one_of(modes)}, 0.8)
    borders = ["zeros", "border", "reflection"]
    if attrs.get("mode") == words[1]:
        # what lies behind a border is read in two ways
        borders.remove("border")
    attrs |= form.maybe({"padding_mode": form.one_of(borders)}, 0.8)
    attrs |= form.maybe({"align_corners": form.int(0, 1)})
    n = data.int(1, 2)
    x = data.floats(dtype, (n, data.int(1, 3), *(data.int(2, 6) for _ in range(spatial))))
    rng = data.generator()
    shape = (n, *(data.int(1, 5) for _ in range(spatial)), spatial)
    grid = (rng.integers(-130, 131, shape) + 0.37).astype(np.float64) / 101
    case = Case([x, grid.astype(dtype)], attrs, opset, tol=2e-5)
    if opset >= 20:
        return case
    renamed = {"bilinear": "linear", "bicubic": "cubic"}
    newer = {**attrs, "mode": renamed.get(attrs.get("mode", "bilinear"), "nearest")}

    def oracle(*inputs: Array) -> list[Array]:
        return reference(op, Case(inputs, newer, 20))

    because = "it knows the modes by their names since version 20 only"
    return dataclasses.replace(case, oracle=oracle, because=because)


@draws("RoiAlign")
def roi_align(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    attrs: dict[str, Any] = {"sampling_ratio": form.int(1, 3)}
    attrs |= form.maybe({"output_height": form.int(1, 4), "output_width": form.int(1, 3)}, 0.7)
    attrs |= form.maybe({"spatial_scale": form.one_of([0.5, 0.25])})
    attrs |= form.maybe({"mode": form.one_of(["max", "avg"])})
    if opset >= 16:
        kinds = ["half_pixel", "output_half_pixel"]
        attrs |= form.maybe({"coordinate_transformation_mode": form.one_of(kinds)}, 0.7)
    images, count = data.int(1, 2), data.int(1, 4)
    x = data.floats(dtype, (images, data.int(1, 3), data.int(3, 9), data.int(3, 9)))
    rng = data.generator()
    starts = rng.uniform(-1, 6, (count, 2))
    ends = starts + rng.uniform(0.5, 9, (count, 2))
    rois = np.concatenate([starts, ends], axis=1).astype(dtype)
    which = rng.integers(0, images, count).astype(np.int64)
    case = Case([x, rois, which], attrs, opset, tol=5e-5)

    def oracle(*_: Array) -> list[Array]:
        return runtime(op, dataclasses.replace(case, opset=min(opset, 16)))

    because = "it is wrong beyond the image"
    return dataclasses.replace(case, oracle=oracle, because=because)
