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
from tests.ops.harness import OpCase, arrays, build_model, compare, feeds, run_fallback

MS = "com.microsoft"
REWRITTEN = {
    "Attention",
    "BiasGelu",
    "DynamicQuantizeMatMul",
    "EmbedLayerNormalization",
    "FastGelu",
    "FusedMatMul",
    "Gelu",
    "MultiHeadAttention",
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
    "counts keys": case(
        "MultiHeadAttention",
        [f32(2, 3, 8), f32(2, 5, 8), f32(2, 5, 8), None, np.array([3, 5], np.int32)],
        {"num_heads": 2},
    ),
    "count from the end": case(
        "MultiHeadAttention",
        [f32(2, 3, 8), f32(2, 5, 8), f32(2, 5, 8)],
        {"num_heads": 2, "unidirectional": 1},
    ),
    "keys and values in one": case(
        "Attention", [f32(2, 5, 6), f32(6, 24), f32(24)], {"num_heads": 2}, 2
    ),
    "counted from one number": case(
        "RotaryEmbedding", [f32(2, 3, 16), np.array([2]), f32(9, 4), f32(9, 4)], {}
    ),
    "statistics are read": case(
        "SkipSimplifiedLayerNormalization", [f32(2, 3, 8), f32(2, 3, 8), f32(8)], {}, 3
    ),
}
CASES[-1] = CASES[-1].replace(
    inputs=tuple(
        v.astype(np.int32) if v is not None and v.dtype == bool else v for v in CASES[-1].inputs
    )
)


def is_kept(found: OpCase) -> bool:
    """Those forms of the cases of the NumPy functions that stay; `KEPT` has each."""
    rest = found.inputs[1:]
    if found.op == "RotaryEmbedding":
        return rest[0].ndim == 1
    if found.op == "Attention":
        return found.n_outputs > 1 or (len(rest) > 2 and rest[2] is not None and rest[2].ndim == 1)
    return False


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda i: f"{i}-{CASES[i].op}")
@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_same_results(number: int, device: str) -> None:
    found = CASES[number]
    values = arrays(found)
    for dynamic in (False, True):
        model = build_model(found, values, dynamic=dynamic)
        with engine.InferenceSession(model, device=device) as session:
            got = session.run(None, feeds(found, values))
        for mine, want in zip(got, run_fallback(found, values), strict=True):
            assert mine.dtype == want.dtype
            compare(mine, want, 2e-5)


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda i: f"{i}-{CASES[i].op}")
def test_no_contrib_operator_is_left(number: int) -> None:
    found = CASES[number]
    result = run_passes(load_model(build_model(found)).graph)
    left = [n for n in result.graph.nodes if n.domain == MS]
    assert bool(left) == is_kept(found), result.results["lower_contrib"].near_misses


@pytest.mark.parametrize("reason", KEPT)
def test_what_stays_says_why(reason: str) -> None:
    result = run_passes(load_model(build_model(KEPT[reason])).graph)
    assert [n.domain for n in result.graph.nodes] == [MS]
    (line,) = result.results["lower_contrib"].near_misses
    assert reason in line


def test_other_float_types_stay() -> None:
    half = case("FastGelu", [f32(3, 5).astype(np.float16)], {})
    (node,) = run_passes(load_model(build_model(half)).graph).graph.nodes
    assert node.op_type == "FastGelu"


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
