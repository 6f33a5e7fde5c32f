"""Exceptions that come at any moment, as Ctrl-C does: they arrive, and the next call is right."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from engine.bind import MAX_REPEATS
from engine.errors import DeviceError, EngineError
from engine.runtime import cache, compilers, interrupts, native
from engine.runtime import device as device_module
from engine.runtime.device import Device
from engine.runtime.session import InferenceSession
from engine.runtime.values import DeviceValue
from engine.target import Target
from tests.runtime.models import AFFINE, parse

RNG = np.random.default_rng(3)


def feeds_of(n: int) -> dict[str, Any]:
    return {k: RNG.random(v).astype(np.float32) for k, v in (("x", (n, 3)), ("b", (3,)))}


FEEDS = feeds_of(4)


class Stop(BaseException):
    """What a test raises where a signal's handler might."""


@pytest.fixture(params=["native", "python"])
def session(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[InferenceSession]:
    """One whose device is its own, for each way to call wgpu."""
    monkeypatch.setenv(native.VARIABLE, request.param)
    monkeypatch.setattr(device_module, "_open", {})
    native.calls.cache_clear()
    with InferenceSession(parse(AFFINE), device="gpu", require_gpu=True) as made:
        yield made
    native.calls.cache_clear()


def stopping(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool, error: type[BaseException]
) -> None:
    """The next call of a function raises: before it does anything, or after it did all."""
    original = getattr(owner, name)

    def stopped(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        if after:
            original(*args, **options)
        raise error("now")

    monkeypatch.setattr(owner, name, stopped)


def mapping_stops(calls: Any, when: str) -> Any:
    """`mapped` that raises once: around the request, while the buffer is read, or at the end."""

    original = calls.mapped

    @contextmanager
    def mapped(device: Any, buffer: Any, nbytes: int, write: bool = False) -> Iterator[Any]:
        calls.mapped = original
        if when == "left mapped":
            buffer.map_sync("READ", 0, nbytes)
            raise Stop
        with original(device, buffer, nbytes, write) as words:
            if when == "before reading":
                raise Stop
            yield words
            if when == "after reading":
                raise Stop
        raise Stop

    calls.mapped = mapped


def stages(device: Device) -> dict[str, tuple[Any, str]]:
    """Functions of wgpu and of ours between which the state of a call changes."""
    from wgpu.backends.wgpu_native import GPUCommandEncoder

    calls: Any = device.calls
    in_python = isinstance(calls, native.PythonCalls)
    return {
        "write": (device, "write"),
        "queue write": (type(calls), "write"),
        "buffer": (type(device.wgpu), "create_buffer"),
        "group": (type(device.wgpu), "create_bind_group"),
        "encoder": (type(calls), "encoder"),
        "record": (type(calls), "record"),
        "copy": (type(calls), "copy"),
        "submit": (device, "submit"),
        "finish": (GPUCommandEncoder, "finish") if in_python else (calls, "_finish_encoder"),
        "queue submit": (type(device.queue), "submit") if in_python else (calls, "_submit"),
        "poll": (type(calls), "_wait"),
    }


STAGES = (
    *("write", "queue write", "buffer", "group", "encoder", "record", "copy", "submit", "finish"),
    *("queue submit", "poll"),
)


@pytest.mark.gpu
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stage", STAGES)
def test_an_exception_at_each_stage_arrives_and_the_next_call_is_right(
    session: InferenceSession, stage: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = session._device
    assert device is not None
    if stage == "poll" and isinstance(device.calls, native.PythonCalls):
        pytest.skip("wgpu's own API waits")
    want = session.run(None, FEEDS)
    for feeds in (FEEDS, feeds_of(6)):  # with all at hand, and with buffers to make
        with monkeypatch.context() as patch:
            stopping(patch, *stages(device)[stage], after, Stop)
            try:
                session.run(None, feeds)
                assert stage in ("buffer", "group") and feeds is FEEDS, f"{stage} is not reached"
            except Stop:
                pass
        for _ in range(2):
            same(session.run(None, FEEDS), want)


@pytest.mark.gpu
def test_an_encoder_that_was_not_made_is_deleted_in_silence(
    session: InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is raised in a deletion is printed, whoever catches the interrupt."""
    printed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    want = session.run(None, FEEDS)
    with monkeypatch.context() as patch:
        stopping(patch, native._Encoder, "__init__", False, Stop)
        if isinstance(session._device.calls, native.NativeCalls):  # type: ignore[union-attr]
            with pytest.raises(Stop):
                session.run(None, FEEDS)
    same(session.run(None, FEEDS), want)
    assert not printed


def same(found: list[Any], want: list[Any]) -> None:
    for a, b in zip(found, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "when", ["left mapped", "before reading", "after reading", "after unmapping"]
)
def test_an_exception_around_a_mapping_leaves_no_buffer_mapped(
    session: InferenceSession, when: str
) -> None:
    device = session._device
    assert device is not None
    want = session.run(None, FEEDS)
    kept = []
    for _ in range(3):
        mapping_stops(device.calls, when)
        with pytest.raises(Stop) as raised:
            session.run(None, FEEDS)
        kept.append(raised.value)  # with its traceback, which holds the buffers
        same(session.run(None, FEEDS), want)


@pytest.mark.gpu
def test_a_mapping_that_nobody_waits_for_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library calls back when all that made the mapping is gone."""
    monkeypatch.setattr(device_module, "_open", {})
    monkeypatch.setenv(native.VARIABLE, "native")
    native.calls.cache_clear()
    session = InferenceSession(parse(AFFINE), device="gpu")
    device = session._device
    assert device is not None and isinstance(device.calls, native.NativeCalls)
    want = session.run(None, FEEDS)
    for _ in range(5):
        with monkeypatch.context() as patch:
            stopping(patch, native.NativeCalls, "_wait", False, Stop)
            patch.setattr(device.calls, "_unmap", lambda buffer: None)
            with pytest.raises(Stop):
                session.run(None, FEEDS)
        same(session.run(None, FEEDS), want)
    native.calls.cache_clear()


@pytest.mark.gpu
def test_a_recorded_call_that_was_cut_short_leaves_no_clock_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = InferenceSession(parse(AFFINE), device="gpu")
    want = session.run(None, FEEDS)
    device = session._device
    assert device is not None
    buffer = type(device.buffer("any", 16))
    for clock in ("host", "auto"):
        with session.recording(clock) as recording:
            session.run(None, FEEDS)
            with monkeypatch.context() as patch:
                stopping(patch, buffer, "unmap", False, Stop)
                with pytest.raises(Stop):
                    session.run(None, FEEDS)
            same(session.run(None, FEEDS), want)
            kernels = [e for e in recording.events if e.kind == "kernel"]
            assert len(kernels) == session.times.dispatches


@pytest.mark.gpu
def test_prepared_values_are_right_after_a_call_that_was_cut_short(
    session: InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = session._device
    assert device is not None
    (want,) = session.run(["y"], FEEDS)
    given = {**FEEDS, "x": DeviceValue.from_numpy(device, FEEDS["x"], device_dtype(FEEDS["x"]))}
    for stage in ("record", "submit", "queue submit"):
        with monkeypatch.context() as patch:
            stopping(patch, *stages(device)[stage], True, Stop)
            with pytest.raises(Stop):
                session.run(["y"], given, outputs_on_device=["y"])
        (kept,) = session.run(["y"], given, outputs_on_device=["y"])
        np.testing.assert_array_equal(kept.numpy(), want)
        np.testing.assert_array_equal(given["x"].numpy(), FEEDS["x"])


def device_dtype(array: Any) -> Any:
    from engine.dtypes import from_numpy

    return from_numpy(array.dtype)


@pytest.mark.gpu
def test_a_hollow_call_that_was_cut_short_is_no_hollow_one_later(
    session: InferenceSession,
) -> None:
    device = session._device
    assert device is not None
    want = session.run(None, FEEDS)
    session.run(None, {name: array + 1 for name, array in FEEDS.items()})
    device.calls = native.HollowCalls(device.calls)  # as if the end of the call was not reached
    same(session.run(None, FEEDS), want)


@pytest.mark.gpu
def test_a_device_that_is_new_gets_a_runner_even_if_making_one_was_cut_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_module, "_open", {})
    session = InferenceSession(parse(AFFINE), device="gpu")
    want = session.run(None, FEEDS)
    assert session._device is not None
    session._device.close()
    with monkeypatch.context() as patch:
        stopping(patch, InferenceSession, "_make_runner", False, Stop)
        with pytest.raises(Stop):
            session.run(None, FEEDS)
    same(session.run(None, FEEDS), want)


@pytest.mark.gpu
def test_indices_of_repetitions_are_written_before_they_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from engine.runtime.device import choose_adapter

    device = Device(choose_adapter(), Target.baseline())
    with monkeypatch.context() as patch:
        stopping(patch, device, "write", False, Stop)
        with pytest.raises(Stop):
            device._repeat_indices()
    written: list[Any] = []
    monkeypatch.setattr(device, "write", lambda buffer, data: written.append((buffer, data)))
    buffer = device._repeat_indices()
    assert written[0][0] is buffer and written[0][1][:, 0].tolist() == list(range(MAX_REPEATS))
    device.close()


HANDLED = """
import signal, sys
import numpy as np
from engine import InferenceSession
from tests.runtime.test_interrupts import FEEDS, AFFINE, parse, same

class Late(RuntimeError):
    pass

class Handler:
    count = 0
    def __call__(self, number, frame):
        self.count += 1
        raise kinds[self.count % len(kinds)]("now")

kinds = [KeyboardInterrupt, TimeoutError, Late]
handler = Handler()
signal.signal(signal.SIGALRM, handler)
unraised = []
sys.unraisablehook = lambda found: unraised.append(found.exc_value)
caught = dict.fromkeys(kinds, 0)
rng = np.random.default_rng(0)
for device in ("gpu", "cpu"):
    session = InferenceSession(parse(AFFINE), device=device)
    want = session.run(None, FEEDS)
    for turn in range(int(sys.argv[1])):
        before = handler.count
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 + rng.random() * 0.01)
            while handler.count == before:
                session.run(None, FEEDS)
        except tuple(kinds) as error:
            assert str(error) == "now", repr(error)
            caught[type(error)] += 1
        same(session.run(None, FEEDS), want)
# Python drops what is raised while an object is being deleted, and tells only the hook
assert sum(caught.values()) + len(unraised) >= handler.count, (caught, unraised)
assert min(caught.values()) >= handler.count // len(kinds) - len(unraised), caught
assert np.geterr()["invalid"] == "warn"
print("fine")
"""


@pytest.mark.gpu
@pytest.mark.skipif(not hasattr(__import__("signal"), "setitimer"), reason="there are no timers")
def test_signals_at_any_moment_reach_the_caller_and_results_stay_right() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANDLED, "100"],
        capture_output=True,
        text=True,
        env={**os.environ, native.VARIABLE: "native", cache.VARIABLE: "off"},
        timeout=300,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "fine"), done.stderr


def raised_by(handler: Callable[..., Any], signal_: Any) -> BaseException:
    import signal

    before = signal.signal(signal_, handler)
    try:
        signal.raise_signal(signal_)
    except Exception as error:
        return error if interrupts.is_interrupt(error) else AssertionError(repr(error))
    finally:
        signal.signal(signal_, before)
    raise AssertionError("nothing was raised")


def test_what_a_handler_raised_is_told_from_other_errors() -> None:
    import signal

    def fail() -> None:
        raise TimeoutError("late")

    class Method:
        def handle(self, number: int, frame: Any) -> None:
            fail()

        def __call__(self, number: int, frame: Any) -> None:
            fail()

    for handler in (lambda number, frame: fail(), Method().handle, Method()):
        assert isinstance(raised_by(handler, signal.SIGTERM), TimeoutError)
    try:
        fail()
    except TimeoutError as error:
        assert not interrupts.is_interrupt(error)


@pytest.mark.gpu
def test_an_error_of_the_device_stays_one(session: InferenceSession) -> None:
    device = session._device
    assert device is not None
    with pytest.raises(DeviceError, match="refused: a test: odd"), device.guarded("a test"):
        raise RuntimeError("odd")


def test_an_operators_error_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    session = InferenceSession(parse(AFFINE), device="cpu")
    session.run(None, FEEDS)
    from cpu_fallback import registry

    monkeypatch.setattr(
        registry.PreparedNode, "__call__", lambda *a, **k: (_ for _ in ()).throw(TimeoutError("t"))
    )
    with pytest.raises(EngineError, match="failed on"):
        session.run(None, FEEDS)


@pytest.mark.gpu
def test_threads_that_compile_end_though_nobody_says_that_no_kernel_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_module, "_open", {})
    monkeypatch.setattr(compilers, "AWAITED_S", 0.05)
    session = InferenceSession(parse(AFFINE), device="gpu")
    device = session._device
    assert device is not None
    device._compilers.awaiting().__enter__()  # and no end of the block
    with monkeypatch.context() as patch:
        stopping(patch, threading.Thread, "start", False, Stop)
        with pytest.raises(Stop):
            session.run(None, FEEDS)
    assert device._compilers._working == {}
    want = InferenceSession(parse(AFFINE), device="cpu").run(None, FEEDS)
    for a, b in zip(session.run(None, FEEDS), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    for thread in threading.enumerate():
        if thread.name.startswith("onnx-wgpu compiler"):
            thread.join(30)
            assert not thread.is_alive()
