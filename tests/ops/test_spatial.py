"""GridSample, AffineGrid, RoiAlign."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tests.ops.harness import OpCase, check_engine_cpu, check_infer, supported
from tests.ops.standard import for_each, node_suite, on_gpu

F = "float32"


def grid(*shape: int, far: float = 1.6) -> np.ndarray[Any, Any]:
    drawn = np.random.default_rng(sum(shape)).uniform(-far, far, shape)
    return drawn.astype(np.float32)


def sample(x: tuple[int, ...], at: np.ndarray[Any, Any], dtype: str = F, **attrs: Any) -> OpCase:
    values = at.astype(dtype)
    return OpCase("GridSample", ((x, dtype), values), attrs, oracle="fallback", tol=1e-5)


MODES = [
    sample((2, 3, 5, 7), grid(2, 4, 9, 2), mode=mode, padding_mode=padding, align_corners=corners)
    for mode, padding, corners in itertools.product(
        ("nearest", "linear", "cubic"), ("zeros", "border", "reflection"), (0, 1)
    )
]


def partly_nan(*shape: int) -> np.ndarray[Any, Any]:
    values = grid(*shape)
    values.reshape(-1)[::7] = np.nan
    return values


SAMPLES = [
    *MODES,
    *(
        sample((2, 3, 5, 7), partly_nan(2, 4, 9, 2), mode=mode, padding_mode=padding)
        for mode, padding in itertools.product(("linear", "cubic"), ("zeros", "border"))
    ),
    sample((1, 1, 1, 1), grid(1, 3, 5, 2), padding_mode="reflection", align_corners=1),
    sample((1, 2, 4, 3), grid(1, 3, 5, 2, far=20.0), padding_mode="reflection"),
    sample((2, 2, 5), grid(2, 11, 1)),
    sample((1, 2, 3, 4, 5), grid(1, 2, 3, 5, 3), padding_mode="border"),
    sample((1, 2, 3, 4, 5), grid(1, 2, 3, 5, 3), mode="nearest"),
    sample((2, 3, 5, 7), grid(2, 0, 9, 2)),
    sample((2, 3, 5, 7), np.full((2, 1, 3, 2), np.nan, np.float32), mode="nearest"),
    sample((2, 3, 5, 7), np.full((2, 1, 3, 2), np.nan, np.float32)),
    sample((2, 3, 5, 7), np.full((2, 1, 3, 2), 1e30, np.float32), padding_mode="border"),
    sample((1, 1, 5, 7), np.array([[[[-1, -1], [1, 1], [1, -1]]]]), "float16", align_corners=1),
]


def affine(batch: int, *sizes: int, **attrs: Any) -> OpCase:
    rank = len(sizes)
    size = np.array([batch, 3, *sizes])
    return OpCase("AffineGrid", (((batch, rank, rank + 1), F), size), attrs)


AFFINE = [
    affine(2, 5, 7),
    affine(2, 5, 7, align_corners=1),
    affine(1, 1, 3, align_corners=1).replace(oracle="fallback"),
    affine(3, 2, 3, 5),
    affine(3, 2, 3, 5, align_corners=1),
    affine(0, 5, 7),
]
ROIS = np.array([[0, 0, 9, 9], [-3, 2, 4, 20], [5, 5, 5, 5], [1.5, 0.25, 8, 3]], np.float32)


def roi(**attrs: Any) -> OpCase:
    inputs = (((2, 3, 11, 13), F), ROIS, np.array([0, 1, 1, 0]))
    return OpCase("RoiAlign", inputs, attrs, oracle="fallback")


FIXED = {"output_height": 3, "output_width": 5, "sampling_ratio": 2}
ALIGNED = [
    roi(**FIXED),
    roi(**FIXED, coordinate_transformation_mode="output_half_pixel"),
    roi(**FIXED, mode="max", spatial_scale=0.5),
    roi(sampling_ratio=3),
    OpCase("RoiAlign", (((1, 2, 4, 5), F), ROIS[:0], np.zeros(0, np.int64)), {"sampling_ratio": 1}),
]
CASES = [*SAMPLES, *AFFINE, *ALIGNED]


test_cpu = for_each(CASES, check_engine_cpu, check_infer)
test_gpu = on_gpu(CASES)
test_gpu_with_open_sizes = on_gpu([MODES[6], MODES[17], ALIGNED[0]], dynamic=True)


def test_regions_that_choose_their_samples_are_refused() -> None:
    assert "depends on its size" in supported(roi()).reason


test_node_suite = node_suite("GridSample", "AffineGrid", "RoiAlign")
