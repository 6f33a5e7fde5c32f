"""Pytest settings that every test shares: the `gpu` and `long` markers and hypothesis profiles."""

from __future__ import annotations

import functools
import os
import re

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=20, database=None)
settings.register_profile("long", deadline=None, max_examples=1000)
settings.load_profile("ci")

GPU_BACKENDS = frozenset({"Vulkan", "Metal", "D3D12"})


@functools.cache
def gpu_adapters() -> tuple[str, ...]:
    """Names of the adapters that kernels can run on (OpenGL ones cannot)."""
    import wgpu

    adapters = wgpu.gpu.enumerate_adapters_sync()
    return tuple(a.info["device"] for a in adapters if a.info["backend_type"] in GPU_BACKENDS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave `long` tests out unless the -m expression speaks about them."""
    if re.search(r"\blong\b", config.getoption("markexpr")):
        return
    long_ones = [item for item in items if item.get_closest_marker("long")]
    if long_ones:
        config.hook.pytest_deselected(items=long_ones)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a `gpu` test where no adapter is, or fail it where one is demanded."""
    if item.get_closest_marker("gpu") is None or gpu_adapters():
        return
    reason = "no Vulkan, Metal or D3D12 adapter (software Vulkan: Debian's mesa-vulkan-drivers)"
    if os.environ.get("ENGINE_REQUIRE_ADAPTER") == "1":
        pytest.fail(f"{reason}, and ENGINE_REQUIRE_ADAPTER=1 demands one", pytrace=False)
    pytest.skip(reason)
