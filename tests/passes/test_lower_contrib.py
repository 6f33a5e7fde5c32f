"""Operators of com.microsoft become standard ones that compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import engine
from cpu_fallback import registry
from engine.importer import load_model
from engine.passes import run_passes
from tests.cpu_fallback.test_contrib import CASES as PLAIN
from tests.cpu_fallback.test_contrib_attention import CASES as ATTENTION
from tests.cpu_fallback.test_quant_contrib import CASES as LEVELS
from tests.ops.harness import OpCase, arrays, build_model, compare, feeds, run_fallback

MS = "com.microsoft"
ELEMENTWISE = {"QLinearAdd", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid", "QLinearWhere"}
REWRITTEN = {
    "Attention",
    "BiasGelu",
    "DynamicQuantizeMatMul",
    "EmbedLayerNormalization",
    "FastGelu",
    "FusedConv",
    "FusedGemm",
    "FusedMatMul",
    "Gelu",
    "GroupQueryAttention",
    "MultiHeadAttention",
    "NhwcConv",
    "QuickGelu",
    "RotaryEmbedding",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
}


def f32(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def case(op: str, inputs: list[Any], attrs: dict[str, Any], outputs: int = 1) -> OpCase:
    return OpCase(op, tuple(inputs), attrs, outputs, domain=MS, opset=1, oracle="fallback")


PADDING = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
CASES = [
    *(case(op, inputs, attrs) for op, inputs, attrs in PLAIN if op in REWRITTEN),
    *(case(*found) for found in ATTENTION if found[0] in REWRITTEN),
    case("SkipLayerNormalization", [f32(2, 3, 8), f32(3, 8), f32(8), f32(8), f32(8)], {}, 4),
    case("MultiHeadAttention", [f32(2, 3, 2, 3, 4), None, None, f32(24)], {"num_heads": 2}),
    case("MultiHeadAttention", [f32(2, 3, 8), f32(2, 5, 2, 2, 4)], {"num_heads": 2}),
    case(
        "NhwcConv", [f32(2, 7, 9, 4), f32(6, 2, 3, 2), f32(6)], {"group": 2, "pads": [1, 0, 1, 1]}
    ),
    case("NhwcConv", [f32(2, 11, 4), f32(6, 4, 3)], {"strides": [2]}),
    case(
        "MultiHeadAttention",
        [f32(2, 3, 8), f32(2, 2, 5, 4), f32(2, 2, 5, 6, seed=1), f32(20), PADDING, f32(1, 2, 3, 5)],
        {"num_heads": 2, "mask_filter_value": -50.0},
    ),
    case(
        "MultiHeadAttention",
        [f32(2, 5, 8), f32(2, 5, 8, seed=1), f32(2, 5, 8, seed=2), None, f32(2, 5, 5) > 0],
        {"num_heads": 2, "unidirectional": 1},
        3,
    ),
]
KEPT = {
    "as long as the batch": case(
        "MultiHeadAttention",
        [f32(2, 3, 8), f32(2, 5, 8), f32(2, 5, 8), None, np.array([3, 5, 0, 1], np.int32)],
        {"num_heads": 2},
    ),
    "count from the end": case(
        "MultiHeadAttention",
        [f32(2, 3, 8), f32(2, 5, 8), f32(2, 5, 8)],
        {"num_heads": 2, "unidirectional": 1},
    ),
    "differ in size": case(
        "Attention",
        [f32(2, 5, 6), f32(6, 20), f32(20)],
        {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]},
        2,
    ),
    "statistics are read": case(
        "SkipSimplifiedLayerNormalization", [f32(2, 3, 8), f32(2, 3, 8), f32(8)], {}, 3
    ),
}
CASES = [c.replace(constants=(6,)) if c.op == "GroupQueryAttention" else c for c in CASES]
CASES[-1] = CASES[-1].replace(
    inputs=tuple(
        v.astype(np.int32) if v is not None and v.dtype == bool else v for v in CASES[-1].inputs
    )
)


def grouped(past: int, total: int, lengths: list[int], new: int = 2, **attrs: Any) -> OpCase:
    """GroupQueryAttention with 4 query heads of 2 key heads of 8, and a cache of `past` keys."""
    batch, cache = len(lengths), (len(lengths), 2, past, 8)
    inputs: list[Any] = [
        f32(batch, new, 32),
        f32(batch, new, 16, seed=1),
        f32(batch, new, 16, seed=2),
        f32(*cache, seed=3) if past else None,
        f32(*cache, seed=4) if past else None,
        np.array(lengths, np.int32),
        np.array(total, np.int32),
    ]
    if attrs.get("do_rotary"):
        inputs += [f32(total + 3, 4), f32(total + 3, 4, seed=5)]
    found = case(
        "GroupQueryAttention", inputs, {"num_heads": 4, "kv_num_heads": 2, **attrs}, outputs=3
    )
    return found.replace(constants=(6,))


QUERIES = grouped(5, 7, [6, 6], do_rotary=1)
GROUPED = [
    grouped(0, 2, [1, 1]),
    grouped(0, 2, [1, 0], do_rotary=1),
    grouped(5, 7, [6, 3]),
    grouped(5, 6, [5, 2], new=1, do_rotary=1, rotary_interleaved=1),
    grouped(9, 7, [6, 4], do_rotary=1),
    grouped(7, 7, [6, 4], local_window_size=3, softcap=0.9, scale=0.4),
    QUERIES.replace(
        inputs=(f32(2, 2, 64), None, None, *QUERIES.inputs[3:], np.array([[5, 6], [0, 4]])),
    ),
    QUERIES.replace(inputs=(*QUERIES.inputs, None, f32(1, 4, 2, 7))),
]


@pytest.mark.parametrize("number", range(len(GROUPED)))
@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_group_query_attention(number: int, device: str) -> None:
    found = GROUPED[number]
    values = arrays(found)
    model = build_model(found, values)
    left = {n.domain for n in run_passes(load_model(model).graph).graph.nodes}
    assert left == {""}
    with engine.InferenceSession(model, device=device, require_gpu=device == "gpu") as session:
        got = session.run(None, feeds(found, values))
    for mine, want in zip(got, run_fallback(found, values), strict=True):
        assert mine.dtype == want.dtype
        compare(mine, want, 2e-5)


CACHED = """
<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
step (float[b, s, 32] q, float[b, s, 16] k, float[b, s, 16] v, float[b, 2, p, 8] pk,
      float[b, 2, p, 8] pv, int64[b, t] mask) => (float[b, s, 32] y, float[b, 2, t, 8] nk,
      float[b, 2, t, 8] nv)
{
    sums = ReduceSum <keepdims = 0> (mask, axes)
    less = Sub(sums, one)
    lengths = Cast <to = 6> (less)
    shape = Shape <start = 1, end = 2> (mask)
    wide = Squeeze(shape)
    total = Cast <to = 6> (wide)
    y, nk, nv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2>
        (q, k, v, pk, pv, lengths, total)
}
"""


@pytest.mark.gpu
def test_group_query_attention_whose_cache_grows() -> None:
    import onnx.parser

    model = onnx.parser.parse_model(CACHED)
    for name, content in (("axes", [1]), ("one", [1])):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(content), name))
    plans = []
    with engine.InferenceSession(model, device="gpu") as session:
        for past, new, lengths in ((0, 3, [3, 2]), (3, 1, [4, 3]), (4, 1, [5, 4])):
            total = past + new
            mask = (np.arange(total) < np.array(lengths)[:, None]).astype(np.int64)
            given = {
                "q": f32(2, new, 32),
                "k": f32(2, new, 16, seed=1),
                "v": f32(2, new, 16, seed=2),
                "pk": f32(2, 2, past, 8, seed=3),
                "pv": f32(2, 2, past, 8, seed=4),
                "mask": mask,
            }
            got = session.run(None, given)
            inputs = [given[n] for n in ("q", "k", "v", "pk", "pv")]
            sizes = [np.array(lengths, np.int32) - 1, np.array(total, np.int32)]
            attrs = {"num_heads": 4, "kv_num_heads": 2}
            want = registry.run("GroupQueryAttention", MS, 1, attrs, [*inputs, *sizes], 3)
            for mine, other in zip(got, want, strict=True):
                compare(mine, other, 2e-5)
            plans.append(session.plans_made)
            places = {(n.op_type, where) for n, where in session.executed()}
            assert {("Attention", "gpu"), ("TensorScatter", "gpu")} <= places
    assert plans[2] == plans[1]


QUANTIZED = [case(op, inputs, attrs) for op, inputs, attrs in LEVELS if op not in ELEMENTWISE]
QUANTIZED = [
    c.replace(constants=(1, 2, 4, 5, 6, 7)) if c.op == "QLinearConv" else c for c in QUANTIZED
]


@pytest.mark.parametrize("number", range(len(QUANTIZED)), ids=lambda i: f"{i}-{QUANTIZED[i].op}")
@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_quantized_operators(number: int, device: str) -> None:
    found = QUANTIZED[number]
    values = arrays(found)
    model = build_model(found, values)
    assert {n.domain for n in run_passes(load_model(model).graph).graph.nodes} == {""}
    with engine.InferenceSession(model, device=device, require_gpu=device == "gpu") as session:
        (got,) = session.run(None, feeds(found, values))
    (want,) = run_fallback(found, values)
    assert got.dtype == want.dtype and got.shape == want.shape
    if got.dtype == np.float32:
        compare(got, want, 1e-6)
        return
    difference = np.abs(got.astype(int) - want.astype(int))
    assert difference.max() <= 1 and (difference > 0).mean() < 0.05


def test_levels_that_agree_are_joined_as_they_are() -> None:
    x = np.arange(6, dtype=np.uint8).reshape(2, 3)
    scale, zero = np.array(0.1, np.float32), np.array(3, np.uint8)
    found = case("QLinearConcat", [scale, zero, x, scale, zero, x, scale, zero], {"axis": 0})
    found = found.replace(constants=(0, 1, 3, 4, 6, 7))
    nodes = run_passes(load_model(build_model(found)).graph).graph.nodes
    assert [n.op_type for n in nodes] == ["Concat"]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda i: f"{i}-{CASES[i].op}")
@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_same_results(number: int, device: str) -> None:
    found = CASES[number]
    values = arrays(found)
    for dynamic in (False, True):
        model = build_model(found, values, dynamic=dynamic)
        # of open sizes some parts do not know enough
        strict = device == "gpu" and not dynamic
        with engine.InferenceSession(model, device=device, require_gpu=strict) as session:
            got = session.run(None, feeds(found, values))
        for mine, want in zip(got, run_fallback(found, values), strict=True):
            assert mine.dtype == want.dtype
            compare(mine, want, 2e-5)


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda i: f"{i}-{CASES[i].op}")
def test_no_contrib_operator_is_left(number: int) -> None:
    found = CASES[number]
    result = run_passes(load_model(build_model(found)).graph)
    left = [n for n in result.graph.nodes if n.domain == MS]
    assert not left, result.results["lower_contrib"].near_misses


@pytest.mark.parametrize("reason", KEPT)
def test_what_stays_says_why(reason: str) -> None:
    result = run_passes(load_model(build_model(KEPT[reason])).graph)
    assert [n.domain for n in result.graph.nodes] == [MS]
    (line,) = result.results["lower_contrib"].near_misses
    assert reason in line


def test_other_float_types_stay_where_more_than_one_part_would_round() -> None:
    def types(*inputs: Any) -> list[str]:
        half = case("FastGelu", [x.astype(np.float16) for x in inputs], {})
        return [n.op_type for n in run_passes(load_model(build_model(half)).graph).graph.nodes]

    assert types(f32(3, 5)) == ["Gelu"]
    assert types(f32(3, 5), f32(5)) == ["FastGelu"]


@pytest.mark.gpu
def test_group_query_attention_in_float16() -> None:
    found = GROUPED[2]
    values = [
        v if v is None or v.dtype != np.float32 else v.astype(np.float16) for v in arrays(found)
    ]
    model = build_model(found, values)
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        got = session.run(None, feeds(found, values))
    for mine, want in zip(got, run_fallback(found, values), strict=True):
        assert mine.dtype == want.dtype == np.float16
        compare(mine, want, 2e-3)


def test_simplified_normalization_of_the_standard_domain() -> None:
    import onnx.helper as oh

    x, scale = f32(2, 3, 8), f32(8)
    node = oh.make_node("SimplifiedLayerNormalization", ["x", "s"], ["y"], epsilon=1e-4)
    infos = [oh.make_tensor_value_info(n, 1, v.shape) for n, v in (("x", x), ("s", scale))]
    out = [oh.make_tensor_value_info("y", 1, x.shape)]
    model = oh.make_model(
        oh.make_graph([node], "g", infos, out), opset_imports=[oh.make_opsetid("", 21)]
    )
    with engine.InferenceSession(model, device="cpu") as session:
        (got,) = session.run(None, {"x": x, "s": scale})
    want = registry.run("SimplifiedLayerNormalization", "", 1, {"epsilon": 1e-4}, [x, scale], 1)[0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
