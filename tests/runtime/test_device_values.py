"""Values that stay on the device: as outputs, as inputs, of which session, and for how long."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from engine.dtypes import DTYPES, FLOAT32, from_name
from engine.errors import DeviceError, EngineError, InputError
from engine.runtime.device import open_device
from engine.runtime.session import InferenceSession
from engine.runtime.values import DeviceValue
from engine.target import Target
from tests.runtime.models import AFFINE, noise, parse

pytestmark = pytest.mark.gpu

B = np.array([0.25, -1, 2], np.float32)
KERNEL_DTYPES = sorted(d.name for d in DTYPES if d.wgsl)


def gpu(text: str, **options: Any) -> InferenceSession:
    return InferenceSession(parse(text), device="gpu", **options)


def test_an_output_stays_and_is_an_input_of_the_same_session() -> None:
    x = noise(4, 3)
    with gpu(AFFINE) as session:
        y, z = session.run(None, {"x": x, "b": B}, outputs_on_device=["z"])
        assert isinstance(y, np.ndarray) and isinstance(z, DeviceValue)
        assert (z.dtype, z.shape) == (FLOAT32, (4, 3))
        assert z.nbytes >= 48
        np.testing.assert_array_equal(z.numpy(), -(x + B))
        assert session.times.downloaded_nbytes == 48
        (again,) = session.run(["z"], {"x": z, "b": B})
        assert session.times.uploaded_nbytes == B.nbytes
        np.testing.assert_array_equal(again, -(-(x + B) + B))
        assert session.plans_made == 1


def test_an_array_is_made_of_a_value() -> None:
    x = noise(4, 3)
    with gpu(AFFINE) as session:
        (z,) = session.run(["z"], {"x": x, "b": B}, outputs_on_device=["z"])
        np.testing.assert_array_equal(np.asarray(z), -(x + B))
        assert np.asarray(z, np.float64).dtype == np.float64
        with pytest.raises(ValueError, match="only by a copy"):
            z.__array__(copy=False)
        title = session.device_name
        assert repr(z) == f"DeviceValue(float32[4, 3] on {title}; numpy() copies it to the host)"


def test_a_value_goes_to_another_session_and_outlives_its_own() -> None:
    x = noise(2, 3)
    with gpu(AFFINE) as first:
        (z,) = first.run(["z"], {"x": x, "b": B}, outputs_on_device=["z"])
    with gpu("g (float[m,3] z) => (float[m,3] e) { e = Exp(z) }") as second:
        for _ in range(2):
            np.testing.assert_allclose(second.run(None, {"z": z})[0], np.exp(-(x + B)), rtol=1e-5)
    np.testing.assert_array_equal(z.numpy(), -(x + B))


def test_later_calls_leave_a_kept_value_alone() -> None:
    with gpu(AFFINE) as session:
        kept = []
        for seed in range(6):
            x = noise(5, 3, seed=seed)
            kept.append(
                (x, session.run(["y", "z"], {"x": x, "b": B}, outputs_on_device=["y", "z"]))
            )
            session.run(None, {"x": noise(5, 3, seed=99), "b": B})
        for x, (y, z) in kept:
            np.testing.assert_array_equal(z.numpy(), -(x + B))
            np.testing.assert_allclose(y.numpy(), np.tanh(x + B), rtol=1e-4, atol=1e-6)
            np.testing.assert_array_equal(z.numpy(), z.numpy())


def test_values_that_nobody_holds_go_with_the_next_call() -> None:
    buffers = []
    with gpu(AFFINE) as session:
        for n in range(2, 8):
            (z,) = session.run(["z"], {"x": noise(n, 3), "b": B}, outputs_on_device=["z"])
            buffers.append(weakref.ref(z.buffer))
            del z
        assert sum(buffer() is not None for buffer in buffers) <= 1


def test_a_chain_of_calls_feeds_each_from_the_last() -> None:
    with gpu("g (float[n] x) => (float[n] y) { h = Mul(x, x) y = Sin(h) }") as session:
        want = noise(100)
        (value,) = session.run(None, {"x": want}, outputs_on_device=["y"])
        want = np.sin(want * want)
        for _ in range(10):
            (value,) = session.run(None, {"x": value}, outputs_on_device=["y"])
            assert session.times.uploaded_nbytes == session.times.downloaded_nbytes == 0
            want = np.sin(want * want)
        np.testing.assert_allclose(value.numpy(), want, rtol=1e-4, atol=1e-5)


def test_a_value_on_the_device_is_read_by_nodes_on_the_cpu() -> None:
    text = """g (float[n] x, bool flag) => (float[u] names, float[n] e, float[m] branch) {
      names = Unique(x)
      e = Exp(x)
      branch = If (flag) <
        then_branch = a () => (float[p] t) { t = Neg(x) },
        else_branch = b () => (float[q] f) { f = Concat <axis = 0> (x, x) }
      >
    }"""
    x = np.array([3, 1, 3, 2], np.float32)
    with gpu("c (float[n] x) => (float[n] y) { y = Abs(x) }") as source, gpu(text) as session:
        (value,) = source.run(None, {"x": -x}, outputs_on_device=["y"])
        for flag in (True, False):
            names, e, branch = session.run(None, {"x": value, "flag": np.array(flag)})
            np.testing.assert_array_equal(names, [1, 2, 3])
            np.testing.assert_allclose(e, np.exp(x), rtol=1e-5)
            np.testing.assert_array_equal(branch, -x if flag else np.concatenate([x, x]))


def test_a_session_on_the_cpu_takes_a_value_on_the_device() -> None:
    x = noise(2, 3)
    with gpu(AFFINE) as first, InferenceSession(parse(AFFINE), device="cpu") as second:
        (z,) = first.run(["z"], {"x": x, "b": B}, outputs_on_device=["z"])
        (back,) = second.run(["z"], {"x": z, "b": B})
        np.testing.assert_array_equal(back, -(-(x + B) + B))


def test_an_input_that_is_an_output() -> None:
    text = "g (float[n] x) => (float[n] same, float[n] y) { same = Identity(x) y = Exp(x) }"
    x = noise(5)
    with gpu(text) as session:
        same, y = session.run(None, {"x": x}, outputs_on_device=["same", "y"])
        np.testing.assert_array_equal(same.numpy(), x)
        np.testing.assert_allclose(y.numpy(), np.exp(x), rtol=1e-5)
        again, y2 = session.run(None, {"x": same}, outputs_on_device=["same"])
        np.testing.assert_array_equal(again.numpy(), x)
        np.testing.assert_array_equal(y2, y.numpy())
        session.run(None, {"x": noise(5, seed=8)}, outputs_on_device=["same", "y"])
        np.testing.assert_array_equal(same.numpy(), x)


def test_an_input_returned_directly_and_a_constant_output() -> None:
    text = """g (float[n] x) => (float[n] x, float[3] c, float[n] y) {
      c = Constant <value_floats = [1.0, 2.0, 4.0]> ()
      y = Neg(x)
    }"""
    x = noise(4)
    with gpu(text) as session:
        for keep in ((), ("x", "c"), ("x", "c", "y"), ()):
            values = session.run(None, {"x": x}, outputs_on_device=keep)
            got = [v.numpy() if isinstance(v, DeviceValue) else v for v in values]
            assert [isinstance(v, DeviceValue) for v in values] == [n in keep for n in "xcy"]
            np.testing.assert_array_equal(got[0], x)
            np.testing.assert_array_equal(got[1], [1, 2, 4])
            np.testing.assert_array_equal(got[2], -x)


def test_views_of_one_buffer_as_outputs() -> None:
    text = """g (float[n,4] x) => (float[n,4] e, float[m] flat, float[n,2,2] square) {
      all = Constant <value_ints = [-1]> ()
      two = Constant <value_ints = [0, 2, 2]> ()
      e = Exp(x)
      flat = Reshape(e, all)
      square = Reshape(e, two)
    }"""
    with gpu(text) as session:
        for n in (3, 1, 5):
            x = noise(n, 4, seed=n)
            values = session.run(None, {"x": x}, outputs_on_device=["flat", "square"])
            assert isinstance(values[0], np.ndarray)
            assert [v.shape for v in values] == [(n, 4), (4 * n,), (n, 2, 2)]
            np.testing.assert_allclose(values[0], np.exp(x), rtol=1e-5)
            for value in values[1:]:
                np.testing.assert_array_equal(value.numpy(), values[0].reshape(value.shape))
        assert session.plans_made == 1


def test_a_view_of_a_value_on_the_device() -> None:
    flat = """g (float[n,4] x) => (float[m] flat) {
      s = Constant <value_ints = [-1]> ()
      flat = Reshape(x, s)
    }"""
    x = noise(3, 4)
    device = open_device()
    value = DeviceValue.from_numpy(device, x, FLOAT32)
    with gpu(flat) as session:
        (kept,) = session.run(None, {"x": value}, outputs_on_device=["flat"])
        np.testing.assert_array_equal(kept.numpy(), x.reshape(-1))
        np.testing.assert_array_equal(session.run(None, {"x": value})[0], x.reshape(-1))


def test_an_int64_output_out_of_range_cannot_stay() -> None:
    with gpu("g (int64[n] x) => (int64[n] y) { y = Mul(x, x) }") as session:
        x = np.array([3, 50_000])
        with pytest.raises(EngineError, match="output 'y' cannot stay on the device: values from"):
            session.run(None, {"x": x}, outputs_on_device=["y"])
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x * x)


def test_sizes_that_data_decide_stay_on_the_device() -> None:
    text = """g (float[n] x, bool[n] keep) => (float[k] y, float[k] c) {
      e = Exp(x) c = Compress <axis = 0> (e, keep) y = Neg(c)
    }"""
    with gpu(text) as session, gpu("h (float[k] y) => (float[k] z) { z = Abs(y) }") as after:
        for kept in (2, 0, 5):
            x = noise(5, seed=kept)
            keep = np.arange(5) < kept
            y, c = session.run(None, {"x": x, "keep": keep}, outputs_on_device=["y", "c"])
            assert y.shape == c.shape == (kept,)
            np.testing.assert_allclose(y.numpy(), -np.exp(x)[keep], rtol=1e-5)
            np.testing.assert_array_equal(c.numpy(), -y.numpy())
            np.testing.assert_array_equal(after.run(None, {"y": y})[0], c.numpy())


def test_values_without_elements() -> None:
    with gpu(AFFINE) as session:
        y, z = session.run(None, {"x": noise(0, 3), "b": B}, outputs_on_device=["y", "z"])
        assert y.shape == z.shape == (0, 3)
        assert y.numpy().shape == (0, 3) and y.numpy().dtype == np.float32
        (back,) = session.run(["z"], {"x": z, "b": B})
        assert back.shape == (0, 3)


@pytest.mark.parametrize("name", KERNEL_DTYPES)
def test_every_dtype_that_kernels_know(name: str) -> None:
    dtype = from_name(name)
    array = np.array([[0, 1, 2], [3, 1, 0]]).astype(dtype.numpy)
    value = DeviceValue.from_numpy(open_device(), array, dtype)
    assert value.numpy().dtype == dtype.numpy
    np.testing.assert_array_equal(value.numpy(), array)
    code = {"float32": "float"}.get(name, name)
    with gpu(f"g ({code}[n,3] x) => ({code}[3,n] y) {{ y = Transpose(x) }}") as session:
        (y,) = session.run(None, {"x": value}, outputs_on_device=["y"])
        assert y.dtype is dtype
        np.testing.assert_array_equal(y.numpy(), array.T)


def test_a_value_of_a_dtype_without_kernels_cannot_stay() -> None:
    with gpu("g (double[n] x) => (double[n] y) { y = Neg(x) }") as session:
        with pytest.raises(InputError, match="dtype float64 cannot be held on the GPU"):
            session.run(None, {"x": np.ones(3)}, outputs_on_device=["y"])
        np.testing.assert_array_equal(session.run(None, {"x": np.ones(3)})[0], -np.ones(3))


def test_wrong_values_are_told() -> None:
    device = open_device()
    narrow = DeviceValue.from_numpy(device, noise(2, 2), FLOAT32)
    integers = DeviceValue.from_numpy(device, np.ones((2, 3), np.int32), from_name("int32"))
    with gpu(AFFINE) as session:
        with pytest.raises(InputError, match="'x' has size 2 on axis 1; expected 3"):
            session.run(None, {"x": narrow, "b": B})
        with pytest.raises(InputError, match="'x' has dtype int32; expected float32"):
            session.run(None, {"x": integers, "b": B})
        with pytest.raises(InputError, match="no outputs \\['w'\\]"):
            session.run(["z"], {"x": noise(2, 3), "b": B}, outputs_on_device=["w"])


def test_a_value_of_another_device_is_told() -> None:
    other = open_device(None, Target(max_storage_buffer_binding_size=1 << 20))
    value = DeviceValue.from_numpy(other, noise(2, 3), FLOAT32)
    with gpu(AFFINE) as session:
        with pytest.raises(InputError, match="'x' lies on another device"):
            session.run(None, {"x": value, "b": B})


def test_values_of_a_lost_device_are_told() -> None:
    x = noise(2, 3)
    with gpu(AFFINE) as session:
        (z,) = session.run(["z"], {"x": x, "b": B}, outputs_on_device=["z"])
        z.device.close()
        for use in (z.numpy, lambda: session.run(None, {"x": z, "b": B})):
            with pytest.raises(DeviceError, match="was lost"):
                use()
        np.testing.assert_array_equal(session.run(["z"], {"x": x, "b": B})[0], -(x + B))
        (z,) = session.run(["z"], {"x": x, "b": B}, outputs_on_device=["z"])
        z.device.wgpu.destroy()
        for _ in range(2):
            with pytest.raises(DeviceError, match="was lost"):
                session.run(None, {"x": z, "b": B})
        np.testing.assert_array_equal(session.run(["z"], {"x": x, "b": B})[0], -(x + B))


def test_values_on_the_device_in_a_sequence() -> None:
    text = "g (seq(float[k]) xs) => (float[n] y) { y = ConcatFromSequence <axis = 0> (xs) }"
    parts = [noise(2), noise(3, seed=4)]
    with gpu(text) as session:
        first = DeviceValue.from_numpy(open_device(), parts[0], FLOAT32)
        (y,) = session.run(None, {"xs": [first, parts[1]]})
        np.testing.assert_array_equal(y, np.concatenate(parts))


def test_outputs_on_the_device_are_named_in_a_list() -> None:
    with gpu(AFFINE) as session, pytest.raises(InputError, match="not the string 'y'"):
        session.run(None, {"x": noise(2, 3), "b": B}, outputs_on_device="y")
