"""What the passes find in trained models, and that these compute what they did before."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx.inliner
import onnxruntime
import pytest

from engine.exporter import to_model
from engine.importer import load_model
from engine.ir import Graph
from engine.passes import run_passes
from tests.model_inputs import Array, Feed
from tests.real_models import RealModel, real_models

FOUND = {
    "aecmos": {"Swish": 6},
    "captcha_crnn": {"BatchNormalization": 0, "Gemm": 42},
    "layout_cdla": {"HardSwish": 94, "BatchNormalization": 0, "Clip": 0},
    "magika": {"Gelu": 2, "Tanh": 0, "Equal": 0},
    "minilm_w8": {"Gelu": 6, "Erf": 0, "Attention": 6, "Softmax": 0},
    "oww_hey_jarvis": {"LayerNormalization": 2, "ReduceMean": 0},
    "ppocr_cls": {"HardSwish": 18, "BatchNormalization": 0, "Clip": 0},
    "ppocrv4_det": {"HardSwish": 24, "BatchNormalization": 0, "Clip": 0},
    "ppocrv4_rec": {
        "LayerNormalization": 5,
        "Swish": 7,
        "HardSwish": 28,
        "BatchNormalization": 0,
        "Pow": 0,
    },
    "spindle_eeg": {"Gelu": 24, "Erf": 0, "Swish": 1},
}
"""How many nodes of some operators are left or made."""


def run(graph: Graph, feed: Feed) -> list[Array]:
    """ONNX Runtime, which has no kernel for Swish: it gets Swish's own definition."""
    model = onnx.inliner.inline_selected_functions(
        to_model(graph), [("", "Swish")], inline_schema_functions=True
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feed))


@pytest.mark.slow
@real_models(lambda model: model.name in FOUND)
def test_patterns_are_found(model: RealModel) -> None:
    graph = run_passes(load_model(model.fetch()).graph).graph
    found = Counter(node.op_type for _, node in graph.walk())
    assert {op_type: found[op_type] for op_type in FOUND[model.name]} == FOUND[model.name]


@pytest.mark.slow
@real_models(lambda model: model.name != "tashkeel_bilstm_int8")
def test_results_stay(model: RealModel) -> None:
    """All but the model for whose quantised operators ONNX Runtime has no kernel in opset 28."""
    graph = run_passes(load_model(model.fetch()).graph).graph
    for make in (model.inputs, model.alt_inputs):
        if make is None:
            continue
        feed = make()
        for want, got in zip(model.reference(feed), run(graph, feed), strict=True):
            assert got.shape == want.shape
            scale = float(np.abs(want).max()) + 1e-30
            np.testing.assert_allclose(got / scale, want / scale, rtol=0, atol=3e-4)
