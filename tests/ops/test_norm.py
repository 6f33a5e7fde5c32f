"""Normalisations: axes, broadcast scales, statistics as outputs, groups, choice of kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.ops import Lowering, definition
from engine.runtime import targets
from engine.target import Target
from tests.ops.harness import (
    OpCase,
    case_id,
    check_cpu,
    check_engine_cpu,
    check_gpu,
    check_infer,
    inferred,
    supported,
)
from tests.ops.standard import for_each, on_gpu


def noise(*shape: int, seed: int = 0, low: float | None = None) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed + sum(shape))
    if low is not None:
        return rng.uniform(low, low + 2, shape).astype(np.float32)
    return (rng.standard_normal(shape) * 2 + 3).astype(np.float32)


def instance_norm(x: Any, scale: Any, b: Any, epsilon: float = 1e-5) -> Any:
    wide = x.astype(np.float64)
    axes = tuple(range(2, x.ndim))
    middle = wide.mean(axis=axes, keepdims=True)
    deviation = np.sqrt(((wide - middle) ** 2).mean(axis=axes, keepdims=True) + epsilon)
    shape = (1, -1, *(1,) * (x.ndim - 2))
    return (wide - middle) / deviation * scale.reshape(shape) + b.reshape(shape)


def group_norm(x: Any, scale: Any, b: Any, groups: int) -> Any:
    flat = x.reshape(x.shape[0], groups, -1)
    one, zero = np.ones(groups), np.zeros(groups)
    shape = (1, -1, *(1,) * (x.ndim - 2))
    return instance_norm(flat, one, zero).reshape(x.shape) * scale.reshape(shape) + b.reshape(shape)


def local_response(x: Any, size: int, alpha: float, beta: float, bias: float) -> Any:
    wide, result = x.astype(np.float64), np.empty(x.shape)
    for c in range(x.shape[1]):
        low, high = max(0, c - (size - 1) // 2), min(x.shape[1], c + size // 2 + 1)
        total = (wide[:, low:high] ** 2).sum(axis=1)
        result[:, c] = wide[:, c] / (bias + alpha / size * total) ** beta
    return result


def _layers() -> list[OpCase]:
    cases = []
    for shape, axis in (
        ((5, 37), -1),
        ((3, 5, 113), 2),
        ((3, 5, 16), -1),
        ((3, 5, 16), 1),
        ((2, 3, 5, 7), 2),
        ((3, 1000), 1),
        ((3, 1001), 1),
        ((2, 1031), 1),
        ((2, 1036), 1),
        ((6000, 132), 1),
        ((5,), 0),
        ((4, 1), 1),
        ((0, 8), 1),
    ):
        x = noise(*shape)
        scale, bias = noise(*shape[axis:], seed=1), noise(*shape[axis:], seed=2)
        oracle = "fallback" if 0 in shape else None
        layer = {"axis": axis, "epsilon": 1e-3}
        cases.append(OpCase("LayerNormalization", (x, scale, bias), layer, oracle=oracle))
        cases.append(OpCase("LayerNormalization", (x, scale), {"axis": axis}, 3, oracle=oracle))
        cases.append(OpCase("RMSNormalization", (x, scale), {"axis": axis}, oracle=oracle))
    x = noise(2, 3, 4, 8)
    for shape in ((1,), (8,), (4, 1), (3, 1, 8), (2, 1, 1, 1)):
        operands = (x, noise(*shape, seed=1), noise(*shape[-1:], seed=2))
        cases.append(OpCase("LayerNormalization", operands, {"axis": 2}, name=f"scale{shape}"))
    edges = np.array([[np.nan, 1, 2, 3], [np.inf, 1, 2, 3], [5, 5, 5, 5], [1e4, 1e4 + 1, 1e4, 1e4]])
    one = np.ones(4, np.float32)
    cases.append(
        OpCase("LayerNormalization", (edges.astype(np.float32), one), name="edges", tol=1e-4)
    )
    return cases


def _by_channel() -> list[OpCase]:
    cases = []
    for shape in ((2, 3, 7), (2, 3, 4, 5), (1, 5, 37, 11), (2, 2, 64, 64), (3, 4, 1)):
        x, channels = noise(*shape), shape[1]
        scale, bias = noise(channels, seed=1), noise(channels, seed=2)
        cases.append(
            OpCase("InstanceNormalization", (x, scale, bias), oracle=instance_norm, tol=1e-5)
        )
        statistics = (noise(channels, seed=3), noise(channels, seed=4, low=0.1))
        operands = (x, scale, bias, *statistics)
        cases.append(OpCase("BatchNormalization", operands, {"epsilon": 1e-3}))
    for groups, channels, rest in ((2, 6, (5,)), (3, 6, (4, 4)), (1, 4, (3, 3)), (4, 4, (9, 2))):
        x = noise(2, channels, *rest)
        cases.append(
            OpCase(
                "GroupNormalization",
                (x, noise(channels, seed=1), noise(channels, seed=2)),
                {"num_groups": groups},
                oracle=lambda *operands, groups=groups: group_norm(*operands, groups),
            )
        )
    flat = (noise(7, 3), *(noise(3, seed=i) for i in (1, 2, 3)), noise(3, low=0.1))
    cases.append(OpCase("BatchNormalization", flat, name="rank2"))
    return cases


def _others() -> list[OpCase]:
    cases = []
    for size, beta, width in (
        (1, 0.6, 5), (3, 0.6, 5), (4, 0.6, 5), (5, 0.6, 5), (3, 0.6, 4), (5, 0.75, 5), (4, 0.75, 4),
    ):  # fmt: skip
        attrs = {"size": size, "alpha": 0.02, "beta": beta, "bias": 1.5}
        numbers = tuple(attrs.values())
        cases.append(
            OpCase(
                "LRN",
                (noise(2, 7, 3, width),),
                attrs,
                oracle=lambda x, numbers=numbers: local_response(x, *numbers),
            )
        )
    rows = noise(3, 37, 5)
    rows[1] = 0
    for p in (1, 2):
        for axis in (1, -1):
            order = np.abs if p == 1 else np.square

            def by_norm(x: Any, order: Any = order, p: int = p, axis: int = axis) -> Any:
                wide = x.astype(np.float64)
                size = order(wide).sum(axis=axis, keepdims=True) ** (1 / p)
                return np.where(size == 0, 0, wide / np.where(size == 0, 1, size))

            cases.append(OpCase("LpNormalization", (rows,), {"p": p, "axis": axis}, oracle=by_norm))
    return cases


def mean_variance(x: Any, axes: tuple[int, ...] = (0, 2, 3)) -> Any:
    wide = x.astype(np.float64)
    middle = wide.mean(axis=axes, keepdims=True)
    deviation = np.sqrt(((wide - middle) ** 2).mean(axis=axes, keepdims=True))
    return (wide - middle) / (deviation + 1e-9)


def _mean_variances() -> list[OpCase]:
    x = noise(2, 3, 5, 7)
    cases = [OpCase("MeanVarianceNormalization", (x,), oracle=mean_variance)]
    for axes in ((0,), (1, -1), (-2,), (0, 1, 2, 3), (2, 3)):
        case = OpCase("MeanVarianceNormalization", (x,), {"axes": axes})
        cases.append(case.replace(oracle=lambda x, axes=axes: mean_variance(x, axes)))
    return cases


CASES = [*_layers(), *_by_channel(), *_others(), *_mean_variances()]
HOST = [
    OpCase("LayerNormalization", (((4, 30), "float16"), ((30,), "float16")), tol=3e-3),
    OpCase("LayerNormalization", (((4, 30), "float64"), ((30,), "float64")), tol=1e-6),
    OpCase(
        "BatchNormalization",
        (noise(3, 2, 5), noise(2), noise(2, seed=1), noise(2, seed=2), noise(2, low=1.0)),
        {"training_mode": 1, "momentum": 0.8},
        3,
        cpu_only=True,
        name="training",
    ),
]
DYNAMIC = [
    _mean_variances()[0],
    OpCase("LayerNormalization", (((3, 5, 16), "float32"), ((16,), "float32"))),
    OpCase("LayerNormalization", (((3, 300), "float32"), ((300,), "float32"))),
    OpCase("RMSNormalization", (((3, 37), "float32"), ((37,), "float32"))),
    OpCase("InstanceNormalization", (noise(2, 3, 4, 5), noise(3), noise(3)), oracle=instance_norm),
]


test_cpu = for_each([*CASES, *HOST], check_cpu)
test_infer = for_each([*CASES, *HOST], check_infer)
test_gpu = on_gpu(CASES)
test_gpu_with_symbolic_sizes = on_gpu(DYNAMIC, dynamic=True)


def test_engine_on_the_cpu() -> None:
    check_engine_cpu(CASES[0])


def test_training_is_refused_by_the_gpu() -> None:
    refusal = supported(HOST[-1])
    assert not refusal.ok
    assert "training" in refusal.reason


@pytest.mark.parametrize(
    ("shape", "lanes", "software_lanes", "wide"),
    [
        ((128, 768), 64, 1, True),
        ((2, 1024), 64, 1, True),
        ((2, 1028), 64, 64, True),
        ((2, 1025), 64, 64, False),
        ((5000, 256), 64, 1, True),
        ((128, 128), 16, 1, True),
        ((128, 37), 16, 1, False),
        ((128, 31), 1, 1, False),
    ],
)
def test_choice_of_kernel(
    shape: tuple[int, int], lanes: int, software_lanes: int, wide: bool
) -> None:
    operands = ((shape, "float32"), (shape[1:], "float32"))
    graph, node, _ = inferred(OpCase("LayerNormalization", operands))
    op = definition(node)
    assert op is not None and op.lower is not None
    for target, wanted in ((Target(), lanes), (Target(software=True), software_lanes)):
        view = Lowering(graph, node, target, lambda kind: "", lambda *_: "")
        (stage,) = op.lower(view)
        found = [(c.overrides.get("LANES", 1), "VEC4" in c.flags) for c in stage]
        assert found == [(wanted, wide)]
        assert (stage[0].shader == "norm") == (wanted == 1)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_rows_as_software_takes_them(case: OpCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "is_software", lambda kind: True)
    check_gpu(case)
