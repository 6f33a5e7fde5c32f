"""Global pools of channels that lie side by side in memory, as convolutions leave them."""

from __future__ import annotations

import numpy as np
import pytest

from cpu_fallback.pool import global_average_pool


@pytest.mark.parametrize("channels", [2, 24, 1000])
@pytest.mark.parametrize("size", [(1, 1), (1, 2), (7, 7), (13, 13), (31, 3)])
def test_equal_channels_have_equal_means(channels: int, size: tuple[int, int]) -> None:
    plane = np.random.default_rng(0).standard_normal((2, *size, 1)).astype(np.float32) * 1e9
    x = np.moveaxis(np.repeat(plane, channels, axis=-1), -1, 1)
    assert x.strides[1] == x.itemsize
    y = global_average_pool(x)
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1], y.shape))
    want = plane.astype(np.float64).mean(axis=(1, 2)).reshape(2, 1, 1, 1)
    largest = np.abs(plane).max()
    np.testing.assert_allclose(y / largest, np.broadcast_to(want, y.shape) / largest, atol=1e-6)
