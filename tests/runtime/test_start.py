"""What a session worked out is kept for later processes, and used only where it fits."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.external_data_helper
import pytest

import engine.importer
from engine.errors import ModelError
from engine.ir import Array
from engine.runtime import cache, start
from engine.runtime.session import InferenceSession

DEVICES = ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)]

MODEL = """mix (float[n,3,8,8] x, bool flag, float[2] bias)
    => (float[n,4] y, float[n,4] z, int64[m] p)
<float[4,3,3,3] k, float[2] bias = {0.5, 2}> {
  c = Conv <pads = [1,1,1,1]> (x, k)
  r = Relu(c)
  a = GlobalAveragePool(r)
  y = Flatten(a)
  z = If (flag) <
    then_branch = yes () => (float[n,4] t) { t = Neg(y) },
    else_branch = no () => (float[n,4] e) { e = Mul(y, y) }
  >
  flat = Flatten <axis = 0> (y)
  row = Squeeze(flat)
  s = Shape(bias)
  found = NonZero(row)
  p = Squeeze(found)
}"""


def model() -> onnx.ModelProto:
    weights = np.random.default_rng(3).standard_normal((4, 3, 3, 3)).astype(np.float32)
    made = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]>' + MODEL.replace("float[4,3,3,3] k, ", "")
    )
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights, "k"))
    onnx.helper.set_model_props(made, {"author": "a test"})
    return made


def feeds(n: int = 2, flag: bool = True) -> dict[str, Array]:
    x = np.random.default_rng(n).standard_normal((n, 3, 8, 8)).astype(np.float32)
    return {"x": x, "flag": np.array(flag)}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model file, with an empty cache, to which nothing is written once the test is over."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "kept"))
    onnx.save(model(), tmp_path / "model.onnx")
    os.utime(tmp_path / "model.onnx", (1000, 1000))
    yield tmp_path / "model.onnx"
    cache.finish()


def kept(path: Path) -> list[Path]:
    cache.flush(wait=True)
    cache.finish()
    return sorted((path.parent / "kept" / "onnx-wgpu").glob("start-*"))


def first(path: Path, device: str, **options: Any) -> list[Array]:
    """What the first session computes; what it worked out is kept."""
    with InferenceSession(path, device=device, **options) as session:
        results: list[Array] = session.run(None, feeds())
        assert session.plans_made == 1
    assert len(kept(path)) == 1
    return results


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """The models that are loaded."""
    found: list[object] = []
    load = engine.importer.load_model

    def counted(model: Any, **options: Any) -> Any:
        found.append(model)
        return load(model, **options)

    monkeypatch.setattr(engine.importer, "load_model", counted)
    yield found


@pytest.mark.parametrize("device", DEVICES)
def test_a_later_session_loads_and_plans_nothing(
    path: Path, device: str, loads: list[object]
) -> None:
    with InferenceSession(path, device=device) as session:
        want = session.run(None, feeds())
        about = (session.get_inputs(), session.get_outputs(), session.get_modelmeta())
        about += (session.get_overridable_initializers(), session.device_name)
        text, places = str(session.explain()), [(n.key, d) for n, d in session.executed()]
    assert len(kept(path)) == 1 and len(loads) == 1
    with InferenceSession(path, device=device) as session:
        got = session.run(None, feeds())
        assert session.plans_made == 0 and len(loads) == 1
        for a, b in zip(got, want, strict=True):
            assert a.tobytes() == b.tobytes() and a.dtype == b.dtype
        assert about[:3] == (session.get_inputs(), session.get_outputs(), session.get_modelmeta())
        assert about[3:] == (session.get_overridable_initializers(), session.device_name)
        assert str(session.explain()) == text
        assert [(n.key, d) for n, d in session.executed()] == places
        assert session.get_modelmeta().custom_metadata_map == {"author": "a test"}
    assert len(loads) == 1 and len(kept(path)) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_other_sizes_need_no_model_and_other_kinds_do(
    path: Path, device: str, loads: list[object]
) -> None:
    first(path, device)
    loads.clear()
    with InferenceSession(path, device=device) as session:
        for n, flag in ((5, False), (1, True)):
            (y, z, _) = session.run(None, feeds(n, flag))
            np.testing.assert_allclose(z, -y if flag else y * y, rtol=1e-5)
        assert not loads and session.plans_made == 0
        bias = np.array([1, 2], np.float32)
        session.run(None, {**feeds(), "bias": bias})
        assert len(loads) == 1 and session.plans_made == 1


@pytest.mark.gpu
def test_what_is_required_is_still_checked(path: Path) -> None:
    first(path, "gpu")
    with pytest.raises(engine.UnsupportedOpError):
        InferenceSession(path, device="gpu", require_gpu=True).run(None, feeds())


@pytest.mark.gpu
def test_the_weights_are_packed_only_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.runtime.constants import ConstantStore

    want = first(path, "gpu")
    monkeypatch.setattr("engine.runtime.constants._bytes", None)
    with InferenceSession(path, device="gpu") as session:
        for a, b in zip(session.run(None, feeds()), want, strict=True):
            np.testing.assert_array_equal(a, b)
        assert isinstance(session._runner.constants, ConstantStore)
        assert session._runner.constants.nbytes >= 4 * 3 * 9 * 4


@pytest.mark.gpu
def test_a_lost_device_makes_way_for_a_new_one(path: Path) -> None:
    want = first(path, "gpu")
    with InferenceSession(path, device="gpu") as session:
        session.run(None, feeds())
        assert session._device is not None
        session._device.close()
        for a, b in zip(session.run(None, feeds()), want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_options_and_code_tell_files_apart(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first(path, "cpu")
    with InferenceSession(path, device="cpu", disable=["cse"]) as session:
        session.run(None, feeds())
        assert session.plans_made == 1
    assert len(kept(path)) == 2
    monkeypatch.setattr(start, "_code", lambda: "other code")
    with InferenceSession(path, device="cpu") as session:
        session.run(None, feeds())
        assert session.plans_made == 1
    assert len(kept(path)) == 3


@pytest.mark.parametrize("how", ["cut", "flip", "empty", "text"])
def test_a_damaged_file_is_made_again(path: Path, how: str) -> None:
    want = first(path, "cpu")
    (file,) = kept(path)
    data = file.read_bytes()
    middle = len(data) // 2
    damaged = {
        "cut": data[:middle],
        "flip": data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :],
        "empty": b"",
        "text": b"hello",
    }
    file.write_bytes(damaged[how])
    for a, b in zip(first(path, "cpu"), want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert file.read_bytes() == data


def test_a_whole_file_of_something_else_is_made_again(path: Path) -> None:
    first(path, "cpu")
    (file,) = kept(path)
    data = file.read_bytes()
    for parts in ([b""], [b"\x10" + bytes(7), b"no JSON, but text"], [bytes(100)]):
        cache.store(file.name, parts)
        assert file.read_bytes() != data
        first(path, "cpu")
        assert file.read_bytes() == data


def test_a_changed_model_is_loaded(path: Path) -> None:
    first(path, "cpu")
    changed = model()
    changed.graph.initializer[1].CopyFrom(
        onnx.numpy_helper.from_array(np.zeros((4, 3, 3, 3), np.float32), "k")
    )
    onnx.save(changed, path)
    with InferenceSession(path, device="cpu") as session:
        assert not session.run(["y"], feeds())[0].any()


@pytest.mark.parametrize("lately", [False, True])
def test_weights_changed_in_place_are_loaded(path: Path, lately: bool) -> None:
    """The size and, as far as anyone can set it, the time stay."""
    whole = model()
    for name, place in (("before", 0), ("behind", 3)):
        beside = onnx.numpy_helper.from_array(np.zeros(2000, np.float32), name)
        whole.graph.initializer.insert(place, beside)
    weights = onnx.numpy_helper.to_array(whole.graph.initializer[2]).tobytes()
    path.write_bytes(whole.SerializeToString())
    when = path.stat().st_mtime_ns if lately else 1000
    os.utime(path, ns=(when, when))
    (want, *_) = first(path, "cpu")
    data = path.read_bytes()
    at = data.index(weights)
    assert 4096 < at < len(data) - 4096 - len(weights)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(len(weights)))
    os.utime(path, ns=(when, when))
    with InferenceSession(path, device="cpu") as session:
        assert want.any() and not session.run(["y"], feeds())[0].any()


def test_a_file_that_was_new_is_still_the_same_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(path.read_bytes())
    first(path, "cpu")
    with InferenceSession(path, device="cpu") as session:
        made_at = time.time()
        monkeypatch.setattr(time, "time", lambda: made_at + 60)
        session.run(None, {**feeds(), "bias": np.zeros(2, np.float32)})


def test_a_relative_path_is_that_of_when_the_session_was_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first(path, "cpu")
    monkeypatch.chdir(path.parent)
    with InferenceSession(path.name, device="cpu") as session:
        monkeypatch.chdir("/")
        session.run(None, {**feeds(), "bias": np.zeros(2, np.float32)})
        assert session.plans_made == 1


def test_a_model_that_changes_under_a_session_is_an_error(path: Path) -> None:
    first(path, "cpu")
    with InferenceSession(path, device="cpu") as session:
        os.utime(path, (1, 1))
        session.run(None, feeds())
        with pytest.raises(ModelError, match="has changed since"):
            session.run(None, {**feeds(), "bias": np.zeros(2, np.float32)})


def test_bytes_are_told_apart_by_content(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "MIN_MODEL_NBYTES", 100)
    data = path.read_bytes()
    for made in (1, 0):
        with InferenceSession(data, device="cpu") as session:
            session.run(None, feeds())
            assert session.plans_made == made
        assert len(kept(path)) == 1


def test_external_data_are_not_kept(path: Path) -> None:
    whole = model()
    onnx.external_data_helper.convert_model_to_external_data(whole, size_threshold=0)
    onnx.save(whole, path)
    with InferenceSession(path, device="cpu") as session:
        session.run(None, feeds())
    assert kept(path) == []


def test_weights_that_are_too_large_are_not_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "MAX_NBYTES", 100)
    with InferenceSession(path, device="cpu") as session:
        session.run(None, feeds())
    assert kept(path) == []


def test_nothing_is_kept_where_that_is_switched_off(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.VARIABLE, "off")
    for _ in range(2):
        with InferenceSession(path, device="cpu") as session:
            session.run(None, feeds())
            assert session.plans_made == 1
    assert not (path.parent / "kept").exists()
