"""A device that is lost at an odd moment: an error in words, and the next session works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import engine
from engine.costs import DeviceProfile
from engine.errors import DeviceError
from engine.runtime import calibrate
from engine.runtime import device as device_module
from engine.runtime.constants import ConstantStore
from engine.runtime.device import Device, choose_adapter
from engine.runtime.recorder import Recorder
from engine.runtime.session import InferenceSession
from engine.runtime.values import DeviceValue
from engine.target import Target

pytestmark = pytest.mark.gpu


def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> '
        "g (float[n,4] x) => (float[n,4] y) <float[4,4] w = {1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 3, 0, "
        "0, 0, 0, 4}> { a = MatMul(x, w) y = Softmax(a) }"
    )


X = np.arange(12, dtype=np.float32).reshape(3, 4)


def check(session: InferenceSession) -> None:
    scaled = X * [1, 2, 3, 4]
    weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    (y,) = session.run(None, {"x": X})
    np.testing.assert_allclose(y, weights / weights.sum(axis=1, keepdims=True), rtol=1e-5)


def losing(
    monkeypatch: pytest.MonkeyPatch,
    device: Device | None,
    owner: Any,
    name: str,
    device_of: Callable[[Any], Any],
) -> None:
    """The next call of a function on a device finds that it is gone."""
    assert device is not None
    original = getattr(owner, name)

    def lost(*args: Any, **options: Any) -> Any:
        if device_of(args[0]) is device.wgpu:
            monkeypatch.setattr(owner, name, original)
            device._compilers.settle()  # wgpu aborts if others use what is destroyed
            device.wgpu.destroy()
        return original(*args, **options)

    monkeypatch.setattr(owner, name, lost)


MOMENTS = {
    "making a buffer": (Device, "buffer", lambda device: device.wgpu),
    "uploading weights": (ConstantStore, "buffer", lambda store: store.device.wgpu),
    "uploading an input": (Recorder, "write", lambda recorder: recorder.device.wgpu),
    "writing": (Device, "write", lambda device: device.wgpu),
    "compiling": (Device, "compile", lambda device: device.wgpu),
    "making a layout": (Device, "_layout", lambda device: device.wgpu),
    "binding": (Device, "bind_group", lambda device: device.wgpu),
    "recording": (Recorder, "encode", lambda recorder: recorder.device.wgpu),
    "submitting": (Device, "submit", lambda device: device.wgpu),
    "downloading": (Recorder, "collect", lambda recorder: recorder.device.wgpu),
    "mapping": (Device, "mapped", lambda device: device.wgpu),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_loss_in_a_call(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "_open", {})
    with InferenceSession(model(), device="gpu") as session:
        losing(monkeypatch, session._device, *MOMENTS[moment])
        with pytest.raises(DeviceError, match="lost"):
            session.run(None, {"x": X})
        assert session._device is not None and session._device.lost
        with InferenceSession(model(), device="gpu") as other:
            check(other)
        check(session)


@pytest.mark.parametrize("moment", ["submitting", "downloading", "mapping"])
def test_a_loss_in_a_later_call(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "_open", {})
    with InferenceSession(model(), device="gpu") as session:
        check(session)
        losing(monkeypatch, session._device, *MOMENTS[moment])
        with pytest.raises(DeviceError, match="lost"):
            session.run(None, {"x": X})
        check(session)


def test_a_loss_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "_open", {})
    with InferenceSession(model(), device="gpu") as session:
        check(session)
        assert session._device is not None
        session._device.wgpu.destroy()
        with pytest.raises(DeviceError, match="lost"):
            session.run(None, {"x": X})
        check(session)


def test_a_loss_while_a_session_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "_open", {})
    original = calibrate.device_profile

    def measured(device: Any) -> Any:
        monkeypatch.setattr(calibrate, "device_profile", original)
        device.wgpu.destroy()
        return calibrate.measure_gpu(device, DeviceProfile.builtin())

    monkeypatch.setattr(calibrate, "device_profile", measured)
    with pytest.raises(DeviceError, match="was lost: "):
        InferenceSession(model(), device="auto")
    with InferenceSession(model(), device="gpu") as session:
        check(session)


def test_a_value_on_a_lost_device() -> None:
    device = Device(choose_adapter(), Target.baseline())
    value = DeviceValue.from_numpy(device, X, engine.dtypes.FLOAT32)
    device.wgpu.destroy()
    for _ in range(2):
        with pytest.raises(DeviceError, match="lost"):
            value.numpy()
    with InferenceSession(model(), device="gpu") as session:
        with pytest.raises(DeviceError, match="lost"):
            session.run(None, {"x": value})
        check(session)


FORK = """
import os
import sys
from engine.errors import DeviceError
from engine.runtime.session import InferenceSession
from tests.runtime.test_loss import X, check, model

session, auto = (InferenceSession(model(), device=d) for d in ("gpu", "auto"))
check(session)
(kept,) = session.run(None, {"x": X}, outputs_on_device=["y"])
session._device._compilers.settle()
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    check(session)
    sys.exit()
for use in (lambda: check(session), lambda: InferenceSession(model(), device="gpu"), kept.numpy):
    try:
        use()
    except DeviceError as error:
        print(error, flush=True)
check(auto)
print(auto.device_name)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_forked_process_says_that_it_has_no_device() -> None:
    command = [sys.executable, "-c", FORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *errors, name = done.stdout.splitlines()
    assert len(errors) == 3 and all("forked by one that used the GPU" in e for e in errors)
    assert name == "CPU (NumPy)"
