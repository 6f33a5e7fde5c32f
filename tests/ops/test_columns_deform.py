"""DeformConv."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.harness import (
    Array,
    OpCase,
    check_cpu,
    check_engine_cpu,
    check_gpu,
    check_infer,
    supported,
)
from tests.ops.standard import for_each, gpu_node_suite, on_gpu

RNG = np.random.default_rng(11)


def deform(
    channels: int,
    filters: int,
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    *,
    batch: int = 1,
    bias: bool = False,
    mask: bool = False,
    dtype: str = "float32",
    oracle: str | None = None,
    **attrs: Any,
) -> OpCase:
    rank = len(sizes)
    group, moved = attrs.get("group", 1), attrs.get("offset_group", 1)
    steps, spread = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
    pads = attrs.get("pads", [0] * (2 * rank))
    out = [
        (sizes[d] + pads[d] + pads[rank + d] - spread[d] * (kernel[d] - 1) - 1) // steps[d] + 1
        for d in range(rank)
    ]
    taps = int(np.prod(kernel))

    def some(*shape: int, scale: float = 1.0) -> Array:
        return np.asarray(RNG.standard_normal(shape) * scale).astype(dtype)

    inputs: list[Array | None] = [
        some(batch, channels, *sizes),
        some(filters, channels // group, *kernel),
        some(batch, moved * taps * rank, *out, scale=1.5),
        some(filters) if bias or mask else None,
        RNG.random((batch, moved * taps, *out)).astype(dtype) if mask else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    name = "-".join(map(str, (channels, filters, sizes, kernel, batch, bias, mask, dtype, *attrs)))
    return OpCase("DeformConv", tuple(inputs), attrs, oracle=oracle, name=name.replace(" ", ""))


TWO = [
    deform(3, 5, (7, 9), (3, 2), bias=True),
    deform(4, 6, (7, 5), (2, 2), batch=2, group=2, bias=True, mask=True),
    deform(4, 4, (9, 11), (3, 3), offset_group=2, strides=[2, 3], pads=[1, 0, 2, 1]),
    deform(2, 3, (9, 8), (2, 3), dilations=[2, 3], pads=[0, 1, 1, 2], mask=True, offset_group=2),
]
OTHER = [
    deform(1, 1, (1, 1), (1, 1), oracle="fallback"),
    deform(2, 3, (11,), (3,), bias=True, oracle="fallback"),
    deform(2, 3, (4, 5, 3), (2, 1, 2), group=1, bias=True, oracle="fallback"),
    deform(3, 5, (7, 9), (3, 2), dtype="float16", oracle="fallback").replace(tol=2e-3),
    deform(3, 5, (7, 9), (3, 2), batch=0, oracle="fallback"),
]


test_cpu = for_each([*TWO, *OTHER], check_cpu, check_engine_cpu, check_infer)
test_gpu = on_gpu([*TWO, *OTHER])


@pytest.mark.gpu
def test_gpu_with_open_sizes() -> None:
    check_gpu(TWO[1], dynamic=True)


def test_offsets_that_do_not_fit_are_refused() -> None:
    case = deform(2, 3, (5, 5), (2, 2))
    x, w, offset = case.inputs
    assert isinstance(offset, np.ndarray)
    assert "agree" in supported(case.replace(inputs=(x, w, offset[:, :-1]))).reason
    assert "spatial" in supported(deform(1, 1, (3, 3, 3, 3), (1, 1, 1, 1))).reason


test_node_suite = gpu_node_suite("DeformConv", require_gpu=True)
