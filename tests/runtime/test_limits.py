"""Limits, and what happens at them: nodes move to the CPU with the reason, errors are typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import wgpu

from engine.errors import DeviceError, PlanError
from engine.explain import NodeRow
from engine.rates import DeviceProfile
from engine.runtime import recorder as recorder_module
from engine.runtime.device import Device, open_device
from engine.runtime.recorder import UNMEASURED
from engine.runtime.session import InferenceSession
from engine.target import Target
from tests.runtime.models import noise, parse

pytestmark = pytest.mark.gpu

SUM = """g (float[n] x) => (float[n] y, float s) {
  a = Exp(x)
  y = Neg(a)
  s = ReduceSum <keepdims = 0> (a)
}"""


def check_sum(session: InferenceSession, n: int) -> None:
    x = noise(n)
    y, s = session.run(None, {"x": x})
    np.testing.assert_allclose(y, -np.exp(x), rtol=1e-5)
    np.testing.assert_allclose(s, np.exp(x).sum(), rtol=1e-4)


def rows(session: InferenceSession) -> Mapping[str, NodeRow]:
    return {r.op_type: r for r in session.explain().nodes}


def test_the_device_has_exactly_the_limits_of_the_target() -> None:
    for target in (Target.baseline(), Target(max_storage_buffer_binding_size=1 << 20)):
        device = open_device(None, target)
        for name in Target.limit_names():
            assert device.wgpu.limits[name.replace("_", "-")] == getattr(target, name), name
        assert set(device.wgpu.features) <= target.features | {"timestamp-query"}
    with InferenceSession(parse(SUM), device="gpu") as session:
        assert session._device is open_device()


def test_a_value_over_the_binding_limit_goes_to_the_cpu_and_comes_back() -> None:
    target = Target(max_storage_buffer_binding_size=64 << 10)
    with InferenceSession(parse(SUM), device="gpu", target=target) as session:
        for n, device in ((100, "gpu"), (40_000, "cpu"), (16_384, "gpu"), (16_385, "cpu")):
            check_sum(session, n)
            found = rows(session)
            assert {r.device for r in found.values()} == {device}
            if device == "cpu":
                assert "takes at most 0.1 MiB, which is not so at n=" in found["Exp"].reason
        assert session.plans_made == 2


def test_a_fixed_size_over_the_binding_limit_is_refused_when_planning() -> None:
    target = Target(max_storage_buffer_binding_size=64 << 10)
    model = parse(SUM.replace("[n]", "[20000]"))
    with InferenceSession(model, device="gpu", target=target) as session:
        check_sum(session, 20_000)
        assert "more than the 0.1 MiB that one binding may hold" in rows(session)["Exp"].reason


def test_a_size_that_data_decide_over_the_binding_limit() -> None:
    model = parse(
        """g (float[n] x, int64[1] times) => (float[m] y) {
      a = Abs(x) t = Tile(a, times) y = Neg(t)
    }"""
    )
    target = Target(max_storage_buffer_binding_size=64 << 10)
    with InferenceSession(model, device="gpu", target=target) as session:
        for times, device in ((2, "gpu"), (30, "cpu"), (3, "gpu")):
            x = noise(1000)
            (y,) = session.run(None, {"x": x, "times": np.array([times])})
            np.testing.assert_array_equal(y, -np.tile(np.abs(x), times))
            row = rows(session)["Neg"]
            assert row.device == device
            assert device == "gpu" or "takes at most 0.1 MiB, which is not so at" in row.reason


def test_a_grid_over_the_limit_goes_to_the_cpu() -> None:
    target = Target(max_compute_workgroups_per_dimension=4)
    with InferenceSession(parse(SUM), device="gpu", target=target) as session:
        check_sum(session, 64)
        assert rows(session)["Exp"].device == "gpu"
        check_sum(session, 100_000)
        row = rows(session)["Exp"]
        assert row.device == "cpu"
        assert "workgroups are needed, a dimension holds 4" in row.reason
        check_sum(session, 65)
        assert rows(session)["Exp"].device == "gpu"


def test_loops_over_the_limit_go_to_the_cpu() -> None:
    model = parse("g (float[k,n] x) => (float[k,n] y) { y = Hardmax <axis = 0> (x) }")
    with InferenceSession(model, device="gpu", target=Target(max_loop_trips=300)) as session:
        for k, device in ((8, "gpu"), (5000, "cpu"), (16, "gpu")):
            x = noise(k, 3)
            (y,) = session.run(None, {"x": x})
            np.testing.assert_array_equal(y, x == x.max(axis=0))
            row = rows(session)["Hardmax"]
            assert row.device == device
            assert device == "gpu" or "300" in row.reason


def test_workgroup_memory_over_the_limit_goes_to_the_cpu() -> None:
    target = Target(max_compute_workgroup_storage_size=64)
    model = parse("g (float[m,n] x) => (float[m,n] y) { a = Exp(x) y = Softmax(a) }")
    with InferenceSession(model, device="gpu", target=target) as session:
        x = noise(3, 2000)
        (y,) = session.run(None, {"x": x})
        e = np.exp(np.exp(x) - np.exp(x).max(axis=1, keepdims=True))
        np.testing.assert_allclose(y, e / e.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-7)
        kernels = session.plan().kernels
        assert all(k.workgroup_nbytes <= 64 for k in kernels)


def test_int64_out_of_range_goes_to_the_cpu_and_comes_back() -> None:
    model = parse("g (int64[n] a, int64[n] b) => (int64[n] y) { s = Max(a, b) y = Identity(s) }")
    small, large = np.array([3, -7, 2**28]), np.array([2**40, -(2**31) - 1, 5])
    with InferenceSession(model, device="gpu") as session:
        for a, b, device in (
            (small, -small, "gpu"),
            (large, small, "cpu"),
            (small, small, "gpu"),
            (small, large, "cpu"),
        ):
            (y,) = session.run(None, {"a": a, "b": b})
            np.testing.assert_array_equal(y, np.maximum(a, b))
            assert {place for _, place in session.executed()} == {device}
        assert session.plans_made <= 3


def test_a_batch_is_split_where_it_would_run_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = " ".join(f"t{i} = Softmax(s{i}) s{i + 1} = Transpose(t{i})" for i in range(24))
    model = parse(f"deep (float[m,n] s0) => (float[p,q] s24) {{ {layers} }}")
    x = noise(30, 20)
    typical = DeviceProfile.builtin()
    measured = replace(typical, sources={})
    with InferenceSession(model, device="gpu", profile=measured) as session:
        (want,) = session.run(None, {"s0": x})
        assert session.times.submits == 1
        assert session.times.dispatches >= 24
        plan = session.plan()
        bound = session._runner.prepared[0].executor.binder.bind(0, {"m": 30, "n": 20})
        ns = [bound.chosen[i].predicted_ns for i in range(len(plan.dispatches))]
        assert all(n >= plan.profile.gpu.launch_ns for n in ns)
    for limit, least, most in ((3 * max(ns), 24 // 3, 24 // 2), (1, len(ns), len(ns))):
        for profile, factor in ((measured, 1), (typical, UNMEASURED)):
            monkeypatch.setattr(recorder_module, "MAX_SUBMIT_NS", limit * factor)
            with InferenceSession(model, device="gpu", profile=profile) as session:
                (got,) = session.run(None, {"s0": x})
                assert least <= session.times.submits <= most
                assert session.times.dispatches == len(ns)
                np.testing.assert_array_equal(got, want)


def test_submits_grow_where_calls_are_faster_than_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = " ".join(f"t{i} = Softmax(s{i}) s{i + 1} = Transpose(t{i})" for i in range(24))
    model = parse(f"deep (float[m,n] s0) => (float[p,q] s24, float[p,q] t3) {{ {layers} }}")
    x = noise(30, 20)
    monkeypatch.setattr(recorder_module, "MAX_SUBMIT_NS", 10_000_000_000)
    typical = DeviceProfile.builtin()
    slow = replace(typical, gpu=replace(typical.gpu, launch_ns=1_000_000_000), sources={})
    with InferenceSession(model, device="gpu", profile=slow) as session:
        (early,) = session.run(["t3"], {"s0": x})  # of the rest nobody knows when it ends
        with session.hollow():
            session.run(None, {"s0": x})
        want = session.run(None, {"s0": x})
        assert session.times.submits >= 3
        got = session.run(None, {"s0": x})
        assert session.times.submits == 1
        session.run(None, {"s0": noise(29, 20)})
        assert session.times.submits >= 3
        session.run(None, {"s0": x})
        assert session.times.submits == 1
    for a, b in zip((*got, early), (*want, want[1]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_larger_sizes_are_predicted_to_take_longer() -> None:
    model = parse("g (float[m,k] a, float[k,n] b) => (float[m,n] y) { y = MatMul(a, b) }")
    with InferenceSession(model, device="gpu") as session:
        session.run(None, {"a": noise(2, 3), "b": noise(3, 2)})
        binder = session._runner.prepared[0].executor.binder
        rate = 2 * session.plan().profile.gpu.fma_per_s
        small = binder.bind(0, {"m": 64, "k": 64, "n": 64}).chosen[0].predicted_ns
        large = binder.bind(0, {"m": 2048, "k": 2048, "n": 2048}).chosen[0].predicted_ns
    assert large - small >= 0.99e9 * 2 * (2048**3 - 64**3) / rate


@pytest.fixture
def session() -> Any:
    with InferenceSession(parse(SUM), device="gpu") as session:
        check_sum(session, 30)
        yield session


def test_a_device_lost_between_calls(session: InferenceSession) -> None:
    lost = session._device
    assert lost is not None
    lost.wgpu.destroy()
    with pytest.raises(DeviceError, match="lost"):
        check_sum(session, 30)
    check_sum(session, 30)
    assert session._device is not lost
    assert session._device is open_device()
    with InferenceSession(parse(SUM), device="gpu") as other:
        check_sum(other, 7)
        assert other._device is session._device


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_device_lost_during_a_call(
    session: InferenceSession, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = Device.submit

    def broken(self: Device, encoder: Any) -> None:
        monkeypatch.undo()
        if when == "before":
            self.wgpu.destroy()
        submit(self, encoder)
        if when == "after":
            self.wgpu.destroy()

    monkeypatch.setattr(Device, "submit", broken)
    with pytest.raises(DeviceError):
        check_sum(session, 30)
    if session._device is not None and not session._device.lost:
        with pytest.raises(DeviceError, match="lost"):
            check_sum(session, 30)
    check_sum(session, 30)


def test_an_error_of_wgpu_in_mid_call_is_typed(
    session: InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session._device is not None

    def broken(device: Any) -> Any:
        raise wgpu.GPUValidationError("Parent device is lost")

    with monkeypatch.context() as patch:
        patch.setattr(session._device.calls, "encoder", broken)
        with pytest.raises(DeviceError, match="was lost: a call"):
            check_sum(session, 30)
    check_sum(session, 30)


def test_a_closed_device_makes_way_for_a_new_one(session: InferenceSession) -> None:
    assert session._device is not None
    session._device.close()
    check_sum(session, 30)


def test_full_memory_is_typed_and_the_next_call_works(
    session: InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session._device is not None
    device = session._device.wgpu

    def full(**options: Any) -> Any:
        raise wgpu.GPUOutOfMemoryError("Not enough memory left.")

    monkeypatch.setattr(device, "create_buffer", full)
    with pytest.raises(DeviceError, match=r"memory of .* is full: a buffer of \d+ bytes"):
        check_sum(session, 50_000)
    check_sum(session, 30)
    monkeypatch.undo()
    check_sum(session, 50_000)


def test_a_buffer_over_the_limit_is_refused_before_it_is_made() -> None:
    device = open_device()
    with pytest.raises(DeviceError, match=r"'big' needs 268435457 bytes, and the device allows"):
        device.buffer("big", (256 << 20) + 1)


def test_a_shader_that_the_driver_refuses_shows_its_text(session: InferenceSession) -> None:
    from engine.errors import ShaderError

    assert session._device is not None
    kernel = replace(session.plan().kernels[0], wgsl="fn main() {\n  let a = nothing;\n}\n")
    with pytest.raises(ShaderError, match=r"\n   \d   let a = nothing;\n"):
        session._device.pipeline(kernel)
    check_sum(session, 30)


def test_a_limit_that_no_placement_helps_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.checks import LimitError

    with InferenceSession(parse(SUM), device="gpu") as session:
        runner = session._runner

        def broken(*args: Any, **options: Any) -> Any:
            raise LimitError("a limit of the test", ("a",))

        monkeypatch.setattr("engine.runtime.runner.Executor.run", broken)
        with pytest.raises(PlanError, match="a limit of the test"):
            session.run(None, {"x": noise(3)})
        assert runner.compiled == 2
