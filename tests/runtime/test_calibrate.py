"""A profile is measured on the adapter, kept, and measured again when the file is damaged."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.costs import DeviceProfile
from engine.runtime import calibrate

TITLE = "A GPU, driver 1.2 (Vulkan)"
SOME = dataclasses.replace(DeviceProfile.builtin("lavapipe"), name=TITLE)


@pytest.fixture(scope="module")
def device() -> Any:
    import wgpu

    adapters = wgpu.gpu.enumerate_adapters_sync()
    usable = [a for a in adapters if a.info["backend_type"] in ("Vulkan", "Metal", "D3D12")]
    device = usable[0].request_device_sync()
    yield device
    device.destroy()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the measurement, which takes a second; returns the titles that it was called for."""
    titles: list[str] = []

    def measure(device: object, title: str) -> DeviceProfile:
        titles.append(title)
        return dataclasses.replace(SOME, name=title)

    monkeypatch.setattr(calibrate, "measure", measure)
    return titles


@pytest.mark.gpu
def test_measured_figures_are_plausible(device: Any) -> None:
    found = calibrate.measure(device, TITLE)
    assert found.name == TITLE
    assert DeviceProfile.from_json(found.to_json()) == found
    assert 10**6 < found.gpu_bytes_per_s < 10**14
    assert 10**7 < found.gpu_flops_per_s < 10**15
    assert 10**7 < found.cpu_flops_per_s < 10**14
    assert 10**2 < found.launch_ns < 10**8
    assert 10**3 < found.submit_ns < 10**9
    assert 0 < found.cpu_op_ns < 10**7
    assert 0 < found.download_latency_ns < 10**9


@pytest.mark.gpu
def test_the_product_kernel_multiplies(device: Any) -> None:
    """A rate is worth something only if the kernel does the work it is counted for."""
    bench = calibrate._Bench(device)
    try:
        size = calibrate._MATRIX
        x = np.random.default_rng(1).standard_normal((size, size), np.float32)
        device.queue.write_buffer(bench.buffers[0], 0, x)
        y = bench._run(bench.product, bench.buffers, 1, size // 8, x.nbytes)
        np.testing.assert_allclose(y.reshape(size, size), x @ x, rtol=1e-4, atol=1e-3)
        y = bench._run(bench.scale, bench.buffers, 1, calibrate._LARGE // 16 // 64, x.nbytes)
        np.testing.assert_allclose(y.reshape(size, size), x * 0.5 + 1, rtol=1e-6)
    finally:
        bench.close()


def test_a_profile_is_measured_once(tmp_path: Path, counted: list[str]) -> None:
    first = calibrate.device_profile(None, TITLE, folder=tmp_path / "new" / "folder")
    again = calibrate.device_profile(None, TITLE, folder=tmp_path / "new" / "folder")
    assert first == again == SOME
    assert counted == [TITLE]
    calibrate.device_profile(None, TITLE + " 2", folder=tmp_path / "new" / "folder")
    calibrate.device_profile(None, TITLE, folder=tmp_path / "new" / "folder", refresh=True)
    assert counted == [TITLE, TITLE + " 2", TITLE]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"name": "x"}', b"\xff\xff", b"[1, 2]"])
def test_a_damaged_file_is_replaced(
    tmp_path: Path, counted: list[str], caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    calibrate.device_profile(None, TITLE, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert calibrate.device_profile(None, TITLE, folder=tmp_path) == SOME
    assert "ignoring the device profile" in caplog.text
    assert len(counted) == 2
    assert DeviceProfile.load(path) == SOME
    assert list(tmp_path.iterdir()) == [path], "nothing temporary is left"


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, counted: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        assert calibrate.device_profile(None, TITLE, folder=tmp_path / "file") == SOME
    assert "could not be kept" in caplog.text


def test_the_oldest_files_are_dropped(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "KEPT_FILES", 2)
    for index in range(4):
        calibrate.device_profile(None, f"gpu {index}", folder=tmp_path)
        for path in tmp_path.iterdir():
            if path.name.startswith(f"gpu-{index}"):
                os.utime(path, (index, index))
    names = sorted(path.name[:5] for path in tmp_path.iterdir())
    assert names == ["gpu-2", "gpu-3"]


def test_the_default_folder_is_the_platform_s_cache(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    calibrate.device_profile(None, TITLE)
    assert len(list((tmp_path / "onnx-wgpu" / "profiles").glob("*.json"))) == 1
