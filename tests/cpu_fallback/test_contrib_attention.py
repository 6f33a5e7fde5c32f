"""The attention operators of com.microsoft against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpu_fallback import registry
from tests.cpu_fallback.oracle import ort_node

MS = "com.microsoft"
RNG = np.random.default_rng(41)
HEADS = {"num_heads": 2}


def f32(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape, dtype=np.float32)


def i32(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int32)


PADDING = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
QKV = [f32(2, 3, 8), f32(2, 5, 8), f32(2, 5, 8)]
NONE4 = [None, None, None, None]
CASES: list[tuple[str, list[Any], dict[str, Any], int]] = [
    ("MultiHeadAttention", QKV, HEADS, 1),
    ("MultiHeadAttention", [*QKV, f32(24), PADDING], HEADS | {"scale": 0.3}, 1),
    ("MultiHeadAttention", [*QKV, None, None, f32(1, 2, 3, 5)], HEADS, 1),
    (
        "MultiHeadAttention",
        [*[f32(2, 3, 8)] * 3, *NONE4[:3], f32(2, 2, 4, 4), f32(2, 2, 4, 4)],
        HEADS | {"unidirectional": 1},
        3,
    ),
    ("Attention", [f32(2, 5, 6), f32(6, 24), f32(24)], HEADS, 1),
    ("Attention", [f32(2, 5, 6), f32(6, 24), f32(24), PADDING], HEADS, 1),
    ("Attention", [f32(2, 5, 6), f32(6, 24), f32(24), i32(3, 5)], HEADS, 1),
    (
        "Attention",
        [f32(2, 3, 6), f32(6, 24), f32(24), None, f32(2, 2, 2, 4, 4)],
        HEADS | {"unidirectional": 1},
        2,
    ),
    ("RotaryEmbedding", [f32(2, 3, 16), np.array([2]), f32(9, 4), f32(9, 4)], {}, 1),
    (
        "RotaryEmbedding",
        [f32(2, 2, 3, 8), np.array([[0, 2, 4], [1, 1, 8]]), f32(9, 4), f32(9, 4)],
        {"interleaved": 1},
        1,
    ),
    (
        "GroupQueryAttention",
        [f32(2, 5, 32), f32(2, 5, 16), f32(2, 5, 16), None, None, i32(4, 4), i32(5)],
        {"num_heads": 4, "kv_num_heads": 2},
        3,
    ),
    (
        "GroupQueryAttention",
        [f32(1, 1, 128), None, None, f32(1, 2, 6, 16), f32(1, 2, 6, 16), i32(6), i32(7),
         f32(9, 8), f32(9, 8)],
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1},
        3,
    ),
    (
        "GroupQueryAttention",
        [f32(1, 5, 32), f32(1, 5, 16), f32(1, 5, 16), None, None, i32(4), i32(5)],
        {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 2, "softcap": 0.7},
        3,
    ),
    (
        "EmbedLayerNormalization",
        [i32(1, 4, 2, 0).reshape(2, 2), i32(0, 1, 1, 0).reshape(2, 2), f32(5, 8), f32(3, 8),
         f32(2, 8), f32(8), f32(8), i32(1, 1, 1, 0).reshape(2, 2)],
        {"epsilon": 1e-6},
        2,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    "index", range(len(CASES)), ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)]
)
def test_agrees_with_ort(index: int) -> None:
    op_type, inputs, attributes, n_outputs = CASES[index]
    inputs = [v.reshape(()) if v is not None and v.shape == (1,) and i == 6 else v
              for i, v in enumerate(inputs)]  # fmt: skip
    expected = ort_node(op_type, inputs, n_outputs, domain=MS, **attributes)
    got = registry.run(op_type, MS, 1, attributes, inputs, n_outputs)
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)


def test_packed_queries_keys_and_values() -> None:
    packed = f32(2, 3, 2, 3, 4)
    parts = [packed[:, :, :, i].reshape(2, 3, 8) for i in range(3)]
    got = registry.run("MultiHeadAttention", MS, 1, HEADS, [packed], 1)[0]
    expected = registry.run("MultiHeadAttention", MS, 1, HEADS, parts, 1)[0]
    np.testing.assert_array_equal(got, expected)


def test_simplified_layer_normalization() -> None:
    x, scale = f32(2, 3, 8), f32(8)
    expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale
    got = registry.run("SimplifiedLayerNormalization", "", 1, {}, [x, scale], 1)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_what_is_not_implemented_is_refused() -> None:
    inputs = [f32(1, 1, 32), f32(1, 1, 16), f32(1, 1, 16), None, None, i32(0), i32(1)]
    attributes = {"num_heads": 4, "kv_num_heads": 2, "smooth_softmax": 1}
    with pytest.raises(ValueError, match="smooth_softmax"):
        registry.run("GroupQueryAttention", MS, 1, attributes, inputs, 1)
    with pytest.raises(ValueError, match="mask of shape"):
        registry.run("MultiHeadAttention", MS, 1, HEADS, [*QKV, None, i32(1, 2, 3)], 1)
