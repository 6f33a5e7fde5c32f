"""MatMul and Gemm: strips of columns give what one product gives; integers wrap."""

from __future__ import annotations

import numpy as np
import pytest

from cpu_fallback import matmul, registry


@pytest.mark.parametrize("columns", [256, 448, 512, 500])
@pytest.mark.parametrize("rows", [1, 2, 7, 32, 33])
def test_few_rows(rows: int, columns: int) -> None:
    chance = np.random.default_rng(0)
    x = chance.standard_normal((rows, 600)).astype(np.float32)
    w = chance.standard_normal((600, columns)).astype(np.float32)
    want = x.astype(np.float64) @ w
    for a, expected in ((x, want), (x[None], want[None])):
        (y,) = registry.run("MatMul", "", 13, {}, [a, w], 1)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    (y,) = registry.run("Gemm", "", 13, {"alpha": 2.0}, [x, w, w[0]], 1)
    np.testing.assert_allclose(y, 2 * want + w[0], rtol=1e-4, atol=2e-4)


def test_strips_give_equal_columns_equal_results(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []

    def multiply(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
        widths.append(y.shape[1])
        out[...] = x @ y

    chance = np.random.default_rng(0)
    x = chance.standard_normal((12, 384)).astype(np.float32)
    w = np.repeat(chance.standard_normal((384, 1)), 448, axis=1).astype(np.float32)
    (y,) = registry.run("MatMul", "", 13, {}, [x, w], 1)
    assert (y == y[:, :1]).all()
    monkeypatch.setattr(matmul.np, "matmul", multiply)
    registry.run("MatMul", "", 13, {}, [x, w], 1)
    assert widths == [192, 192, 64]


def test_scales_of_integers_wrap() -> None:
    """As their products and sums do, whatever the sign of the type."""
    ones = np.ones((2, 2), np.uint32)
    (got,) = registry.run("Gemm", "", 13, {"alpha": -1.0, "beta": 3e9}, [ones, ones, ones], 1)
    want = (-2 + 3_000_000_000) % 2**32
    np.testing.assert_array_equal(got, np.full((2, 2), want, np.uint32))
