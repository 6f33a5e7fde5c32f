"""Kernels with elementwise work behind them: what the fused store computes, in every variant."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx.parser
import pytest

import engine
from tests.ops.harness import OPSET, OpCase, arrays, compare, run_fallback

ANCHORS = [
    OpCase("ReduceMean", (((4, 6, 37), "float32"), np.array([2])), {"keepdims": 1}, name="scalar"),
    OpCase("ReduceSum", (((3, 5, 512), "float32"), np.array([2])), name="workgroup"),
    OpCase("ReduceMax", (((5, 6, 8), "float32"), np.array([1])), name="vec4"),
    OpCase("ReduceL1", (((70000, 2), "float32"), np.array([0])), name="long"),
    OpCase("ReduceLogSumExp", (((70, 2), "float32"), np.array([0]))),
    OpCase("Softmax", (((3, 5, 37), "float32"),), name="scalar"),
    OpCase("Softmax", (((3, 5, 16), "float32"),), name="vec4"),
    OpCase("LogSoftmax", (((3, 300), "float32"),), name="workgroup-vec4"),
    OpCase("Hardmax", (((3, 7), "float32"),)),
    OpCase("CumSum", (((3, 7), "float32"), np.array(1))),
    OpCase("LayerNormalization", (((3, 37), "float32"), ((37,), "float32"))),
    OpCase("LayerNormalization", (((3, 256), "float32"), ((256,), "float32")), name="vec4"),
    OpCase("RMSNormalization", (((5000, 8), "float32"), ((8,), "float32"))),
    OpCase("InstanceNormalization", (((2, 3, 4, 4), "float32"), *(((3,), "float32"),) * 2)),
    OpCase("LRN", (((2, 5, 3), "float32"),), {"size": 3}),
    OpCase("MeanVarianceNormalization", (((2, 3, 4, 4), "float32"),), name="two-stages"),
    OpCase("LpNormalization", (((3, 5), "float32"),)),
    OpCase("GridSample", (((2, 3, 5, 7), "float32"), ((2, 4, 6, 2), "float32"))),
    OpCase("AffineGrid", (((2, 2, 3), "float32"), np.array([2, 3, 4, 5]))),
    OpCase("Col2Im", (((2, 8, 6), "float32"), np.array([3, 4]), np.array([2, 2]))),
    OpCase("ReverseSequence", (((7, 3, 5), "float32"), np.array([0, 4, 7]))),
    OpCase("TensorScatter", (((2, 7, 5), "float32"), ((2, 3, 5), "float32"), np.array([4, 1]))),
    OpCase("EyeLike", (((5, 7), "float32"),)),
]


def chain_model(
    case: OpCase, values: list[Any], shape: tuple[int, ...]
) -> tuple[Any, dict[str, Any]]:
    """The case's node, then y * weight + other, Sigmoid and a comparison, all of them outputs."""
    definition = case.definition
    fixed = definition.shape_inputs if definition is not None else ()
    rng = np.random.default_rng(1)
    weight = rng.standard_normal(shape[-1:]).astype(np.float32)
    other = rng.standard_normal(shape).astype(np.float32)
    constants = {f"x{i}": values[i] for i in fixed if i < len(values)} | {"weight": weight}
    fed = {f"x{i}": v for i, v in enumerate(values) if i not in fixed} | {"other": other}
    nodes = [
        oh.make_node(case.op, [f"x{i}" for i in range(len(values))], ["y"], **case.attrs),
        oh.make_node("Mul", ["y", "weight"], ["scaled"]),
        oh.make_node("Add", ["scaled", "other"], ["sum"]),
        oh.make_node("Sigmoid", ["sum"], ["sigmoid"]),
        oh.make_node("Greater", ["sum", "weight"], ["above"]),
    ]
    inputs = [
        oh.make_tensor_value_info(name, oh.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for name, v in fed.items()
    ]
    outputs = [oh.make_empty_tensor_value_info(name) for name in ("sigmoid", "y", "above")]
    tensors = [onh.from_array(v, name) for name, v in constants.items()]
    graph = oh.make_graph(nodes, "chain", inputs, outputs, tensors)
    opsets = [oh.make_opsetid("", OPSET)]
    return oh.make_model(graph, opset_imports=opsets, ir_version=10), fed


@pytest.mark.gpu
@pytest.mark.parametrize("case", ANCHORS, ids=lambda case: f"{case.op}-{case.name}")
def test_elementwise_work_after_a_kernel(case: OpCase) -> None:
    values = arrays(case)
    shape = run_fallback(case, values)[0].shape
    model, fed = chain_model(case, values, shape)
    with engine.InferenceSession(model, device="cpu") as session:
        expected = session.run(None, fed)
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        got = session.run(None, fed)
        dispatches = len(session.plan(fed).dispatches)
    assert dispatches == (2 if case.name in ("long", "two-stages") else 1), (
        "the chain is not in the epilogue"
    )
    for mine, want in zip(got[:2], expected[:2], strict=True):
        compare(mine, want, 1e-5)
    differing = np.count_nonzero(got[2] != expected[2])
    assert differing <= got[2].size // 1000


@pytest.mark.gpu
@pytest.mark.parametrize("axis", [1, 2])
def test_a_variance_that_cancels_is_as_near_to_the_truth_as_numpy_has_it(axis: int) -> None:
    """E[x^2] - E[x]^2 loses nearly all digits: what is left tells the errors of the sums.

    They decide which results differ, by percents, and neither side is right. A product that is
    contracted into the subtraction is no error beyond those.
    """
    text = f"""<ir_version: 9, opset_import: ["": 20]>
    g (float[4, n, m] x) => (float[4, k] variance, float[4, k] scale) {{
      axes = Constant<value_ints = [{axis}]>()
      size = Shape<start = {axis}, end = {axis + 1}>(x)
      count = Cast<to = 1>(size)
      squares = Mul(x, x)
      sums = ReduceSum<keepdims = 0>(x, axes)
      sums2 = ReduceSum<keepdims = 0>(squares, axes)
      mean = Div(sums, count)
      mean2 = Div(sums2, count)
      square = Mul(mean, mean)
      variance = Sub(mean2, square)
      tiny = Constant<value_float = 0.000001>()
      some = Add(variance, tiny)
      root = Sqrt(some)
      scale = Reciprocal(root)
    }}"""
    x = 1 + np.random.default_rng(0).standard_normal((4, 300, 260)).astype(np.float32) / 300
    truth = x.astype(np.float64).var(axis=axis)
    errors = {}
    for device in ("cpu", "gpu"):
        model = onnx.parser.parse_model(text).SerializeToString()
        with engine.InferenceSession(model, device=device) as session:
            variance = session.run(None, {"x": x})[0]
        errors[device] = np.sqrt(np.mean((variance - truth) ** 2))
    assert 0 < errors["gpu"] < 2 * errors["cpu"] < np.mean(truth), errors


IDIOMS = {
    "plain": "s = Add(x, m)  y = Sub(s, m)",
    "turned": "s = Sub(m, x)  y = Sub(m, s)",
    "product": "a = MatMul(x, one)  s = Add(a, m)  y = Sub(s, m)",
    "in front": "s = Add(x, m)  d = Sub(s, m)  y = MatMul(d, one)",
    "scaled": "a = Mul(x, two)  s = Add(a, m)  d = Sub(s, m)  y = Mul(d, half)",
}
"""What rounds by adding a large number and taking it off again."""


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["baseline", "adapter"])
@pytest.mark.parametrize("width", [3, 8])
@pytest.mark.parametrize("name", IDIOMS)
def test_a_large_number_that_is_added_and_taken_off_rounds(
    name: str, width: int, target: str
) -> None:
    ones = ", ".join(str(float(i == j)) for i in range(width) for j in range(width))
    text = f"""<ir_version: 9, opset_import: ["": 20]>
    g (float[5, {width}] x, float m) => (float[5, {width}] y)
    <float two = {{2}}, float half = {{0.5}}, float[{width}, {width}] one = {{{ones}}}> {{
      {IDIOMS[name]} }}"""
    x = 3 * np.random.default_rng(width).standard_normal((5, width), dtype=np.float32)
    feeds = {"x": x, "m": np.float32(1.5 * 2**23)}
    model = onnx.parser.parse_model(text).SerializeToString()
    with engine.InferenceSession(model, device="gpu", require_gpu=True, target=target) as session:
        (y,) = session.run(None, feeds)
    want = np.round(2 * x) / 2 if name == "scaled" else np.round(x)
    np.testing.assert_array_equal(y, want)


@pytest.mark.gpu
def test_the_error_of_a_sum_is_kept() -> None:
    """Knuth's two-sum, as compensated sums compute it."""
    text = """<ir_version: 9, opset_import: ["": 20]>
    g (float[n] a, float[n] b) => (float[n] error) {
      s = Add(a, b)  v = Sub(s, a)  u = Sub(s, v)  e = Sub(a, u)  f = Sub(b, v)  error = Add(e, f)
    }"""
    rng = np.random.default_rng(0)
    a = rng.standard_normal(64, dtype=np.float32)
    b = rng.standard_normal(64, dtype=np.float32) / 1000
    model = onnx.parser.parse_model(text).SerializeToString()
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        (error,) = session.run(None, {"a": a, "b": b})
    exact = a.astype(np.float64) + b - (a + b).astype(np.float64)
    assert np.abs(exact).max() > 0
    np.testing.assert_array_equal(error, exact.astype(np.float32))


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["baseline", "adapter"])
@pytest.mark.parametrize("width", [3, 8])
@pytest.mark.parametrize(
    "body",
    [
        "y = Sub(x, x)",
        "a = Neg(x)  y = Add(x, a)",
        "a = Exp(x)  y = Sub(a, a)",
        "a = Mul(x, m)  b = Mul(m, x)  y = Sub(a, b)",
        "a = Sub(x, m)  b = Sub(x, m)  y = Sub(a, b)",
        "a = Neg(x)  b = Sum(x, m, a)  y = Sub(b, m)",
        "a = Neg(x)  y = Mean(a, x, a)",
        "a = Sqrt(x)  y = Mul(a, a)",
    ],
)
def test_infinity_less_infinity_and_the_like_are_nan(body: str, width: int, target: str) -> None:
    text = f"""<ir_version: 9, opset_import: ["": 20]>
    g (float[3, {width}] x, float m) => (float[3, {width}] y) {{ {body} }}"""
    x = np.random.default_rng(width).standard_normal((3, width), dtype=np.float32)
    x[0, :3], x[2, 1] = [np.inf, -np.inf, np.nan], np.inf
    model = onnx.parser.parse_model(text).SerializeToString()
    feeds = {"x": x, "m": np.float32(1)}
    with (
        engine.InferenceSession(model, device="gpu", require_gpu=True, target=target) as gpu,
        engine.InferenceSession(model, device="cpu") as cpu,
    ):
        (mine,), (other,) = gpu.run(None, feeds), cpu.run(None, feeds)
    assert np.isnan(other).sum() >= 2
    np.testing.assert_allclose(mine, other, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["baseline", "adapter"])
def test_signs_are_those_of_arguments_whatever_selects_are_merged(target: str) -> None:
    """LLVM 15 made one instruction of AVX-512 of what did not belong together."""
    text = """<ir_version: 9, opset_import: ["": 20]>
    g (float[16, 3] x) => (float[16, 2] y)
    <int64[1] a = {0}, int64[1] b = {3}, int64[1] c = {1}, int64[1] two = {2}> {
      s = Slice(x, a, b, c, two)  d = Mish(s)  e = Min(s, d)  f = Ceil(e)  h = Mish(f)  y = Gelu(h)
    }"""
    x = np.linspace(-4, 9, 48, dtype=np.float32).reshape(16, 3)
    model = onnx.parser.parse_model(text).SerializeToString()
    with (
        engine.InferenceSession(model, device="gpu", require_gpu=True, target=target) as gpu,
        engine.InferenceSession(model, device="cpu") as cpu,
    ):
        (mine,), (other,) = gpu.run(None, {"x": x}), cpu.run(None, {"x": x})
    np.testing.assert_allclose(mine, other, atol=1e-6)
