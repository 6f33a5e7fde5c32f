"""A profile is measured on the adapter, kept, and measured again when the file is damaged."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx.parser
import pytest

from engine.costs import DeviceProfile
from engine.ir import Graph
from engine.rates import CpuRates, GpuRates
from engine.runtime import calibrate
from engine.runtime.calibrate_lab import Chain, Lab, fastest_of_ns, less
from engine.runtime.device import Device, open_device
from engine.runtime.session import InferenceSession
from engine.target import Target

TYPICAL = DeviceProfile.builtin("lavapipe")


def fake_device(title: str = "A GPU, driver 1.2 (Vulkan)", *features: str) -> Any:
    target = dataclasses.replace(Target.baseline(), features=frozenset(features))
    info = SimpleNamespace(title=title, kind="CPU", is_software=True)
    return SimpleNamespace(info=info, target=target)


@pytest.fixture
def device() -> Device:
    return open_device()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the measurements, which take seconds; returns what was measured."""
    measured: list[str] = []

    def gpu(device: Any, profile: DeviceProfile) -> GpuRates:
        measured.append("gpu")
        return TYPICAL.gpu

    def cpu() -> CpuRates:
        measured.append("cpu")
        return TYPICAL.cpu

    monkeypatch.setattr(calibrate, "measure_gpu", gpu)
    monkeypatch.setattr(calibrate, "measure_cpu", cpu)
    return measured


@pytest.mark.gpu
@pytest.mark.slow
def test_measured_figures_are_plausible(device: Device, tmp_path: Path) -> None:
    found = calibrate.device_profile(device, folder=tmp_path)
    assert device.info.title in found.name and np.__version__ in found.name
    assert DeviceProfile.from_json(found.to_json()) == found
    assert calibrate.device_profile(device, folder=tmp_path) == found
    gpu, cpu = found.gpu, found.cpu
    assert 10**7 < gpu.bytes_per_s < 10**14
    assert 10**7 < gpu.fma_per_s < 10**15
    assert 10**2 < gpu.launch_ns < 10**8
    assert 0 < gpu.readback_ns <= gpu.download_latency_ns < 10**9
    assert 10**8 < cpu.flops_per_s < 10**14
    assert 10**8 < cpu.memory_bytes_per_s < 10**13
    assert 10**3 < cpu.call_ns < 10**8
    assert 10 < cpu.step_ns < 10**7
    assert cpu.flops_per_s > cpu.functions_per_s, "a product is faster than a function of floats"


@pytest.mark.gpu
def test_what_is_measured_computes_what_it_says(device: Device) -> None:
    """A rate is worth something only if the kernels do the work it is counted for."""
    chain = Chain.start(1, 4, 6, 6)
    chain.add("Conv", np.full((4, 1, 3, 3), 1.0, np.float32), group=4, pads=[1, 1, 1, 1])
    chain.add("Neg")
    graph = chain.graph()
    for lab in (Lab(device, TYPICAL), Lab(None, TYPICAL)):
        (y,) = lab.call(graph)()[0].values()  # type: ignore[index]
        assert y.shape == (1, 4, 6, 6)
        assert (y[0, 0, 0, 0], y[0, 3, 2, 2]) == (-4.0, -9.0)
    assert Lab(device, TYPICAL).work(graph).launches == 1


@pytest.mark.gpu
def test_a_node_can_be_kept_on_the_cpu(device: Device) -> None:
    chain = Chain.start(8).add("Floor").add("Neg").add("Floor")
    _, times = Lab(device, TYPICAL).call(chain.graph(), on_cpu=[chain.nodes[1].key])()  # type: ignore[misc]
    assert (times.dispatches, times.submits) == (2, 2)


def test_the_fastest_of_actions_in_turn_counts() -> None:
    clock = iter([0, 9, 10, 12, 20, 27, 30, 33, *range(100, 1000)])
    ns = fastest_of_ns([lambda: None, lambda: None], share_s=0.0, clock=lambda: next(clock))
    assert ns == [1, 1]
    assert less(100, 30, 20) == 50
    assert less(100, 99) == 10, "what is known never leaves nothing"


def test_noise_never_makes_a_rate_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(None, TYPICAL)
    calls: list[Graph] = []

    def call(graph: Graph, on_cpu: Any = ()) -> Callable[[], object]:
        calls.append(graph)
        return lambda: None

    monkeypatch.setattr(lab, "call", call)
    monkeypatch.setattr(lab, "times_of_ns", lambda *calls: [2000, 1000])
    graph = Chain.start(4).add("Neg").graph()
    assert lab.more_ns(graph, graph) == 50


def test_a_profile_is_measured_once(tmp_path: Path, counted: list[str]) -> None:
    folder = tmp_path / "new" / "folder"
    device = fake_device()
    first = calibrate.device_profile(device, folder=folder)
    again = calibrate.device_profile(device, folder=folder)
    assert first == again
    assert (first.gpu, first.cpu) == (TYPICAL.gpu, TYPICAL.cpu)
    assert counted == ["cpu", "gpu"]
    calibrate.device_profile(fake_device("another GPU"), folder=folder)
    calibrate.device_profile(fake_device("another GPU", "subgroups"), folder=folder)
    assert counted == ["cpu", "gpu", "gpu", "gpu"], "the CPU is the same beside every GPU"
    calibrate.device_profile(device, folder=folder, refresh=True)
    assert counted[4:] == ["cpu", "gpu"]


def test_the_figures_of_numpy_depend_on_its_threads(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate.device_profile(fake_device(), folder=tmp_path)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    assert "OPENBLAS_NUM_THREADS=7" in calibrate.cpu_title()
    calibrate.device_profile(fake_device(), folder=tmp_path)
    assert counted == ["cpu", "gpu", "cpu", "gpu"]


def test_without_a_gpu_nothing_is_measured(tmp_path: Path, counted: list[str]) -> None:
    assert calibrate.cpu_profile(folder=tmp_path) == DeviceProfile.builtin()
    calibrate.device_profile(fake_device(), folder=tmp_path)
    found = calibrate.cpu_profile(folder=tmp_path)
    assert (found.name, found.cpu) == (calibrate.cpu_title(), TYPICAL.cpu)
    assert counted == ["cpu", "gpu"]


def test_where_nothing_is_decided_nothing_is_measured(tmp_path: Path, counted: list[str]) -> None:
    for device in (fake_device(), fake_device("another", "subgroups")):
        found = calibrate.known_profile(device, folder=tmp_path)
        assert "not measured; as of" in found.name and found.sources
    assert counted == []
    wanted = calibrate.device_profile(fake_device(), folder=tmp_path)
    assert calibrate.known_profile(fake_device(), folder=tmp_path) == wanted
    assert calibrate.known_profile(fake_device("another"), folder=tmp_path).sources


@pytest.mark.gpu
def test_only_auto_measures(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[3] y) { y = Relu(x) }'
    )
    stages: tuple[tuple[str, list[str]], ...]
    stages = (("gpu", []), ("cpu", []), ("auto", ["cpu", "gpu"]))
    for device, made in stages:
        InferenceSession(model, device=device)
        assert counted == made


@pytest.mark.parametrize("content", [b"", b"{}", b'{"name": "x"}', b"\xff\xff", b"[1, 2]"])
def test_a_damaged_file_is_replaced(
    tmp_path: Path, counted: list[str], caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    wanted = calibrate.device_profile(fake_device(), folder=tmp_path)
    paths = sorted(tmp_path.iterdir())
    for path in paths:
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert calibrate.device_profile(fake_device(), folder=tmp_path) == wanted
    assert caplog.text.count("ignoring the device profile") == 2
    assert len(counted) == 4
    assert sorted(tmp_path.iterdir()) == paths, "nothing temporary is left"
    calibrate.device_profile(fake_device(), folder=tmp_path)
    assert len(counted) == 4


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, counted: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        found = calibrate.device_profile(fake_device(), folder=tmp_path / "file")
    assert found.gpu == TYPICAL.gpu
    assert "could not be kept" in caplog.text


def test_the_oldest_files_are_dropped(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "KEPT_FILES", 2)
    for index in range(4):
        calibrate.device_profile(fake_device(f"gpu {index}"), folder=tmp_path)
        for path in tmp_path.iterdir():
            if path.name.startswith(f"gpu-gpu-{index}"):
                os.utime(path, (index, index))
            elif path.name.startswith("cpu"):
                os.utime(path, (9, 9))
    names = sorted(path.name[:9] for path in tmp_path.iterdir() if path.name.startswith("gpu"))
    assert names == ["gpu-gpu-3"]


def test_the_default_folder_is_the_platform_s_cache(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    calibrate.device_profile(fake_device())
    assert len(list((tmp_path / "onnx-wgpu" / "profiles").glob("*.json"))) == 2
