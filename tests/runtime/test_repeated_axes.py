"""An axis that is named twice is an error in every operator, on both devices."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import engine
from engine.errors import EngineError

TWICE = [
    "a = Constant<value_ints = [1, -3]>() y = Squeeze(x, a)",
    "a = Constant<value_ints = [1, 1]>() y = Unsqueeze(x, a)",
    "a = Constant<value_ints = [0, -4]>() y = ReduceSum(x, a)",
    "a = Constant<value_ints = [0, 0]>() p = Constant<value_ints = [1, 1, 1, 1]>() "
    "y = Pad(x, p, , a)",
    "a = Constant<value_ints = [3, -1]>() s = Constant<value_ints = [0, 1]>() "
    "e = Constant<value_ints = [2, 3]>() y = Slice(x, s, e, a)",
    "s = Constant<value_floats = [2.0, 3.0]>() y = Resize<axes = [3, 3]>(x, , s)",
    "y = MeanVarianceNormalization<axes = [0, 0]>(x)",
]


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("body", TWICE, ids=lambda b: b.split("y = ")[1].split("(")[0])
@pytest.mark.parametrize("sizes", ["2, 1, 1, 3", "a, b, c, d"])
def test_an_axis_that_is_given_twice(sizes: str, body: str, device: str) -> None:
    """NumPy would cut or pad the last time only, and the devices differ in which is the last."""
    text = (
        f'<ir_version: 10, opset_import: ["": 24]> g (float[{sizes}] x) => (float y) {{ {body} }}'
    )
    with (
        pytest.raises(EngineError, match=r"twice|duplicate value in"),
        engine.InferenceSession(
            onnx.parser.parse_model(text).SerializeToString(), device=device
        ) as session,
    ):
        session.run(None, {"x": np.ones((2, 1, 1, 3), np.float32)})


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("op_type", ["Squeeze", "Pad", "Slice"])
def test_an_axis_that_is_given_twice_in_a_call(op_type: str, device: str) -> None:
    ones = "o = Constant<value_ints = [1, 1]>() p = Constant<value_ints = [1, 1, 1, 1]>()"
    body = {"Squeeze": "Squeeze(x, a)", "Pad": "Pad(x, p, , a)", "Slice": "Slice(x, o, o, a)"}
    text = f"""<ir_version: 10, opset_import: ["": 24]>
    g (float[2, 1, 1, 3] x, int64[2] a) => (float y) {{ {ones} y = {body[op_type]} }}"""
    model = onnx.parser.parse_model(text).SerializeToString()
    with engine.InferenceSession(model, device=device) as session:
        feeds = {"x": np.ones((2, 1, 1, 3), np.float32)}
        session.run(None, {**feeds, "a": np.array([1, 2])})
        with pytest.raises(EngineError, match=r"twice|duplicate value in"):
            session.run(None, {**feeds, "a": np.array([1, -3])})
