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
    *(
        (
            "float[2, c, n] x",
            f"s = Constant<value = float[{len(numbers)}] {{{', '.join(numbers)}}}>() "
            "y = BatchNormalization(x, s, s, s, s)",
            [(2, len(numbers), 4)],
            [[(2, wrong, 4)]],
        )
        for numbers, wrong in ((["0.5"], 3), (["0.5", "2.0", "1.5"], 1))
    ),
    ("float[1, c, 2, 2] x", "y = DepthToSpace<blocksize = 2>(x)", [(1, 4, 2, 2)], [[(1, 6, 2, 2)]]),
    ("float[1, 1, h, 2] x", "y = SpaceToDepth<blocksize = 2>(x)", [(1, 1, 4, 2)], [[(1, 1, 3, 2)]]),
    ("float[1, 1, n] x", "y = MaxPool<kernel_shape = [3]>(x)", [(1, 1, 5)], [[(1, 1, 0)]]),
    (
        "float[1, 2, n] x, float[o, 2, 3] w, float[p] b",
        "y = Conv(x, w, b)",
        [(1, 2, 5), (4, 2, 3), (4,)],
        [[(1, 2, 5), (4, 2, 3), (k,)] for k in (3, 1, 5)] + [[(1, 2, 0), (4, 2, 3), (4,)]],
    ),
    (
        "float[1, 2, n] x, float[2, o, 3] w, float[p] b",
        "y = ConvTranspose(x, w, b)",
        [(1, 2, 5), (2, 4, 3), (4,)],
        [[(1, 2, 5), (2, 4, 3), (k,)] for k in (3, 1, 5)],
    ),
    (
        "float[1, 2, n] a, float[o, 2, 3] v, float[p] c",
        "s = Constant<value_float = 0.5>() o = Constant<value_int = 0>() p = Cast<to = 2>(o) "
        "x = QuantizeLinear(a, s, p) w = QuantizeLinear(v, s, p) b = Cast<to = 6>(c) "
        "y = QLinearConv(x, s, p, w, s, p, s, p, b)",
        [(1, 2, 5), (4, 2, 3), (4,)],
        [[(1, 2, 5), (4, 2, 3), (k,)] for k in (3, 1, 5)],
    ),
    (
        "float[1, c, n] x, float[o, i, 3] w",
        "y = Conv<group = 2>(x, w)",
        [(1, 4, 5), (6, 2, 3)],
        [
            [(1, 4, 5), (3, 2, 3)],
            [(1, 4, 5), (4, 1, 3)],
            [(1, 4, 5), (4, 3, 3)],
            [(1, 6, 5), (4, 2, 3)],
        ],
    ),
    (
        "float[1, c, n] x, float[o, i, 3] w",
        "y = ConvTranspose<group = 2>(x, w)",
        [(1, 4, 5), (4, 2, 3)],
        [[(1, 5, 5), (5, 2, 3)], [(1, 4, 5), (6, 2, 3)]],
    ),
    *(
        (
            "float[1, c, n] a, float[o, i, 3] b",
            f"x = Cast<to = 2>(a) w = Cast<to = 2>(b) {body} y = Cast<to = 1>(z)",
            [(1, 4, 5), (6, 2, 3)],
            [[(1, 4, 5), (3, 2, 3)], [(1, 4, 5), (4, 1, 3)], [(1, 6, 5), (4, 2, 3)]],
        )
        for body in (
            "z = ConvInteger<group = 2>(x, w)",
            "s = Constant<value_float = 0.5>() o = Constant<value_int = 0>() p = Cast<to = 2>(o) "
            "z = QLinearConv<group = 2>(x, s, p, w, s, p, s, p)",
        )
    ),
    (
        "float[a, b, c] x",
        'y = Einsum<equation = "aab->ab">(x)',
        [(3, 3, 2)],
        [[(3, 1, 2)], [(1, 3, 2)], [(2, 3, 2)]],
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
    (
        "float[t, b, i] x, float[1, g, j] w, float[1, h, k] r, float[1, l] c",
        "y = RNN<hidden_size = 3>(x, w, r, c)",
        [(4, 2, 5), (1, 3, 5), (1, 3, 3), (1, 6)],
        [
            [(4, 2, 4), (1, 3, 5), (1, 3, 3), (1, 6)],
            [(4, 2, 5), (1, 4, 5), (1, 3, 3), (1, 6)],
            [(4, 2, 5), (1, 3, 5), (1, 3, 2), (1, 6)],
            [(4, 2, 5), (1, 3, 5), (1, 3, 3), (1, 5)],
        ],
    ),
    (
        "float[t, b, 2] x, float[1, 12, 2] w, float[1, 12, 3] r, float[1, c, 3] h",
        "y = LSTM<hidden_size = 3>(x, w, r, , , h)",
        [(4, 2, 2), (1, 12, 2), (1, 12, 3), (1, 2, 3)],
        [[(4, 3, 2), (1, 12, 2), (1, 12, 3), (1, 2, 3)]],
    ),
    (
        "float[b, l, 6] q, float[c, m, 6] k, float[d, n, 4] v, float[o, p] a",
        "y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v, a)",
        [(2, 3, 6), (2, 5, 6), (2, 5, 4), (3, 5)],
        [
            [(1, 3, 6), (2, 5, 6), (2, 5, 4), (3, 5)],
            [(2, 3, 6), (2, 5, 6), (1, 5, 4), (3, 5)],
            [(2, 3, 6), (2, 4, 6), (2, 5, 4), (3, 4)],
            [(2, 3, 6), (2, 5, 6), (2, 5, 4), (2, 5)],
            [(2, 3, 6), (2, 5, 6), (2, 5, 4), (3, 6)],
        ],
    ),
    (
        "float[n, 1, h, w] x, float[m, 3, 2, c] g",
        "y = GridSample(x, g)",
        [(2, 1, 4, 5), (2, 3, 2, 2)],
        [
            [(2, 1, 4, 5), (1, 3, 2, 2)],
            [(1, 1, 4, 5), (2, 3, 2, 2)],
            [(2, 1, 4, 5), (2, 3, 2, 3)],
            [(2, 1, 0, 5), (2, 3, 2, 2)],
        ],
    ),
    (
        "float[n, 1, h, 5] x, float[r, c] b",
        "i = Constant<value = int64[2] {0, 0}>() y = RoiAlign<sampling_ratio = 2>(x, b, i)",
        [(1, 1, 4, 5), (2, 4)],
        [
            [(1, 1, 4, 5), (3, 4)],
            [(1, 1, 4, 5), (2, 5)],
            [(0, 1, 4, 5), (2, 4)],
            [(1, 1, 0, 5), (2, 4)],
        ],
    ),
    (
        "float[n, t, 2] x",
        "i = Constant<value = int64[2] {1, 2}>() "
        "y = ReverseSequence<batch_axis = 0, time_axis = 1>(x, i)",
        [(2, 3, 2)],
        [[(3, 3, 2)], [(1, 3, 2)], [(2, 1, 2)]],
    ),
    (
        "float[b, n, c] x, float[d, m, e] u",
        "i = Constant<value = int64[2] {1, 0}>() y = TensorScatter(x, u, i)",
        [(2, 4, 3), (2, 2, 3)],
        [
            [(2, 4, 3), (1, 2, 3)],
            [(3, 4, 3), (3, 2, 3)],
            [(2, 4, 3), (2, 2, 1)],
            [(2, 4, 3), (2, 5, 3)],
        ],
    ),
    (
        "float[1, 1, n, 2] x",
        "i = Constant<value = int64[1, 1, 2, 2] {0, 2, 8, 10}>() "
        "y = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(x, i)",
        [(1, 1, 2, 2)],
        [[(1, 1, 3, 2)], [(1, 1, 1, 2)]],
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
        f'<ir_version: 9, opset_import: ["": 24]> g ({inputs}) => (float y) {{ {body} }}'
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


RANKS = [
    "float[2, 3] x, float s, float[3] b", "y = BatchNormalization(x, s, b, b, b)",
    "float[2, 3] x, float[3, 4] w, float[1, 2, 4] c", "y = Gemm(x, w, c)",
    "float[1, 1, 2, 2] x, float s", "y = Resize(x, , s)",
    "float[2, 3] x, float s, float[3] b", "y = GroupNormalization<num_groups = 3>(x, s, b)",
    "float[2, 3] x", "y = BitCast<to = -1>(x)",
    "float x, float[1, 3, 2] w, float[1, 3, 3] r", "y = RNN<hidden_size = 3>(x, w, r)",
    "float[2] x, float[1, 1, 3] w", "y = ConvTranspose(x, w)",
    "float[1, 1, 5] x", "y = MaxPool<kernel_shape = [0]>(x)",
    "float[1, 1, 5] x, float[1, 1, 2] w", "y = ConvTranspose<strides = [0]>(x, w)",
    "float[1, 1, 5] x, float[1, 1, 2] w", "y = Conv<dilations = [0]>(x, w)",
    "float[5] x", "y = Trilu(x)",
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("inputs", "body"), [*zip(RANKS[::2], RANKS[1::2], strict=True)], ids=RANKS[1::2]
)
def test_operands_of_another_form_are_typed_errors(inputs: str, body: str, device: str) -> None:
    """A rank or a code that no rule expects: the error names the node, whichever stage meets it."""
    model = onnx.parser.parse_model(
        f'<ir_version: 13, opset_import: ["": 26]> g ({inputs}) => (float y) {{ {body} }}'
    ).SerializeToString()
    op_type = body.split("=")[1].split("(")[0].split("<")[0].strip()
    with pytest.raises(EngineError, match=op_type):
        session = engine.InferenceSession(model, device=device)
        shapes: Shapes = [tuple(map(int, a.shape or ())) for a in session.get_inputs()]
        run(session, shapes)


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_a_region_of_interest_of_another_length(device: str) -> None:
    """It counts for tf_crop_and_resize alone; other modes do not look at it."""
    for mode, fits in (("tf_crop_and_resize", False), ("half_pixel", True)):
        text = f"""<ir_version: 10, opset_import: ["": 24]>
        g (float[1, 1, 4, 4] x, float[n] r) => (float y) {{
          s = Constant<value_floats = [1.0, 1.0, 0.5, 0.5]>()
          y = Resize<coordinate_transformation_mode = "{mode}">(x, r, s) }}"""
        model = onnx.parser.parse_model(text).SerializeToString()
        with engine.InferenceSession(model, device=device) as session:
            feeds = {"x": np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)}
            whole = np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32)
            (y,) = session.run(None, {**feeds, "r": whole})
            assert y.shape == (1, 1, 2, 2)
            for wrong in (whole[:6], whole[:4]):
                if fits:
                    (same,) = session.run(None, {**feeds, "r": wrong})
                    np.testing.assert_array_equal(same, y)
                    continue
                with pytest.raises(EngineError, match=r"sizes . and 8|a roi of shape"):
                    session.run(None, {**feeds, "r": wrong})


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_constant_statistics_of_another_number_of_channels(device: str) -> None:
    """Those that do not broadcast in the operator must not once it is written as arithmetic."""
    text = """<ir_version: 9, opset_import: ["": 23]> g (float[n, 3] x) => (float y)
    { s = Constant<value = float[1] {2}>() b = Constant<value = float[3] {1, 2, 3}>()
    y = BatchNormalization(x, s, b, b, b) }"""
    model = onnx.parser.parse_model(text).SerializeToString()
    with (
        pytest.raises(EngineError, match="per channel"),
        engine.InferenceSession(model, device=device) as session,
    ):
        run(session, [(2, 3)])


ROTARY = """<ir_version: 10, opset_import: ["": 23]>
g (float[b, 2, l, 4] x, float[n, 2] c, int64[p, l] i) => (float y) {
    y = RotaryEmbedding(x, c, c, i) }"""


@pytest.mark.gpu
def test_positions_of_one_entry_hold_for_the_whole_batch() -> None:
    """NumPy repeats them, and a kernel would read past their end."""
    rng = np.random.default_rng(0)
    x, cache = (rng.standard_normal(s).astype(np.float32) for s in ((2, 2, 3, 4), (5, 2)))
    model = onnx.parser.parse_model(ROTARY).SerializeToString()
    results = []
    for device in ("cpu", "gpu"):
        with engine.InferenceSession(model, device=device) as session:
            for count in (2, 1):
                i = np.array([[4, 0, 2]] * count)
                results.append(session.run(None, {"x": x, "c": cache, "i": i})[0])
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_positions_outside_of_a_cache(device: str) -> None:
    model = onnx.parser.parse_model(ROTARY).SerializeToString()
    with engine.InferenceSession(model, device=device) as session:
        x, cache = np.ones((1, 2, 3, 4), np.float32), np.ones((5, 2), np.float32)
        for wrong in (5, -6):
            with pytest.raises(EngineError, match=f"index {wrong} is out"):
                session.run(None, {"x": x, "c": cache, "i": np.array([[0, wrong, 1]])})


EMPTY = [
    (
        "float[n, 4, 2] x, float[4] s",
        "y = GroupNormalization<num_groups = 2>(x, s, s)",
        [(0, 4, 2), (4,)],
    ),
    (
        "float[n, 1, 4, 5] x, float[n, 3, 2, 2] g",
        "y = GridSample(x, g)",
        [(0, 1, 4, 5), (0, 3, 2, 2)],
    ),
    (
        "float[b, l, 6] q, float[b, m, 6] k",
        "y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, k)",
        [(2, 0, 6), (2, 5, 6)],
    ),
]


@pytest.mark.gpu
@pytest.mark.parametrize("case", EMPTY, ids=lambda c: c[1])
def test_nothing_of_nothing(case: tuple[str, str, Shapes]) -> None:
    inputs, body, shapes = case
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 23]> g ({inputs}) => (float y) {{ {body} }}'
    ).SerializeToString()
    results = []
    for device in ("cpu", "gpu"):
        with engine.InferenceSession(model, device=device) as session:
            results.append(run(session, shapes)[0])
    assert results[0].shape == results[1].shape
    assert results[0].size == 0


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


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("sizes", ["2, 3", "n, m"])
def test_a_size_below_minus_one_is_not_worked_out(sizes: str, fed: bool, device: str) -> None:
    """NumPy takes any negative size for the one that is left."""
    given, made = (", int64[2] s", "") if fed else ("", "s = Constant<value_ints = [2, -5]>()")
    text = f"""<ir_version: 9, opset_import: ["": 20]>
    g (float[{sizes}] x{given}) => (float y) {{ {made} y = Reshape(x, s) }}"""
    model = onnx.parser.parse_model(text).SerializeToString()
    feeds = {"x": np.ones((2, 3), np.float32)} | ({"s": np.array([2, -5])} if fed else {})
    with (
        pytest.raises(EngineError, match=r"Reshape.*below -1"),
        engine.InferenceSession(model, device=device) as session,
    ):
        session.run(None, feeds)
