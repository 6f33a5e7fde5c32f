"""Operands that do not fit each other in one call of many are errors, never other numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import engine
from engine.errors import EngineError

Shapes = list[tuple[int, ...]]
CASES: list[tuple[str, str, Shapes, list[Shapes]]] = [
    (
        "float[n, m] x",
        "t = Constant<value = int64[2] {3, 1}>() y = Expand(x, t)",
        [(3, 4)],
        [[(2, 4)], [(0, 4)]],
    ),
    (
        "float[n, 2] x",
        "t = Constant<value = int64[2] {2, 3}>() y, z = Split<axis = 0>(x, t)",
        [(5, 2)],
        [[(6, 2)], [(4, 2)]],
    ),
    (
        "float[n] x",
        "t = Constant<value = int64[2] {-2, -2}>() y = Pad(x, t)",
        [(5,)],
        [[(3,)], [(0,)]],
    ),
    ("float[1, c, 2, 2] x", "y = DepthToSpace<blocksize = 2>(x)", [(1, 4, 2, 2)], [[(1, 6, 2, 2)]]),
    ("float[1, 1, h, 2] x", "y = SpaceToDepth<blocksize = 2>(x)", [(1, 1, 4, 2)], [[(1, 1, 3, 2)]]),
    ("float[1, 1, n] x", "y = MaxPool<kernel_shape = [3]>(x)", [(1, 1, 5)], [[(1, 1, 0)]]),
    (
        "float[1, 2, n] x, float[o, 2, 3] w, float[p] b",
        "y = Conv(x, w, b)",
        [(1, 2, 5), (4, 2, 3), (4,)],
        [[(1, 2, 5), (4, 2, 3), (3,)], [(1, 2, 0), (4, 2, 3), (4,)]],
    ),
    ("float[n, m] x, float[k] s", "y = PRelu(x, s)", [(2, 3), (3,)], [[(2, 1), (3,)]]),
    (
        "float[n, 3] x, float[3, 5] w, float[p, 5] c",
        "y = Gemm(x, w, c)",
        [(2, 3), (3, 5), (2, 5)],
        [[(1, 3), (3, 5), (3, 5)]],
    ),
    ("float[n, m] x, float[k] s", "y = LayerNormalization(x, s)", [(2, 3), (3,)], [[(2, 1), (3,)]]),
    (
        "float[n, c, 2] x, float[k] s, float[l] b",
        "y = InstanceNormalization(x, s, b)",
        [(2, 3, 2), (3,), (3,)],
        [[(2, 3, 2), (1,), (1,)], [(2, 3, 2), (3,), (2,)]],
    ),
    (
        "float[n, 2] x, float[k, 2] u",
        "i = Constant<value = int64[2, 1] {0, 1}>() y = ScatterND(x, i, u)",
        [(3, 2), (2, 2)],
        [[(3, 2), (1, 2)]],
    ),
    (
        "float[n, 2] x",
        "i = Constant<value = int64[2] {0, 3}>() y = Gather(x, i)",
        [(4, 2)],
        [[(3, 2)]],
    ),
    (
        "float[n, 2] x",
        "i = Constant<value = int64[2, 1] {0, 3}>() y = GatherND(x, i)",
        [(4, 2)],
        [[(3, 2)], [(0, 2)]],
    ),
    (
        "float[b, n, 2] x",
        "i = Constant<value = int64[2, 1] {0, -3}>() y = GatherND<batch_dims = 1>(x, i)",
        [(2, 3, 2)],
        [[(2, 2, 2)], [(3, 3, 2)]],
    ),
    (
        "float[n, 2] x, float[2, 2] u",
        "i = Constant<value = int64[2, 1] {0, 3}>() y = ScatterND(x, i, u)",
        [(4, 2), (2, 2)],
        [[(3, 2), (2, 2)]],
    ),
    (
        "float[n] x, float[3, m] z",
        "s = Shape<start = 1>(z) y = Reshape(x, s)",
        [(2,), (3, 2)],
        [[(2,), (3, 1)], [(2,), (3, 6)], [(0,), (3, 2)]],
    ),
    (
        "float[a, b, 2, 3] x, float[c, d, 3, 2] w",
        "y = MatMul(x, w)",
        [(4, 0, 2, 3), (4, 0, 3, 2)],
        [[(4, 0, 2, 3), (4, 4, 3, 2)]],
    ),
]


def run(session: engine.InferenceSession, shapes: Shapes) -> list[Any]:
    names = [a.name for a in session.get_inputs()]
    feeds = {
        n: np.random.default_rng(len(n)).standard_normal(s).astype(np.float32)
        for n, s in zip(names, shapes, strict=True)
    }
    return session.run(None, feeds)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[1].split("(")[-2].split()[-1].split("<")[0])
def test_misfits_are_errors(case: tuple[str, str, Shapes, list[Shapes]]) -> None:
    inputs, body, good, bad = case
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 20]> g ({inputs}) => (float y) {{ {body} }}'
    ).SerializeToString()
    with (
        engine.InferenceSession(model, device="cpu") as cpu,
        engine.InferenceSession(model, device="gpu") as gpu,
    ):
        for _ in range(2):
            np.testing.assert_allclose(run(gpu, good)[0], run(cpu, good)[0], rtol=1e-4, atol=1e-5)
            for shapes in bad:
                for session in (cpu, gpu):
                    with pytest.raises(EngineError):
                        run(session, shapes)


@pytest.mark.gpu
def test_values_of_the_wrong_shape_are_not_uploaded() -> None:
    """An operator that NumPy lets broadcast further than inference says."""
    text = """<ir_version: 9, opset_import: ["": 20, "com.microsoft": 1]>
    g (float[n, k] a, float[l, m] b) => (float16 y)
    { x = Cast<to = 10>(a) c = Cast<to = 10>(b) t = com.microsoft.BiasGelu(x, c) y = Neg(t) }"""
    model = onnx.parser.parse_model(text).SerializeToString()
    with engine.InferenceSession(model, device="gpu") as session:
        assert run(session, [(2, 3), (1, 3)])[0].shape == (2, 3)
        with pytest.raises(EngineError, match="do not fit"):
            run(session, [(1, 3), (4, 3)])


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_computed_size_of_0_copies_one(device: str) -> None:
    """Reshape takes it for the size of the input on that axis, so it is not the size of y."""
    text = """<ir_version: 9, opset_import: ["": 20]>
    g (float[n] x, float[3, m] z) => (float y, int64 s, float w) {
      t = Shape<start = 1>(z)
      y = Reshape(x, t)
      s = Shape(y)
      left = Constant<value = int64[1] {-1}>()
      u = Concat<axis = 0>(t, left)
      v = Reshape(x, u)
      w = Neg(v)
    }"""
    model = onnx.parser.parse_model(text).SerializeToString()
    with engine.InferenceSession(model, device=device) as session:
        for n, m in ((2, 2), (2, 0), (3, 3), (3, 0), (0, 0)):
            feeds = {"x": np.ones(n, np.float32), "z": np.ones((3, m), np.float32)}
            if not n:
                with pytest.raises(EngineError):
                    session.run(None, feeds)
                continue
            y, s, w = session.run(None, feeds)
            assert y.shape == (n,) and s.tolist() == [n] and w.shape == (n, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("c = Constant<value = int64[1] {9223372036854775807}>() y = Add(s, c)", "can't hold"),
        ("t = Constant<value = int64[1] {10}>() y = Div(t, s)", "divided by 0"),
    ],
)
def test_arithmetic_on_sizes_that_has_no_result(device: str, body: str, message: str) -> None:
    text = f"""<ir_version: 9, opset_import: ["": 20]>
    g (float[n, 2] x) => (int64 y) {{ s = Shape<end = 1>(x) {body} }}"""
    model = onnx.parser.parse_model(text).SerializeToString()
    size = 0 if "divided" in message else 3
    with engine.InferenceSession(model, device=device) as session:
        with pytest.raises(EngineError, match=message):
            session.run(None, {"x": np.ones((size, 2), np.float32)})


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_a_quotient_by_0_is_not_worked_out_ahead(device: str) -> None:
    text = """<ir_version: 9, opset_import: ["": 20]>
    g (float[n] x) => (int64 y, int64 w) {
      s = Shape(x)
      c = Constant<value = int64[1] {0}>()
      y = Div(s, c)
      d = Constant<value = int64[1] {4611686018427387904}>()
      four = Constant<value = int64[1] {4}>()
      w = Mul(d, four)
    }"""
    model = onnx.parser.parse_model(text).SerializeToString()
    with engine.InferenceSession(model, device=device) as session:
        y, w = session.run(None, {"x": np.ones(3, np.float32)})
    assert y.tolist() == [0] and w.tolist() == [0]


@pytest.mark.gpu
def test_a_transposed_convolution_of_no_channels() -> None:
    text = """<ir_version: 9, opset_import: ["": 20]>
    g (float[1, c, 3] x, float[c, 2, 2] w) => (float y) { y = ConvTranspose(x, w) }"""
    model = onnx.parser.parse_model(text).SerializeToString()
    with engine.InferenceSession(model, device="gpu") as session:
        run(session, [(1, 2, 3), (2, 2, 2)])
        assert not run(session, [(1, 0, 3), (0, 2, 2)])[0].any()
