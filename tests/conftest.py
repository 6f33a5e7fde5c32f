"""Pytest settings that every test shares: markers, hypothesis profiles, the record of kernels."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from engine.runtime import targets
from tests.portability.record import RECORDER

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=20, database=None)
settings.register_profile("long", deadline=None, max_examples=1000)
settings.load_profile("ci")

os.environ.setdefault("ENGINE_TARGET", "baseline")
os.environ.setdefault("ENGINE_CACHE", "off")
os.environ.setdefault("ENGINE_TUNING", "off")

GPU_BACKENDS = frozenset({"Vulkan", "Metal", "D3D12"})


@functools.cache
def gpu_adapters() -> tuple[str, ...]:
    """Names of the adapters that kernels can run on (OpenGL ones cannot)."""
    import wgpu

    adapters = wgpu.gpu.enumerate_adapters_sync()
    return tuple(a.info["device"] for a in adapters if a.info["backend_type"] in GPU_BACKENDS)


def pytest_configure(config: pytest.Config) -> None:
    """Note the kernels that the tests render, for those of `tests/portability`.

    Kernels are chosen as for a GPU, even where a CPU plays one: tests of those that suit a CPU make
    their own `Target`.
    """
    patch = pytest.MonkeyPatch()
    RECORDER.install(patch)
    patch.setattr(targets, "is_software", lambda kind: False)
    config.add_cleanup(patch.undo)


@pytest.fixture
def whole_run(request: pytest.FixtureRequest) -> bool:
    """Whether nothing but long tests was left out of this run."""
    config = request.config
    everywhere = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return everywhere and not config.getoption("keyword") and not config.getoption("markexpr")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes the snapshots in `tests/golden` anew instead of comparing."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the snapshot of a name in `tests/golden`."""
    folder = Path(__file__).parent / "golden"

    def check(name: str, text: str) -> None:
        path = folder / name
        if request.config.getoption("--update-golden"):
            folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"no snapshot {name}: run pytest with --update-golden"
        assert text == path.read_text(encoding="utf-8"), f"{name} differs: see --update-golden"

    return check


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run `tests/portability` last; leave `long` tests out unless -m speaks about them."""
    items.sort(key=lambda item: item.path.parent.name == "portability")
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
    if os.environ.get("ENGINE_REQUIRE_GPU") == "1":
        pytest.fail(f"{reason}, and ENGINE_REQUIRE_GPU=1 demands one", pytrace=False)
    pytest.skip(reason)
