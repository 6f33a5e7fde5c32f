"""Kernels compiled in threads before they are used, on one device or on several."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import DeviceError, ShaderError
from engine.runtime import compilers
from engine.runtime import device as device_module
from engine.runtime.compilers import Compilers
from engine.runtime.device import Device, choose_adapter
from engine.runtime.runner import Runner
from engine.runtime.session import InferenceSession
from engine.shader import Kernel
from engine.target import Target
from tests.runtime.models import DEEP, parse

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> Iterator[Device]:
    device = Device(choose_adapter(), Target.baseline())
    yield device
    device.close()


@pytest.fixture(scope="module")
def kernels() -> tuple[Kernel, ...]:
    with InferenceSession(parse(DEEP), device="gpu") as session:
        found = session.plan().kernels
    assert len(found) > 2
    assert any(k.repeats for k in found)
    return found


def compiled_ahead(device: Device, kernels: tuple[Kernel, ...]) -> None:
    """Compiles kernels as for a call that dispatches them all, and waits for the pipelines."""
    device.compile_ahead(kernels)
    for kernel in kernels:
        device.pipeline(kernel)


@dataclasses.dataclass
class Seen:
    """What devices did: pipelines made, submits, devices closed."""

    compiled: list[tuple[Device, str]] = dataclasses.field(default_factory=list)
    submits: list[Device] = dataclasses.field(default_factory=list)
    closed: list[Device] = dataclasses.field(default_factory=list)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen = Seen()
    compile_, submit, close = Device.compile, Device.submit, Device.close

    def watched_compile(self: Device, kernel: Kernel) -> Any:
        seen.compiled.append((self, kernel.key))
        return compile_(self, kernel)

    def watched_submit(self: Device, encoder: Any) -> None:
        seen.submits.append(self)
        submit(self, encoder)

    def watched_close(self: Device) -> None:
        seen.closed.append(self)
        close(self)

    monkeypatch.setattr(Device, "compile", watched_compile)
    monkeypatch.setattr(Device, "submit", watched_submit)
    monkeypatch.setattr(Device, "close", watched_close)
    return seen


def late(
    monkeypatch: pytest.MonkeyPatch, is_late: bool, cores: int = 2, slow_s: float = 0.0
) -> None:
    """Takes all drivers for such as compile at the first dispatch, or not; with so many cores.

    By default whatever they compile counts as slow.
    """
    monkeypatch.setattr(Device, "compiles_late", is_late)
    monkeypatch.setattr(compilers.os, "cpu_count", lambda: cores)
    for name in compilers.UNCACHED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(compilers, "SLOW_S", slow_s)


def unfinished() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("onnx-wgpu compiler")]


def settled() -> None:
    for thread in unfinished():
        thread.join()


@pytest.mark.parametrize("is_late", [False, True])
def test_kernels_compiled_ahead_are_those_that_are_used(
    device: Device,
    kernels: tuple[Kernel, ...],
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    is_late: bool,
) -> None:
    late(monkeypatch, is_late)
    device.compile_ahead((*kernels, *kernels))
    device.compile_ahead(kernels)
    found = [device.pipeline(kernel) for kernel in kernels]
    assert [p.kernel for p in found] == list(kernels)
    assert [device.pipeline(kernel) for kernel in kernels] == found
    mine = [key for where, key in seen.compiled if where is device]
    assert sorted(mine) == sorted(k.key for k in kernels)


@pytest.mark.parametrize("is_late", [False, True])
def test_an_error_of_a_kernel_compiled_ahead_comes_when_it_is_used(
    device: Device, kernels: tuple[Kernel, ...], monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    late(monkeypatch, is_late)
    good, bad, *_ = kernels
    bad = dataclasses.replace(bad, wgsl="fn main() { let a = nothing; }")
    device.compile_ahead([good, bad])
    assert device.pipeline(good).kernel is good
    for _ in range(2):
        with pytest.raises(ShaderError, match="nothing"):
            device.pipeline(bad)


def test_a_driver_that_compiles_early_is_given_nothing_to_dispatch(
    device: Device, kernels: tuple[Kernel, ...], seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    late(monkeypatch, False)
    compiled_ahead(device, kernels)
    assert not seen.submits
    assert {where for where, _ in seen.compiled} == {device}


def test_one_that_compiles_late_dispatches_each_kernel_once_on_one_of_the_devices(
    device: Device, kernels: tuple[Kernel, ...], seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    late(monkeypatch, True)
    monkeypatch.setattr(compilers, "TRIED_S", 60.0)  # all learn that the first was slow
    compiled_ahead(device, kernels)
    settled()
    assert len(seen.submits) == len(kernels)
    others = set(seen.submits) - {device}
    assert len(others) <= 1
    assert set(seen.closed) == {where for where, _ in seen.compiled} - {device} | others
    assert not device.lost


def test_where_the_drivers_cache_has_everything_no_other_device_is_made(
    device: Device, kernels: tuple[Kernel, ...], seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    late(monkeypatch, True, slow_s=60.0)
    monkeypatch.setattr(compilers, "TRIED_S", 60.0)  # all learn that the first was not slow
    compiled_ahead(device, kernels)
    assert 0 < len(seen.submits) <= compilers.MAX_QUICK
    assert {where for where, _ in seen.compiled} == {device}


@pytest.mark.parametrize("name", compilers.UNCACHED)
def test_without_the_drivers_cache_no_other_device_compiles(
    device: Device,
    kernels: tuple[Kernel, ...],
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    late(monkeypatch, True)
    monkeypatch.setenv(name, "true")
    compiled_ahead(device, kernels)
    assert seen.submits == [device] * len(kernels)


def test_kernels_that_may_not_be_used_are_not_dispatched(
    device: Device, kernels: tuple[Kernel, ...], seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    late(monkeypatch, True)
    device.compile_ahead(kernels[:1])
    device.compile_ahead(kernels[1:], used=False)
    for kernel in kernels:
        device.pipeline(kernel)
    assert len(seen.submits) == 1


def test_one_device_does_if_the_adapter_gives_no_other(
    device: Device, kernels: tuple[Kernel, ...], seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Device] = []

    def refuse(self: Device) -> Device:
        asked.append(self)
        raise DeviceError("one is enough")

    late(monkeypatch, True, cores=4)
    monkeypatch.setattr(Device, "another", refuse)
    device.compile_ahead(kernels)
    assert [device.pipeline(kernel).kernel for kernel in kernels] == list(kernels)
    assert set(asked) == set(seen.submits) == {device}


def test_a_further_device_that_is_lost_does_no_harm(
    device: Device, kernels: tuple[Kernel, ...], seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    another, made = Device.another, list[Device]()

    def lost(self: Device) -> Device:
        made.append(another(self))
        made[-1].wgpu.destroy()
        return made[-1]

    late(monkeypatch, True)
    monkeypatch.setattr(Device, "another", lost)
    device.compile_ahead(kernels)
    assert [device.pipeline(kernel).kernel for kernel in kernels] == list(kernels)
    assert len(made) == 1 and not device.lost


def test_the_longest_text_that_waits_is_compiled_first(
    device: Device, kernels: tuple[Kernel, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    late(monkeypatch, False, cores=1)
    begun, go_on = threading.Event(), threading.Event()
    order: list[Kernel] = []
    compile_ = Device.compile

    def held(self: Device, kernel: Kernel) -> Any:
        order.append(kernel)
        begun.set()
        assert go_on.wait(60)
        return compile_(self, kernel)

    monkeypatch.setattr(Device, "compile", held)
    first, *others = sorted(kernels, key=lambda k: len(k.wgsl))
    device.compile_ahead([first])
    assert begun.wait(60)
    device.compile_ahead(others)
    go_on.set()
    settled()
    assert order == [first, *reversed(others)]


def test_compilers_stay_while_more_kernels_may_come(
    device: Device, kernels: tuple[Kernel, ...], seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    late(monkeypatch, True)
    with device.compiling() as compile_soon:
        for kernel in kernels:
            compile_soon(kernel)
            device.pipeline(kernel)
            assert unfinished()
            assert not seen.closed
    settled()
    others = {where for where, _ in seen.compiled} - {device}
    assert set(seen.closed) == others
    assert len(others) <= 1


def test_threads_take_turns_quickly_only_while_kernels_are_compiled(
    device: Device, kernels: tuple[Kernel, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    late(monkeypatch, False)
    before = sys.getswitchinterval()
    inside: list[float] = []
    compile_ = Device.compile

    def watched(self: Device, kernel: Kernel) -> Any:
        inside.append(sys.getswitchinterval())
        return compile_(self, kernel)

    monkeypatch.setattr(Device, "compile", watched)
    compiled_ahead(device, kernels)
    settled()
    assert inside == pytest.approx([compilers.SWITCH_S] * len(kernels))
    assert sys.getswitchinterval() == before


MIXED = """mixed (float[n,m,6] x, float[n,6,m] w) => (float[n,m,m] y, float[n,m,6] z) {
  a = Sin(x)
  y = MatMul(a, w)
  z = Softmax(x)
}"""


def mixed() -> dict[str, Any]:
    chance = np.random.default_rng(0)
    return {
        "x": chance.standard_normal((2, 5, 6)).astype(np.float32),
        "w": chance.standard_normal((2, 6, 5)).astype(np.float32),
    }


def test_a_call_has_its_kernels_compiled_while_its_plan_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_module, "_open", {})  # a device that has no kernels yet
    early: list[str] = []
    ran: list[str] = []
    add, pipeline, planned = Compilers.add, Device.pipeline, Runner._planned

    def added(self: Compilers, kernel: Kernel, used: bool) -> Any:
        early.append(kernel.key)
        return add(self, kernel, used)

    def taken(self: Device, kernel: Kernel) -> Any:
        ran.append(kernel.key)
        return pipeline(self, kernel)

    def until_planned(self: Runner, *given: Any) -> Any:
        found = planned(self, *given)
        monkeypatch.setattr(Compilers, "add", add)
        return found

    monkeypatch.setattr(Compilers, "add", added)
    monkeypatch.setattr(Device, "pipeline", taken)
    monkeypatch.setattr(Runner, "_planned", until_planned)
    with InferenceSession(parse(MIXED), device="gpu") as session:
        feeds = mixed()
        y, _ = session.run(None, feeds)
        assert len(session.plan().kernels) > len(set(ran)) >= 2
    np.testing.assert_allclose(y, np.sin(feeds["x"]) @ feeds["w"], rtol=1e-4, atol=1e-5)
    assert set(early) >= set(ran)


def test_a_plan_that_is_only_looked_at_compiles_nothing(seen: Seen) -> None:
    with InferenceSession(parse(MIXED), device="gpu") as session:
        assert session.plan(mixed()).kernels
    assert not seen.compiled


POOLED = """
<ir_version: 8, opset_import: ["" : 18]>
net (float[1,8,h,w] x) => (float[1,8,ho,wo] y) { y = MaxPool <kernel_shape = [3, 3]>(x) }
"""
NORMED = """
<ir_version: 8, opset_import: ["" : 18]>
net (float[8,n] x, float[n] scale) => (float[8,n] y) { y = LayerNormalization(x, scale) }
"""
RUN = """
import sys
import numpy as np, onnx
import engine
session = engine.InferenceSession(onnx.parser.parse_model(sys.argv[1]), device="gpu")
inputs = session.get_inputs()
for size in map(int, sys.argv[2:]):
    shapes = {i.name: [d if isinstance(d, int) else size for d in i.shape] for i in inputs}
    session.run(None, {name: np.ones(shape, np.float32) for name, shape in shapes.items()})
"""


@pytest.mark.parametrize("model", [POOLED, NORMED], ids=["pool", "norm"])
def test_kernels_are_compiled_once_whatever_their_params(
    device: Device, tmp_path: Path, model: str
) -> None:
    """Compilers dispatch them before it is known what for, and calls for many sizes."""
    if not device.compiles_late:
        pytest.skip("shaders in this driver's cache cannot be counted")
    own = {"MESA_SHADER_CACHE_DIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "plans")}
    subprocess.run(
        [sys.executable, "-c", RUN, model, "16", "24", "32"],
        env={**os.environ, **own},
        check=True,
        timeout=120,
    )
    folder = tmp_path / "mesa_shader_cache"
    assert sum(path.is_file() for path in folder.rglob("*") if path.parent != folder) == 1
