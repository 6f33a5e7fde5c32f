"""The steps that every call repeats, through wgpu's C library and through its Python API."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

from engine.errors import DeviceError
from engine.runtime import cache, loading, native
from engine.runtime import device as device_module
from engine.runtime.device import READBACK, STORAGE, Device, choose_adapter
from engine.runtime.session import InferenceSession
from engine.target import Target
from tests.runtime.models import DEEP, parse

pytestmark = pytest.mark.gpu


def shapes(n: int) -> dict[str, tuple[int, ...]]:
    return {"x": (n, 5), "s": (n, 2, 4), "w": (1, 1024, 4), "r": (1, 1024, 256)}


@pytest.fixture(params=["native", "python"])
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Each way to call wgpu, as all new devices use it."""
    monkeypatch.setenv(native.VARIABLE, request.param)
    native.calls.cache_clear()
    yield native.calls()
    native.calls.cache_clear()


@pytest.fixture
def device(calls: Any) -> Iterator[Device]:
    device = Device(choose_adapter(), Target.baseline())
    assert device.calls is calls
    yield device
    device.close()


def test_each_way_is_what_it_says(calls: Any, request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params["calls"]
    assert type(calls) is {"native": native.NativeCalls, "python": native.PythonCalls}[kind]


def test_bytes_are_written_and_read(device: Device) -> None:
    import wgpu

    upload = device.buffer("up", 64, wgpu.BufferUsage.MAP_WRITE | wgpu.BufferUsage.COPY_SRC)
    middle, readback = device.buffer("middle", 64, STORAGE), device.buffer("down", 64, READBACK)
    for sent in (np.arange(64, dtype=np.uint8), np.full(64, 7, np.uint8)):
        with device.mapped(upload, 64, "the test", write=True) as words:
            words[:] = sent
        encoder = device.wgpu.create_command_encoder()
        encoder.copy_buffer_to_buffer(upload, 0, middle, 0, 64)
        encoder.copy_buffer_to_buffer(middle, 0, readback, 0, 64)
        device.submit(encoder)
        with device.mapped(readback, 64, "the test") as words:
            np.testing.assert_array_equal(words, sent)


def test_a_buffer_that_cannot_be_mapped_is_a_typed_error(device: Device) -> None:
    buffer = device.buffer("plain", 64, STORAGE)
    with (
        pytest.raises(DeviceError, match=r"refused: reading nothing: "),
        device.mapped(buffer, 64, "reading nothing"),
    ):
        pass
    assert not device.lost


def test_a_lost_device_is_noticed_when_a_buffer_is_mapped(device: Device) -> None:
    buffer = device.buffer("down", 64, READBACK)
    device.wgpu.destroy()
    with pytest.raises(DeviceError, match="lost"), device.mapped(buffer, 64, "reading"):
        pass
    assert device.lost


def test_an_error_in_a_block_leaves_the_buffer_unmapped(device: Device) -> None:
    buffer = device.buffer("down", 64, READBACK)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), device.mapped(buffer, 64, "reading"):
            _ = 1 // 0


def test_a_wrong_command_is_reported_when_the_encoder_is_finished(device: Device) -> None:
    module = device.wgpu.create_shader_module(code="@compute @workgroup_size(1) fn main() {}")
    pipeline = device.wgpu.create_compute_pipeline(
        layout=device.wgpu.create_pipeline_layout(bind_group_layouts=[]),
        compute={"module": module, "entry_point": "main"},
    )
    layout = device.wgpu.create_bind_group_layout(entries=[])
    group = device.wgpu.create_bind_group(layout=layout, entries=[])
    encoder = device.wgpu.create_command_encoder()
    device.calls.record(encoder, [device.calls.command(pipeline, group, (65536, 1, 1), None)])
    with pytest.raises(DeviceError, match=r"(?s)refused: a submit.*65536"):
        device.submit(encoder)
    assert not device.lost


def test_sessions_compute_whichever_way_is_used(
    calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several bindings in turn, kernels that repeat, and values that stay on the device."""
    monkeypatch.setattr(device_module, "_open", {})
    rng = np.random.default_rng(5)
    with InferenceSession(parse(DEEP), device="gpu", require_gpu=True) as session:
        assert session._device is not None and session._device.calls is calls
        for n in (3, 9, 3):
            feeds = {k: rng.random(v).astype(np.float32) for k, v in shapes(n).items()}
            want = InferenceSession(parse(DEEP), device="cpu").run(None, feeds)
            for kept in ((), ("y", "h")):
                got = session.run(None, feeds, outputs_on_device=kept)
                for a, b in zip(got, want, strict=True):
                    array = a.numpy() if kept else a
                    np.testing.assert_allclose(array, b, rtol=1e-4, atol=1e-5)
            held = session.run(["y"], feeds, outputs_on_device=["y"])[0]
            (again,) = session.run(["y"], {**feeds, "x": held})
            (exact,) = InferenceSession(parse(DEEP), device="cpu").run(
                ["y"], {**feeds, "x": want[0]}
            )
            np.testing.assert_allclose(again, exact, rtol=1e-4, atol=1e-5)
        assert any(k.repeats for k in session.plan().kernels)


def test_hollow_calls_leave_out_what_kernels_do(
    calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_module, "_open", {})
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> '
        "g (float[n,5] x) => (float[n,5] y) { a = Softmax(x)  y = CumSum(a, i) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0), "i"))
    x = np.random.default_rng(0).random((3, 5), np.float32)
    (right,) = InferenceSession(model, device="cpu").run(None, {"x": x})
    with InferenceSession(model, device="gpu", require_gpu=True) as session:
        session.run(None, {"x": x})
        with session.hollow():
            for _ in range(2):
                (found,) = session.run(None, {"x": x})
                assert found.shape == right.shape and not np.allclose(found, right)
                assert session.times.dispatches == len(session.plan().dispatches) >= 2
            assert session._device is not None
            assert session._device.calls is calls, "other sessions compute meanwhile"
        np.testing.assert_allclose(session.run(None, {"x": x})[0], right, rtol=1e-5)


def test_a_parsed_type_is_the_one_that_cffi_finds() -> None:
    from wgpu.backends.wgpu_native import ffi

    loading.parse_types(ffi)
    for text in loading._TYPES:
        together = ffi._parsed_types.pop(text)
        ffi._typeof(text, True)
        assert ffi._parsed_types[text] == together, text


def test_an_unknown_type_or_another_cffi_changes_nothing() -> None:
    from wgpu.backends.wgpu_native import ffi

    before = dict(ffi._parsed_types)
    assert loading.parse_types(ffi, ("WGPUNoSuchThing *", "WGPUColor *")) == 0
    assert loading.parse_types(SimpleNamespace(_parsed_types=None)) == 0
    assert loading.parse_types(SimpleNamespace()) == 0
    assert dict(ffi._parsed_types) == before


def test_making_a_device_and_a_call_parses_few_types_on_its_own() -> None:
    """What the list of types leaves out costs 15 ms each at every start."""
    code = r"""
import numpy as np
from engine import InferenceSession
from engine.runtime import device as device_module
from engine.runtime import loading
from tests.runtime.models import AFFINE, parse
session = InferenceSession(parse(AFFINE), device="gpu")
session.run(None, dict(x=np.ones((2, 3), np.float32), b=np.ones(3, np.float32)))
from wgpu.backends.wgpu_native import ffi
mine = [t for t in ffi._parsed_types if not t.startswith("__") and t not in loading._TYPES]
print(len(mine), *mine, sep="\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, cache.VARIABLE: "off"},
    )
    assert done.returncode == 0, done.stderr
    count, *names = done.stdout.strip().splitlines()
    assert int(count) <= 4, names


def test_pipelines_that_were_not_used_for_long_are_dropped(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_module, "MAX_PIPELINES", 2)
    with InferenceSession(parse(DEEP), device="gpu") as session:
        first, second, third, *_ = session.plan().kernels
    made = [device.pipeline(k) for k in (first, second, first, third)]
    assert device.pipeline(first) is made[0] and device.pipeline(third) is made[3]
    assert device.pipeline(second) is not made[1]


def test_functions_that_are_declared_otherwise_are_not_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    native.calls.cache_clear()
    changed = {**native._SIGNATURES, "wgpuBufferUnmap": "int(*)(struct WGPUBufferImpl *)"}
    monkeypatch.setattr(native, "_SIGNATURES", changed)
    try:
        assert isinstance(native.calls(), native.PythonCalls)
    finally:
        native.calls.cache_clear()
