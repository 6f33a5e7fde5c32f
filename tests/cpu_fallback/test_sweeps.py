"""Operators that go over arrays in pieces give what they give in one piece."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cpu_fallback import elementwise, elementwise_unary, lp, pool, registry, sweeps

CASES: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("Add", [(1, 7, 9, 5), (1, 7, 9, 5)], {}),
    ("Sub", [(3, 1, 9, 5), (7, 1, 5)], {}),
    ("Mul", [(7, 1, 1), (2, 7, 9, 5)], {}),
    ("Div", [(63,), (4, 1)], {}),
    ("Max", [(6, 11), ()], {}),
    ("Min", [(6, 1), (6, 11)], {}),
    ("Clip", [(2, 3, 11), (), ()], {}),
    ("Clip", [(2, 3, 11), (1,)], {}),
    ("Relu", [(1, 1, 13, 5)], {}),
    ("Tanh", [(13, 5)], {}),
    ("Gelu", [(13, 5)], {}),
    ("HardSwish", [(1, 13, 5)], {}),
    ("MaxPool", [(2, 5, 9, 8)], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    ("MaxPool", [(1, 5, 4, 9, 8)], {"kernel_shape": [1, 3, 1], "strides": [2, 1, 3]}),
    ("MaxPool", [(1, 5, 9)], {"kernel_shape": [1]}),
    ("AveragePool", [(1, 11, 9, 8)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("LRN", [(2, 11, 3, 4)], {"size": 5, "alpha": 0.3, "beta": 0.75}),
    ("LRN", [(1, 6, 5)], {"size": 4, "alpha": 0.3, "beta": 0.6, "bias": 2.0}),
]


@pytest.mark.parametrize(("op_type", "shapes", "attrs"), CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pieces(
    op_type: str,
    shapes: list[tuple[int, ...]],
    attrs: Any,
    dtype: type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = np.random.default_rng(0)
    inputs = [np.asarray(chance.standard_normal(s), dtype) for s in shapes]
    inputs[0].reshape(-1)[-1] = np.nan
    (whole,) = registry.run(op_type, "", 22, attrs, inputs, 1)
    for module in (sweeps, elementwise):
        monkeypatch.setattr(module, "MIN_SWEPT", 2)
    monkeypatch.setattr(sweeps, "PIECE", 10)
    for module in (pool, lp):
        monkeypatch.setattr(module, "CACHED", 10)
    monkeypatch.setattr(elementwise_unary, "BLOCK", 7)
    (pieces,) = registry.run(op_type, "", 22, attrs, inputs, 1)
    assert pieces.dtype == whole.dtype == dtype
    np.testing.assert_array_equal(pieces, whole)
    call = registry.prepare(op_type, "", 22, attrs, 1)
    if call.takes_spare:
        (again,) = call([inputs[0].copy(), *inputs[1:]], inputs[0].copy())
        np.testing.assert_array_equal(again, whole)


def test_lrn_by_hand() -> None:
    x = np.random.default_rng(0).standard_normal((1, 5, 2)).astype(np.float32)
    (got,) = registry.run("LRN", "", 13, {"size": 4, "alpha": 0.5, "beta": 0.75}, [x], 1)
    for c in range(5):
        squares = (x[:, max(0, c - 1) : c + 3].astype(np.float64) ** 2).sum(axis=1)
        np.testing.assert_allclose(got[:, c], x[:, c] / (1 + 0.125 * squares) ** 0.75, rtol=1e-6)


@pytest.mark.parametrize(
    "name", ["float16", "bfloat16", "float8_e4m3fn", "int8", "uint64", "float64"]
)
def test_clip_keeps_its_type(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    x, low, high = (np.array(v).astype(dtype) for v in ([0, 1, 2, 3], 1, 2))
    (got,) = registry.run("Clip", "", 13, {}, [x, low, high], 1)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.astype(int), [1, 1, 2, 2])
