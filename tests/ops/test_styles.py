"""Every style of kernel that an operator offers is right, on the adapter and on the baseline."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from engine.ir import Array
from engine.ops import registered
from engine.runtime.session import InferenceSession
from engine.tuning import Trial
from tests.runtime.models import parse

RNG = np.random.default_rng(5)

MODELS = {
    "MatMul": """
agraph (float[b, m, 64] x, float[64, 36] w) => (float[b, m, 36] y) {
    z = MatMul(x, w)
    y = Relu(z)
}""",
    "Gemm": """
agraph (float[64, m] x, float[70, 64] w, float[70] c) => (float[m, 70] y) {
    y = Gemm<transA = 1, transB = 1, alpha = 0.5, beta = 2.0>(x, w, c)
}""",
    "Conv": """
agraph (float[b, 6, m, 12] x, float[36, 6, 3, 3] w, float[36] c, float[20, 36, 1, 1] v)
    => (float[b, 20, m, 12] y) {
    z = Conv<pads = [1, 1, 1, 1]>(x, w, c)
    y = Conv<strides = [1, 1]>(z, v)
}""",
}
"""By operator; sizes that are not known are drawn."""
SIZES = ({"b": 2, "m": 33}, {"b": 1, "m": 3})
STYLES = [
    (op.op_type, place, style) for op in registered() for place, style in enumerate(op.styles)
]


def test_every_operator_with_styles_is_tested() -> None:
    assert {op.op_type for op in registered() if op.styles} == MODELS.keys()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("target", ["baseline", "adapter"])
@pytest.mark.parametrize(("op_type", "place", "style"), STYLES)
def test_style(op_type: str, place: int, style: str, target: str) -> None:
    for sizes, constant in zip(SIZES, (False, True), strict=True):
        feeds = draw(op_type, sizes)
        model = parse(MODELS[op_type])
        if constant:
            feeds = {"x": freeze(model, feeds)}
        tuned = InferenceSession(model, device="gpu", target=target, tuning=Trial(place=place))
        (got,) = tuned.run(None, feeds)
        (want,) = InferenceSession(model, device="cpu").run(None, feeds)
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())
        assert style in {d.style for d in tuned.plan(feeds).dispatches}


def draw(op_type: str, sizes: dict[str, int]) -> dict[str, Array]:
    """Inputs of a model."""
    arrays = {}
    for value in parse(MODELS[op_type]).graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in dims]
        arrays[value.name] = RNG.standard_normal(shape).astype(np.float32)
    return arrays


def freeze(model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    """Makes all inputs but `x` constants, so that weights can be packed; returns `x`."""
    for name, array in feeds.items():
        if name != "x":
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    kept = [i for i in model.graph.input if i.name == "x"]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return feeds["x"]
