"""Runs again and again: equal bits, constant memory, several threads, sessions and plans."""

from __future__ import annotations

import dataclasses
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine.ir import Array
from engine.runtime.device import Device
from engine.runtime.session import InferenceSession
from tests.real_models import RealModel, real_models
from tests.runtime.models import AFFINE, parse

pytestmark = pytest.mark.gpu

MODEL = """mix (float[n,3,h,w] x, float[8,3,3,3] k) => (float[n,8] y, float[m] positive) {
  c = Conv <pads = [1,1,1,1]> (x, k)
  r = Relu(c)
  p = GlobalAveragePool(r)
  y = Flatten(p)
  level = Constant <value_float = 0.1> ()
  big = Greater(y, level)
  shape = Constant <value_ints = [-1]> ()
  flat = Reshape(big, shape)
  kept = Compress(y, flat)
  positive = Sqrt(kept)
}"""


def mixed() -> InferenceSession:
    """GPU work, a size that data decide, host work, and GPU work again."""
    return InferenceSession(parse(MODEL), device="gpu")


def feed(seed: int, n: int = 2, size: int = 9) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {"x": (n, 3, size, size), "k": (8, 3, 3, 3)}
    return {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}


def resident_nbytes() -> int:
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def device_nbytes(session: InferenceSession) -> int:
    """What the session's plans and weights take on the device, bodies left out."""
    runner = session._runner
    assert runner.constants is not None
    return runner.constants.nbytes + sum(p.executor.nbytes for p in runner.prepared)


def test_three_runs_give_equal_bits() -> None:
    with mixed() as session:
        first = [r.tobytes() for r in session.run(None, feed(1))]
        session.run(None, feed(2, n=5, size=13))
        for _ in range(2):
            assert [r.tobytes() for r in session.run(None, feed(1))] == first
    with mixed() as session:
        assert [r.tobytes() for r in session.run(None, feed(1))] == first


@real_models(lambda m: m.name in ("ppocr_cls", "silero_vad_16k", "mtcnn_pnet"))
def test_trained_models_give_equal_bits(model: RealModel) -> None:
    with InferenceSession(model.fetch(), device="gpu") as session:
        runs = [session.run(None, model.inputs()) for _ in range(3)]
    for again in runs[1:]:
        assert [r.tobytes() for r in again] == [r.tobytes() for r in runs[0]]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.slow
@pytest.mark.parametrize("stay", [(), ("y",)])
def test_memory_does_not_grow_over_50_runs(stay: tuple[str, ...]) -> None:
    shapes = [feed(0, n, size) for n, size in ((2, 90), (3, 64), (1, 96))]
    with mixed() as session:
        for _ in range(5):
            for inputs in shapes:
                session.run(None, inputs, outputs_on_device=stay)
        gc.collect()
        on_device, resident = device_nbytes(session), resident_nbytes()
        for _ in range(50):
            for inputs in shapes:
                session.run(None, inputs, outputs_on_device=stay)
        gc.collect()
        assert device_nbytes(session) == on_device
        assert resident_nbytes() - resident < 12 << 20
        assert session.plans_made == 1


def test_outputs_on_the_device_are_freed_with_their_last_reference() -> None:
    model = parse("g (float[n] x) => (float[n] y, float[n] z) { y = Exp(x) z = Neg(x) }")
    alive: list[int] = []
    make = Device.buffer

    with InferenceSession(model, device="gpu") as session, pytest.MonkeyPatch.context() as patch:

        def counted(self: Device, label: str, nbytes: int, *rest: int) -> object:
            buffer = make(self, label, nbytes, *rest)
            alive.append(nbytes)
            return buffer

        patch.setattr(Device, "buffer", counted)
        x = np.ones(1 << 20, np.float32)
        session.run(None, {"x": x}, outputs_on_device=["y", "z"])
        made = len(alive)
        gc.collect()
        before = resident_nbytes()
        for _ in range(20):
            session.run(None, {"x": x}, outputs_on_device=["y", "z"])
        gc.collect()
        assert len(alive) == made + 40
        assert resident_nbytes() - before < 40 << 20


def test_eight_threads_on_one_session() -> None:
    with mixed() as session:
        feeds = [feed(i, n=1 + i % 3, size=5 + i) for i in range(8)]
        want = [session.run(None, f) for f in feeds]
        start = threading.Barrier(8)

        def work(i: int) -> None:
            start.wait(timeout=60)
            for turn in range(6):
                which = (i + turn) % 8
                got = session.run(None, feeds[which])
                for a, b in zip(got, want[which], strict=True):
                    np.testing.assert_array_equal(a, b)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))


def test_eight_threads_on_the_cpu() -> None:
    with InferenceSession(parse(AFFINE), device="cpu") as session:

        def work(i: int) -> None:
            for turn in range(20):
                x = np.full((1 + turn, 3), i, np.float32)
                (z,) = session.run(["z"], {"x": x, "b": np.ones(3, np.float32)})
                np.testing.assert_array_equal(z, -(x + 1))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))


def test_two_sessions_share_a_device_and_not_their_results() -> None:
    with mixed() as first, mixed() as second:
        assert first._device is second._device
        want = [first.run(None, feed(i)) for i in range(2)]
        for turn in range(3):
            for i in range(2):
                got = (first, second)[(turn + i) % 2].run(None, feed(i))
                for a, b in zip(got, want[i], strict=True):
                    np.testing.assert_array_equal(a, b)
        first.close()
        np.testing.assert_array_equal(second.run(None, feed(1))[0], want[1][0])


def test_weights_are_uploaded_once_for_all_plans() -> None:
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    model = parse(
        """g (float[n,64] x, float[64,64] w, float[64,64] v) => (float[n,64] y, float[n,64] z) {
      a = MatMul(x, w) y = Relu(a) b = MatMul(y, v) z = Tanh(b)
    }"""
    )
    del model.graph.input[1:]
    model.graph.initializer.extend(onnx.numpy_helper.from_array(weights, n) for n in ("w", "v"))
    with InferenceSession(model, device="gpu") as session:
        x = np.ones((2, 64), np.float32)
        want = session.run(None, {"x": x})
        constants = session._runner.constants
        assert constants is not None
        nbytes = constants.nbytes
        assert nbytes == weights.nbytes
        other = dataclasses.replace(session._runner.options, refused={"y": "for this test"})
        session._runner.options = other
        session._runner._recent.clear()  # they never change in a runner's life
        got = session.run(None, {"x": x})
        assert session.plans_made == 2
        assert constants.nbytes == nbytes
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
