"""Indices, starts and lengths that are out of range, given in a call or constant, are errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import engine
from engine.errors import EngineError

CASES: dict[str, tuple[dict[str, tuple[int, ...]], str, list[int], list[list[int]]]] = {
    "RoiAlign": (
        {"x": (2, 1, 4, 4), "r": (2, 4)},
        "RoiAlign<sampling_ratio = 2>(x, r, i)",
        [1, 0],
        [[0, -1], [0, 2]],
    ),
    "ReverseSequence": ({"x": (3, 2)}, "ReverseSequence(x, i)", [3, 0], [[4, 1], [-1, 1]]),
    "TensorScatter": (
        {"x": (2, 4, 1), "u": (2, 2, 1)},
        "TensorScatter(x, u, i)",
        [0, 2],
        [[3, 0], [0, -1], [9, 0]],
    ),
    "MaxUnpool": (
        {"x": (1, 1, 1, 2)},
        "MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(x, j)",
        [7, 0],
        [[0, 8], [-1, 3]],
    ),
    "RNN": (
        {"x": (4, 2, 3), "w": (1, 2, 3), "r": (1, 2, 2)},
        "RNN<hidden_size = 2>(x, w, r, , n)",
        [4, 0],
        [[5, 1], [-1, 3]],
    ),
    "GRU": (
        {"x": (2, 4, 3), "w": (1, 6, 3), "r": (1, 6, 2)},
        "GRU<hidden_size = 2, layout = 1>(x, w, r, , n)",
        [4, 1],
        [[5, 1], [2, -1]],
    ),
    "LSTM": (
        {"x": (4, 2, 3), "w": (1, 8, 3), "r": (1, 8, 2)},
        "LSTM<hidden_size = 2>(x, w, r, , n)",
        [4, 0],
        [[5, 1], [-1, 3]],
    ),
    "Gather": ({"x": (3, 2)}, "Gather(x, i)", [-3, 2], [[-4, 0], [3, 0]]),
    "GatherElements": ({"x": (2, 3)}, "GatherElements<axis = 1>(x, k)", [-3, 2], [[-4, 0], [3, 0]]),
    "GatherND": ({"x": (3, 2)}, "GatherND(x, i)", [-3, 1], [[3, 0], [0, 2], [0, -3]]),
    "ScatterElements": (
        {"x": (2, 3), "u": (2, 1)},
        "ScatterElements<axis = 1>(x, k, u)",
        [-3, 2],
        [[-4, 0], [3, 0]],
    ),
    "ScatterND": ({"x": (3, 2), "u": ()}, "ScatterND(x, i, u)", [-3, 1], [[3, 0], [0, 2]]),
}
HEAD = """k = Constant<value_ints = [2, 1]>() s = Constant<value_ints = [1, 1, 1, 2]>()
n = Cast<to = 6>(i) j = Reshape(i, s) t = Reshape(i, k) """


def model(shapes: dict[str, tuple[int, ...]], body: str, indices: str, made: str) -> bytes:
    inputs = [
        f"float{[*shape]} {name}" if shape else f"float {name}" for name, shape in shapes.items()
    ]
    text = f"""<ir_version: 10, opset_import: ["": 24]>
    g ({", ".join([*inputs, indices] if indices else inputs)}) => (float y) {{
      {made} {HEAD} y = {body.replace(", k", ", t")} }}"""
    return onnx.parser.parse_model(text).SerializeToString()


def operands(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {n: np.asarray(rng.random(s) * 3, np.float32) for n, s in shapes.items()}


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("op_type", CASES)
def test_indices_of_a_call(op_type: str, device: str) -> None:
    shapes, body, good, bad = CASES[op_type]
    feeds = operands(shapes)
    with engine.InferenceSession(model(shapes, body, "int64[2] i", ""), device=device) as session:
        for _ in range(2):
            assert np.isfinite(session.run(None, {**feeds, "i": np.array(good)})[0]).all()
            for wrong in bad:
                with pytest.raises(EngineError, match=op_type):
                    session.run(None, {**feeds, "i": np.array(wrong)})


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("op_type", CASES)
def test_indices_that_are_constant(op_type: str, device: str) -> None:
    shapes, body, good, bad = CASES[op_type]
    for values in (good, *bad):
        made = model(shapes, body, "", f"i = Constant<value_ints = {values}>()")
        if values is good:
            with engine.InferenceSession(made, device=device) as session:
                assert np.isfinite(session.run(None, operands(shapes))[0]).all()
            continue
        with (
            pytest.raises(EngineError, match=op_type),
            engine.InferenceSession(made, device=device) as session,
        ):
            session.run(None, operands(shapes))
