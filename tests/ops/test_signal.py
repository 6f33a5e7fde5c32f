"""Windows on both devices; types of STFT and mel weights are those of what the CPU computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from cpu_fallback import registry
from engine import dims
from engine.errors import ShapeError
from engine.ir import Graph
from engine.passes.infer import infer
from tests.ops.harness import OpCase, check_cpu, check_gpu, supported
from tests.passes.test_infer import graph_of, node, shown
from tests.test_importer import INT64, value

RNG = np.random.default_rng(0)


def computed(graph: Graph, **feed: Any) -> np.ndarray:
    (only,) = graph.nodes
    inputs = [None if not n else feed[n] if n in feed else graph.constant(n) for n in only.inputs]
    (result,) = registry.run(only.op_type, only.domain, only.since_version, only.attrs, inputs, 1)
    return np.asarray(result)


@pytest.mark.parametrize("op_type", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("code", [onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE])
def test_windows(op_type: str, code: int) -> None:
    nodes = [node(op_type, "n", "y", output_datatype=code)]
    graph = infer(graph_of(nodes, [value("n", [], INT64)], ["y"])).graph
    kind = graph.tensor("y")
    found = computed(graph, n=np.array(7))
    assert kind.dtype.numpy == found.dtype
    assert [str(d) for d in kind.shape] == ["y_size"] and found.shape == (7,)
    folded = infer(graph_of(nodes, [], ["y"], {"n": np.array(7)})).graph
    assert folded.constant("y").shape == (7,)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1, 2, 7, 400, 4096])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("op_type", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_on_the_gpu(op_type: str, periodic: int, size: int) -> None:
    case = OpCase(op_type, (np.array(size),), {"periodic": periodic}, oracle="fallback")
    check_gpu(case.replace(constants=()))


def test_windows_against_the_reference() -> None:
    for op_type in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        check_cpu(OpCase(op_type, (np.array(10),), {"periodic": 1}, tol=1e-6))


def test_windows_that_the_gpu_refuses() -> None:
    case = OpCase("HannWindow", (np.array(7),), {"output_datatype": onnx.TensorProto.DOUBLE})
    assert "float64" in supported(case).reason


@pytest.mark.gpu
def test_a_window_as_long_as_a_signal() -> None:
    import engine

    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 20]>
        g (float[n] x) => (float[n] y)
        { size = Size(x)  w = HannWindow(size)  y = Mul(x, w) }""")
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        for count in (8, 13):
            x = RNG.normal(size=count).astype(np.float32)
            (got,) = session.run(None, {"x": x})
            want = x * (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(count) / count))
            np.testing.assert_allclose(got, want, atol=1e-6)
        assert session.plans_made == 1


def test_mel_weights() -> None:
    names = "bins length rate low high"
    inputs = [value("length", [], INT64)]
    constants = {
        "bins": np.array(8),
        "rate": np.array(8192),
        "low": np.array(0, np.float32),
        "high": np.array(4096, np.float32),
    }
    nodes = [node("MelWeightMatrix", names, "y")]
    graph = infer(graph_of(nodes, inputs, ["y"], constants)).graph
    symbol = "y_dft_length"
    for length in (16, 17):
        found = computed(graph, length=np.array(length))
        sizes = [dims.evaluate(d, {symbol: length}) for d in graph.tensor("y").shape]
        assert tuple(sizes) == found.shape


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("window", [True, False])
@pytest.mark.parametrize("frame", [8, 9])
def test_stft(onesided: int, window: bool, frame: int) -> None:
    inputs = "x step window frame" if window else "x step  frame"
    call = node("STFT", inputs, "y", onesided=onesided)
    if not window:
        call.input.insert(2, "")
    constants: dict[str, Any] = {"step": np.array(3), "frame": np.array(frame)}
    if window:
        constants["window"] = np.ones(frame, np.float32)
    graph = infer(graph_of([call], [value("x", ["N", "T", 1])], ["y"], constants)).graph
    for length in (20, 21, 22):
        found = computed(graph, x=RNG.normal(size=(2, length, 1)).astype(np.float32))
        binding = {"N": 2, "T": length}
        assert tuple(dims.evaluate(d, binding) for d in graph.tensor("y").shape) == found.shape


def test_stft_with_a_frame_of_the_window() -> None:
    constants = {"step": np.array(4), "window": np.ones(8, np.float32)}
    nodes = [node("STFT", "x step window", "y")]
    graph = infer(graph_of(nodes, [value("x", [1, 32, 1])], ["y"], constants)).graph
    assert shown(graph, "y") == "float32[1, 7, 5, 2]"


@pytest.mark.parametrize(
    ("inputs", "step", "shape", "message"),
    [
        ("x step", 4, [1, 32, 1], "neither window nor frame_length"),
        ("x step window", 0, [1, 32, 1], "frame_step is 0"),
        ("x step window", 4, [1, 32], "must be .batch, length"),
    ],
)
def test_refusals(inputs: str, step: int, shape: list[int], message: str) -> None:
    constants = {"step": np.array(step), "window": np.ones(8, np.float32)}
    with pytest.raises(ShapeError, match=message):
        infer(graph_of([node("STFT", inputs, "y")], [value("x", shape)], ["y"], constants))
