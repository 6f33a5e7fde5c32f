"""Values are read and written where kernels left them, if GPU and CPU share their memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import wgpu

from engine import schedule as tasks
from engine.ir import Array
from engine.runtime import device as device_module
from engine.runtime import native, transfers
from engine.runtime.device import Device, adapters, choose_adapter, open_device
from engine.runtime.session import InferenceSession
from engine.runtime.targets import MAPPABLE, SHARING
from engine.target import Target
from tests.runtime.models import parse

pytestmark = pytest.mark.gpu

SEVERAL = """g (float[n,m] x, float[m,m] w)
    => (float[n,m] a, float[n,m] b, float[n,m] c, int64[k] d) {
  a = Softmax(x)
  t = MatMul(a, w)
  b = Softmax(t)
  u = CumSum(b, zero)
  v = Softmax(u)
  c = MatMul(v, w)
  flat = Reshape(c, all)
  d0 = NonZero(flat)
  d = Reshape(d0, all)
}"""


def model() -> Any:
    constants = "<int64 zero = {0}, int64[1] all = {-1}>"
    return parse(SEVERAL.replace(") {", f") {constants} {{", 1))


def feeds(n: int, m: int) -> dict[str, Array]:
    rng = np.random.default_rng(n)
    return {k: rng.random(s).astype(np.float32) for k, s in (("x", (n, m)), ("w", (m, m)))}


@pytest.fixture
def mappable() -> Target:
    info = choose_adapter()
    if MAPPABLE not in info.features:
        pytest.skip("buffers that kernels use cannot be mapped here")
    return replace(Target.baseline(), mappable=True)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the values that go through staging buffers, and "write" for each queued write."""
    found: list[str] = []
    staging, write = transfers.Transfers.staging, Device.write

    def counted(self: Any, device: Device, name: str, nbytes: int) -> Any:
        found.append(name)
        return staging(self, device, name, nbytes)

    def written(self: Device, buffer: Any, data: Any, offset: int = 0) -> None:
        found.append("write")
        write(self, buffer, data, offset)

    monkeypatch.setattr(transfers.Transfers, "staging", counted)
    monkeypatch.setattr(Device, "write", written)
    yield found


@pytest.mark.parametrize("way", ["native", "python"])
def test_both_ways_give_equal_bits(
    way: str, mappable: Target, copies: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(native.VARIABLE, way)
    native.calls.cache_clear()
    monkeypatch.setattr(device_module, "_open", {})
    monkeypatch.setattr(transfers, "MIN_WRITE_NBYTES", 1000)
    with (
        InferenceSession(model(), device="gpu", target=mappable) as shared,
        InferenceSession(model(), device="gpu", target=Target.baseline()) as staged,
    ):
        for n, m in ((3, 5), (40, 60), (2, 7), (40, 60)):
            given = feeds(n, m)
            want = staged.run(None, given)
            assert {"a", "b"} <= set(copies)
            writes = copies.count("write")
            assert writes >= 2
            copies.clear()
            got = shared.run(None, given)
            for a, b in zip(got, want, strict=True):
                assert a.tobytes() == b.tobytes()
            assert not {"a", "b"} & set(copies)
            if n == 40:
                assert copies.count("write") <= writes - 2, "both inputs are written in place"
            copies.clear()
        kept = shared.run(None, given, outputs_on_device=["a", "c"])
        for a, b in zip(kept, want, strict=True):
            array = a if isinstance(a, np.ndarray) else a.numpy()
            assert array.tobytes() == b.tobytes()
        (again,) = shared.run(["b"], {**given, "x": kept[0]})
        np.testing.assert_array_equal(again, staged.run(["b"], {**given, "x": want[0]})[0])
    native.calls.cache_clear()


def test_slots_that_are_mapped_say_so(mappable: Target) -> None:
    with InferenceSession(model(), device="gpu", target=mappable) as session:
        session.run(None, feeds(3, 5))
        recorder = session._runner.prepared[0].executor.recorder
        plan = session.plan()
        for name in recorder.transfers.read:
            buffer = recorder._slots[plan.memory.slot_of[name]]
            assert buffer.usage & wgpu.BufferUsage.MAP_READ
        assert recorder.transfers.read and recorder.transfers.written == {"x", "w"}
        unmapped = [s for s in range(len(recorder._slots)) if s not in recorder.transfers.usage]
        assert all(
            not recorder._slots[s].usage & (wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.MAP_WRITE)
            for s in unmapped
            if recorder._slots[s] is not None
        )


def test_a_slot_that_is_used_again_before_the_wait_is_not_read_in_place() -> None:
    with InferenceSession(model(), device="gpu", target=Target.baseline()) as session:
        plan = session.plan(feeds(3, 5))
    downloads = [s.value for s in plan.steps if isinstance(s, tasks.Download)]
    assert transfers._readable(plan) == set(downloads)
    first = next(i for i, s in enumerate(plan.steps) if isinstance(s, tasks.Download))
    name = plan.steps[first].value  # type: ignore[union-attr]
    steps = (*plan.steps[: first + 1], tasks.Upload(name), *plan.steps[first + 1 :])
    assert transfers._readable(replace(plan, steps=steps)) == set(downloads) - {name}
    waits = tuple(s for s in plan.steps if not isinstance(s, tasks.Wait))
    assert transfers._readable(replace(plan, steps=waits)) == set()


def test_what_is_uploaded_after_a_submit_is_not_written_in_place() -> None:
    with InferenceSession(model(), device="gpu", target=Target.baseline()) as session:
        plan = session.plan(feeds(3, 5))
    assert transfers._writable(plan) == {"x", "w"}
    late = replace(plan, steps=(tasks.Submit(), *plan.steps))
    assert transfers._writable(late) == set()


def test_the_baseline_maps_nothing_and_shared_memory_is_asked_for() -> None:
    assert not open_device(target="baseline").target.mappable
    for info in adapters():
        offered = MAPPABLE in info.features and info.kind in SHARING
        device = open_device(info.index, "adapter")
        assert device.target.mappable == offered == (MAPPABLE in device.wgpu.features)
