"""Operands of operators that are run as their function bodies fit, or the operator says why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx.parser
import pytest

import engine
from engine.errors import EngineError
from engine.importer import load_model
from engine.ops._fit import FITS

Shape = tuple[int, ...]
LOSS = "float[n, c] x, int64[m] t, float[k] w"
CAUSAL = "float[n, c, l] x, float[m, o, k] w, float[b] b, float[p, q, r] s"
ATTENTION = "float[b, h, l, d] q, float[e, g, k, f] k, float[m, n] a"
SCORES = "y, , , s = Attention<qk_matmul_output_mode = 0>(q, k, k, a)"
RATE = "q = Constant<value_float = 0.1>() n = Constant<value_int = 2>()"
MOMENTUM = '<alpha = 0.9, beta = 0.5, mode = "nesterov", norm_coefficient = 0.1>'
CASES: list[tuple[str, str, list[Shape], list[tuple[list[Shape], str]]]] = [
    *(
        (
            LOSS,
            f'y = {op}<reduction = "none">(x, t, w)',
            [(3, 5), (3,), (5,)],
            [
                ([(3, 5), (2,), (5,)], "sizes 3 and 2"),
                ([(3, 5), (1,), (5,)], "sizes 3 and 1"),
                ([(3, 5), (3,), (4,)], "sizes 5 and 4"),
                ([(3, 5), (3,), (1,)], "sizes 5 and 1"),
            ],
        )
        for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
    ),
    (
        "float[n, m] a, float[k, l] b",
        "y = SwiGLU(a, b)",
        [(2, 3), (2, 3)],
        [([(2, 3), (1, 3)], "sizes 2 and 1"), ([(2, 3), (2, 4)], "sizes 3 and 4")],
    ),
    (
        CAUSAL,
        "y, z = CausalConvWithState(x, w, b, s)",
        [(1, 2, 4), (2, 1, 3), (2,), (1, 2, 2)],
        [
            ([(1, 2, 4), (1, 1, 3), (2,), (1, 2, 2)], "sizes 1 and 2"),
            ([(1, 2, 4), (2, 2, 3), (2,), (1, 2, 2)], "sizes 2 and 1"),
            ([(1, 2, 4), (2, 1, 3), (1,), (1, 2, 2)], "sizes 1 and 2"),
            ([(1, 2, 4), (2, 1, 3), (2,), (1, 1, 2)], "sizes 1 and 2"),
            ([(1, 2, 4), (2, 1, 3), (2,), (1, 2, 3)], "sizes 3 and 2"),
            ([(1, 2, 4), (2, 1, 0), (2,), (1, 2, 0)], "have taps"),
        ],
    ),
    (
        ATTENTION,
        SCORES,
        [(1, 2, 3, 8), (1, 2, 5, 8), (3, 5)],
        [
            ([(1, 2, 3, 8), (1, 2, 5, 8), (3, 6)], "no wider than 5 keys|broadcast"),
            ([(1, 2, 3, 8), (1, 2, 5, 8), (2, 5)], "broadcast"),
            ([(2, 2, 3, 8), (1, 2, 5, 8), (3, 5)], "sizes 2 and 1|does not fit"),
            ([(1, 3, 3, 8), (1, 2, 5, 8), (3, 5)], "2 divides|no multiple"),
        ],
    ),
    *(
        (
            "float[a] x, float[b] g, float[c] m" + ", float[d] v" * (op == "Adam"),
            f"{RATE} y, {'z, u' if op == 'Adam' else 'z'} = "
            f"ai.onnx.preview.training.{op}{MOMENTUM if op == 'Momentum' else ''}"
            f"(q, n, x, g, m{', v' if op == 'Adam' else ''})",
            [(3,)] * count,
            [
                ([(3,), (2,), *[(3,)] * (count - 2)], "sizes 3 and 2"),
                ([(3,), (1,), *[(3,)] * (count - 2)], "sizes 3 and 1"),
                ([*[(3,)] * (count - 1), (4,)], "sizes 3 and 4"),
            ],
        )
        for op, count in (("Adagrad", 3), ("Adam", 4), ("Momentum", 3))
    ),
]


def model(inputs: str, body: str) -> bytes:
    head = '<ir_version: 13, opset_import: ["": 28, "ai.onnx.preview.training": 1]>'
    text = f"{head} g ({inputs}) => (float y) {{ {body} }}"
    return onnx.parser.parse_model(text).SerializeToString()


def feeds(session: engine.InferenceSession, shapes: list[Shape]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for given, shape in zip(session.get_inputs(), shapes, strict=True):
        values = rng.random(shape).astype(np.float32)
        made[given.name] = (values > 0.5).astype(np.int64) if "int64" in given.type else values
    return made


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[1].split("(")[-2][-20:])
def test_operands_that_do_not_fit(
    case: tuple[str, str, list[Shape], list[tuple[list[Shape], str]]],
) -> None:
    """In words, by the name of the model's operator, whether sizes are declared or not."""
    inputs, body, good, bad = case
    results = []
    for device in ("cpu", "gpu"):
        with engine.InferenceSession(model(inputs, body), device=device) as session:
            for _ in range(2):
                results.append(session.run(None, feeds(session, good))[0])
                for shapes, words in bad:
                    with pytest.raises(EngineError, match=words) as caught:
                        session.run(None, feeds(session, shapes))
                    assert str(caught.value).split()[0] in body
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-5, atol=1e-6)


ATTRIBUTES = [
    ("float[2, 3] x, int64[2] t", 'y = SoftmaxCrossEntropyLoss<reduction = "max">(x, t)', "max"),
    (
        "float[1, 2, 4] x, float[2, 1, 3] w",
        'y, z = CausalConvWithState<activation = "elu">(x, w)',
        "elu",
    ),
    ("float[2, 6] x, int64[1] s", "y = CenterCropPad(x, s)", "sizes 1 and 2"),
    ("float[2, 6] x, int64[2] s", "y = CenterCropPad<axes = [1]>(x, s)", "sizes 2 and 1"),
    ("float[2, 6] x, int64[1] s", "y = CenterCropPad<axes = [2]>(x, s)", "axis 2 is outside"),
    ("float[2, 6] x, int64[2] s", "y = CenterCropPad<axes = [1, -1]>(x, s)", "twice"),
]


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("inputs", "body", "words"), ATTRIBUTES, ids=[a[2] for a in ATTRIBUTES])
def test_attributes_that_do_not_fit(inputs: str, body: str, words: str, device: str) -> None:
    op_type = body.split("= ")[1].split("<")[0].split("(")[0]
    with (
        pytest.raises(EngineError, match=f"(?s){op_type}.*{words}"),
        engine.InferenceSession(model(inputs, body), device=device) as session,
    ):
        shapes: list[Shape] = [tuple(map(int, a.shape or ())) for a in session.get_inputs()]
        session.run(None, feeds(session, shapes))


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_crop_to_less_than_nothing(device: str) -> None:
    made = model("float[2, 6] x, int64[2] s", "y = CenterCropPad(x, s)")
    with engine.InferenceSession(made, device=device) as session:
        given: Mapping[str, Any] = {"x": np.ones((2, 6), np.float32)}
        (y,) = session.run(None, {**given, "s": np.array([3, 4])})
        np.testing.assert_array_equal(y, [[1] * 4] * 2 + [[0] * 4])
        with pytest.raises(EngineError, match="negative"):
            session.run(None, {**given, "s": np.array([-1, 4])})


def test_what_is_left_of_the_check_is_nothing() -> None:
    """Once its operands are known to fit, there is no trace of it."""
    made = model("float[2, 3] a, float[2, 3] b", "y = SwiGLU(a, b)")
    assert FITS in {n.op_type for n in load_model(made, for_gpu=True).graph.nodes}
    with engine.InferenceSession(made, device="gpu") as session:
        (y,) = session.run(None, {n: np.ones((2, 3), np.float32) for n in "ab"})
        assert not {FITS, "Identity"} & {
            n.op_type for n in session._runner.prepared[0].plan.graph.nodes
        }
    np.testing.assert_allclose(y, np.full((2, 3), 1 / (1 + np.exp(-1))), rtol=1e-6)
