"""Matrix products of few rows, which are taken apart by columns."""

from __future__ import annotations

import numpy as np
import pytest

from cpu_fallback.products import _unpacked, product

SIZES = [(2, 384, 1536), (4, 333, 1024), (12, 384, 384), (12, 512, 512), (16, 256, 1024)]


@pytest.mark.parametrize(("rows", "inner", "columns"), SIZES)
def test_parts_give_the_whole_product(rows: int, inner: int, columns: int) -> None:
    cuts = _unpacked(rows, inner, columns)
    assert len(cuts) > 1
    covered = [i for cut in cuts for i in range(columns)[cut]]
    assert covered == list(range(columns))
    rng = np.random.default_rng(rows)
    a = rng.standard_normal((rows, inner)).astype(np.float32)
    b = rng.standard_normal((inner, columns)).astype(np.float32)
    bias = rng.standard_normal(columns).astype(np.float32)
    want = a.astype(np.float64) @ b + bias
    np.testing.assert_allclose(product(a, b, bias=bias), want, rtol=1e-4, atol=1e-4)
    across = np.asfortranarray(b)
    np.testing.assert_allclose(product(a, across, bias=bias), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "inner", "columns"), SIZES)
def test_equal_columns_give_equal_results(rows: int, inner: int, columns: int) -> None:
    rng = np.random.default_rng(columns)
    a = rng.standard_normal((rows, inner)).astype(np.float32)
    b = np.repeat(rng.standard_normal((inner, 1)).astype(np.float32), columns, axis=1)
    result = product(a, b)
    np.testing.assert_array_equal(result, np.broadcast_to(result[:, :1], result.shape))


@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(12, 512, 1000), (12, 1536, 384), (2, 8, 64), (3, 0, 64)]
)
def test_what_gains_nothing_stays_whole(rows: int, inner: int, columns: int) -> None:
    assert not _unpacked(rows, inner, columns)
    a, b = np.ones((rows, inner), np.float32), np.ones((inner, columns), np.float32)
    np.testing.assert_array_equal(product(a, b), np.full((rows, columns), inner, np.float32))
