"""Wrong calls and odd files get an error of the engine that says what is wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import engine
from engine.errors import EngineError, InputError, ModelError

HEADER = '<ir_version: 9, opset_import: ["": 20]>'
X = np.array([[0.5, -1, 2]], np.float32)


def model(text: str = "g (float[n, 3] x) => (float[n, 3] y) { y = Exp(x) }") -> bytes:
    data: bytes = onnx.parser.parse_model(HEADER + text).SerializeToString()
    return data


@pytest.mark.parametrize("feed", [None, [], "x", 5, {1: X}, {"x": X.tolist()}, {"x": None}])
def test_feeds(feed: Any) -> None:
    with engine.InferenceSession(model(), device="cpu") as session:
        with pytest.raises(InputError):
            session.run(None, feed)
        np.testing.assert_allclose(session.run(None, {"x": X})[0], np.exp(X), rtol=1e-6)


@pytest.mark.parametrize("names", ["y", 5, [1], ["z"]])
def test_output_names(names: Any) -> None:
    with engine.InferenceSession(model(), device="cpu") as session:
        with pytest.raises(InputError):
            session.run(names, {"x": X})
        with pytest.raises(InputError):
            session.run(None, {"x": X}, outputs_on_device=names)


@pytest.mark.parametrize("providers", ["CPUExecutionProvider", [5], [None]])
def test_providers(providers: Any) -> None:
    with pytest.raises(InputError, match="list of names"):
        engine.InferenceSession(model(), providers=providers)


@pytest.mark.parametrize("second", ["gpu", ["CPUExecutionProvider"]])
def test_a_device_in_the_place_of_options(second: Any) -> None:
    with pytest.raises(InputError, match="device= or providers="):
        engine.InferenceSession(model(), second)


@pytest.mark.parametrize("source", [None, 5, ["model.onnx"]])
def test_models_of_the_wrong_type(source: Any) -> None:
    with pytest.raises(ModelError, match=type(source).__name__):
        engine.InferenceSession(source, device="cpu")


def test_a_permutation_that_is_none() -> None:
    with pytest.raises(EngineError):
        text = "g (float[a, b] x) => (float y) { y = Transpose<perm = [0, 5]>(x) }"
        engine.InferenceSession(model(text), device="cpu").run(None, {"x": X})


def test_an_initializer_that_contradicts_its_input() -> None:
    proto = onnx.parser.parse_model(
        HEADER + "g (float[n] x, float[4] c) => (float[n] y) { y = Add(x, c) }"
    )
    proto.graph.initializer.append(helper.make_tensor("c", TensorProto.FLOAT, [3], [1, 2, 3]))
    with pytest.raises(ModelError):
        engine.InferenceSession(proto, device="cpu")


def test_external_data_in_a_file_that_cannot_be(tmp_path: Any) -> None:
    proto = onnx.parser.parse_model(HEADER + "g (float[3] x) => (float[3] y) { y = Add(x, c) }")
    tensor = TensorProto(name="c", data_type=1, dims=[3], data_location=TensorProto.EXTERNAL)
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "a\0b.bin"
    proto.graph.initializer.append(tensor)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="no file can be called"):
        engine.InferenceSession(tmp_path / "m.onnx", device="cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ['q"uote', "new\nline", "*/", "//# endif", "${A}", "}\nfn f() {"])
def test_names_that_look_like_text_of_a_kernel(name: str) -> None:
    nodes = [
        helper.make_node("Exp", [f"{name}in"], [f"{name}t"], name=name),
        helper.make_node("Neg", [f"{name}t"], [name], name=f"{name}2"),
    ]
    given = [helper.make_tensor_value_info(f"{name}in", 1, [f"{name}n", 3])]
    graph = helper.make_graph(nodes, name, given, [helper.make_tensor_value_info(name, 1, None)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    with engine.InferenceSession(proto, device="gpu", require_gpu=True) as session:
        (got,) = session.run(None, {f"{name}in": X})
    np.testing.assert_allclose(got, -np.exp(X), rtol=1e-5)


@pytest.mark.gpu
def test_a_value_fed_back_many_times_takes_no_more_buffers() -> None:
    text = (
        "g (float[n] x, float[n] z) => (float[n] y, float[n] w) { y = Add(x, z) w = Identity(x) }"
    )
    one = np.ones(4, np.float32)
    with engine.InferenceSession(model(text), device="gpu") as session:
        (kept,) = session.run(["y"], {"x": one, "z": one}, outputs_on_device=["y"])
        first = kept
        for _ in range(100):
            (kept,) = session.run(["y"], {"x": kept, "z": one}, outputs_on_device=["y"])
        (twice,) = session.run(["y"], {"x": kept, "z": kept})
    np.testing.assert_array_equal(kept.numpy(), one * 102)
    np.testing.assert_array_equal(first.numpy(), one * 2)
    np.testing.assert_array_equal(twice, one * 204)


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("change", ["cut", "written", "replaced"])
def test_weights_that_change_under_a_session(tmp_path: Path, change: str, device: str) -> None:
    """Reading what was cut off ends the process, so it must not be tried."""
    model = onnx.parser.parse_model(HEADER + "g (float[n,64] x) => (float y) { y = MatMul(x, w) }")
    weights = np.eye(64, dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path, data = tmp_path / "model.onnx", tmp_path / "model.bin"
    onnx.save(model, path, save_as_external_data=True, location=data.name, size_threshold=0)
    x = np.ones((2, 64), np.float32)
    with engine.InferenceSession(path, device=device) as session:
        if change == "replaced":
            (tmp_path / "other").write_bytes(bytes(100))
            os.replace(tmp_path / "other", data)
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], x)
            return
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x)
        data.write_bytes((2 * weights).tobytes() if change == "written" else b"")
        os.utime(data, (1000, 1000))
        for _ in range(2):
            with pytest.raises(ModelError, match=r"model\.bin.* was written to .*: load the model"):
                session.run(None, {"x": x})
