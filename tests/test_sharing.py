"""Software compiles one kernel where others get one for each place, order or activation."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import engine
from engine.ir import Array
from engine.runtime import targets

pytestmark = pytest.mark.gpu
CHANCE = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    return np.float32(0.5) * CHANCE.standard_normal(shape).astype(np.float32)


@pytest.fixture(params=[False, True], ids=["gpu", "software"])
def software(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(targets, "is_software", lambda kind: request.param)
    return bool(request.param)


def kernels(text: str, weights: dict[str, Array], feeds: dict[str, Array]) -> int:
    """How many kernels a model takes, once its outputs are those of the reference."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in weights.items())
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        found = session.run(None, feeds)
        with np.errstate(invalid="ignore"):
            wanted = ReferenceEvaluator(model).run(None, feeds)
        for mine, right in zip(found, wanted, strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-5)
        return len({d.variants[-1].kernel for d in session.plan().dispatches})


@pytest.mark.parametrize("clip", ["Clip(a, l, h)", "Clip(a, l)", "Clip(a, '', h)", "Relu(a)"])
@pytest.mark.parametrize("size", [4, 3])
def test_an_activation_that_does_nothing(clip: str, size: int, software: bool) -> None:
    text = f"""g (float[1, 8, {size}, 4] x) => (float[1, 8, {size}, 4] y, float[1, 8, {size}, 4] z)
        {{ a = Conv(x, v)  b = {clip}  c = Conv(b, w)  d = Add(c, x)
        y = Conv(d, v)  z = Conv(y, k) }}""".replace("''", "")
    weights = {"v": floats(8, 8, 1, 1), "w": floats(8, 8, 1, 1), "k": floats(8, 8, 1, 1)}
    weights |= {"l": np.array(-0.5, np.float32), "h": np.array(0.5, np.float32)}
    x = floats(1, 8, size, 4)
    assert kernels(text, weights, {"x": x}) == (2 if software else 3)
    x[0, 0, 0], x[0, 1, 1], x[0, 2, 2] = np.inf, -np.inf, np.nan
    assert kernels(text, weights, {"x": x}) == (2 if software else 3)


def test_an_activation_of_another_kind_of_convolution(software: bool) -> None:
    text = """g (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y)
        { a = Conv<pads = [1, 1, 1, 1]>(x, w)  b = Clip(a, l, h)  y = Conv(b, v) }"""
    weights = {"w": floats(8, 8, 3, 3), "v": floats(8, 8, 1, 1)}
    weights |= {"l": np.array(-0.5, np.float32), "h": np.array(0.5, np.float32)}
    assert kernels(text, weights, {"x": floats(1, 8, 4, 4)}) == 2


def test_an_operator_of_several_outputs_has_no_activation(software: bool) -> None:
    text = """g (float[3, 2, 5] x, float[1, 24, 5] w, float[1, 24, 6] r, float[1, 48] c)
        => (float[3, 1, 2, 6] b, float[3, 1, 2, 6] y, float[1, 2, 6] h, float[1, 2, 6] s) {
        a, a1, a2 = LSTM<hidden_size = 6>(x, w, r, c)  b = Relu(a)
        y, h, s = LSTM<hidden_size = 6>(x, w, r, c) }"""
    shapes = {"x": (3, 2, 5), "w": (1, 24, 5), "r": (1, 24, 6), "c": (1, 48)}
    assert kernels(text, {}, {name: floats(*shape) for name, shape in shapes.items()})


@pytest.mark.parametrize("width", [8, 6])
@pytest.mark.parametrize("n", [3, 12])
def test_operands_that_begin_anywhere(n: int, width: int, software: bool) -> None:
    """Half of a value, its other half, and one with a buffer of its own.

    A begin that splits fours of neighbours takes another kernel anyway.
    """
    text = f"""g (float[n, {width}] x, float[m, {width}] z)
        => (float[h, 8] a, float[h, 8] b, float[m, 8] c) {{
        p, q = Split<axis = 0, num_outputs = 2>(x)
        a = MatMul(p, w)  b = MatMul(q, w)  c = MatMul(z, w) }}"""
    feeds = {"x": floats(2 * n, width), "z": floats(n, width)}
    found = kernels(text, {"w": floats(width, 8)}, feeds)
    assert found == (2 if width == 8 else 3) - software
