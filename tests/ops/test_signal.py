"""Types of windows, STFT and mel weights: what the CPU computes has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from cpu_fallback import registry
from engine import dims
from engine.errors import ShapeError
from engine.ir import Graph
from engine.passes.infer import infer
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
