"""The com.microsoft operators against ONNX Runtime, which defines them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpu_fallback import registry
from tests.cpu_fallback.oracle import ort_node

MS = "com.microsoft"
RNG = np.random.default_rng(20)


def f32(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape, dtype=np.float32)


def i8(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def u8(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def scalar(value: float) -> np.ndarray[Any, Any]:
    return np.array(value, np.float32)


CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("Gelu", [f32(3, 37)], {}),
    ("BiasGelu", [f32(3, 37), f32(37)], {}),
    ("FastGelu", [f32(3, 37)], {}),
    ("FastGelu", [f32(3, 37), f32(37)], {}),
    ("QuickGelu", [f32(3, 37)], {"alpha": 1.2}),
    ("FusedMatMul", [f32(2, 5, 3), f32(2, 7, 5)], {"transA": 1, "transB": 1, "alpha": 0.5}),
    ("FusedMatMul", [f32(4, 2, 5), f32(5, 2, 3)], {"transBatchA": 1, "transBatchB": 1}),
    ("FusedMatMul", [f32(5, 2, 4), f32(2, 5, 3)], {"transBatchA": 1, "transA": 1}),
    ("FusedMatMul", [f32(2, 4, 5), f32(3, 2, 5)], {"transBatchB": 1, "transB": 1}),
    ("FusedConv", [f32(2, 4, 7, 9), f32(6, 4, 3, 2)], {"activation": "Relu"}),
    (
        "FusedConv",
        [f32(2, 4, 7, 9), f32(6, 2, 3, 3), f32(6), f32(2, 6, 7, 9)],
        {
            "activation": "LeakyRelu",
            "activation_params": [0.2],
            "group": 2,
            "pads": [1, 1, 1, 1],
        },
    ),
    (
        "FusedConv",
        [f32(2, 4, 7, 9), f32(6, 4, 3, 2), f32(6)],
        {"activation": "Clip", "activation_params": [-0.3, 0.7], "strides": [2, 1]},
    ),
    (
        "FusedConv",
        [f32(2, 4, 7, 9), f32(6, 4, 1, 1), f32(6)],
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
    ),
    ("FusedConv", [f32(2, 4, 7, 9), f32(6, 4, 1, 1)], {"activation": "Tanh"}),
    ("FusedGemm", [f32(3, 4), f32(4, 5)], {"activation": "Relu"}),
    (
        "FusedGemm",
        [f32(4, 3), f32(5, 4), f32(5)],
        {
            "activation": "LeakyRelu",
            "activation_alpha": 0.2,
            "alpha": 0.5,
            "transA": 1,
            "transB": 1,
        },
    ),
    ("MatMulIntegerToFloat", [u8(4, 5), i8(5, 3), scalar(0.1), np.abs(f32(3))], {}),
    (
        "MatMulIntegerToFloat",
        [u8(4, 5), u8(5, 3), scalar(0.1), scalar(0.3), np.uint8([7]), np.uint8([9]), f32(3)],
        {},
    ),
    ("DynamicQuantizeMatMul", [f32(6, 37), i8(37, 5), np.abs(f32(5)), None, f32(5)], {}),
    ("DynamicQuantizeMatMul", [f32(6, 37), u8(37, 5), scalar(0.2), np.uint8([130])], {}),
    (
        "SkipLayerNormalization",
        [f32(2, 3, 8), f32(2, 3, 8), f32(8), f32(8), f32(8)],
        {"epsilon": 1e-5},
    ),
    ("SkipLayerNormalization", [f32(2, 3, 8), f32(2, 3, 8), f32(8)], {}),
    ("SkipSimplifiedLayerNormalization", [f32(2, 3, 8), f32(2, 3, 8), f32(8)], {}),
    (
        "MatMulNBits",
        [f32(3, 64), u8(7, 2, 16), np.abs(f32(14))],
        {"K": 64, "N": 7, "bits": 4, "block_size": 32},
    ),
    (
        "MatMulNBits",
        [f32(2, 2, 48), u8(7, 3, 8), np.abs(f32(21)), u8(14)],
        {"K": 48, "N": 7, "bits": 4, "block_size": 16},
    ),
    (
        "MatMulNBits",
        [f32(3, 40), u8(5, 2, 16), np.abs(f32(10)), None, None, f32(5)],
        {"K": 40, "N": 5, "bits": 4, "block_size": 32},
    ),
    (
        "MatMulNBits",
        [f32(3, 64), u8(7, 2, 32), np.abs(f32(14)), u8(14)],
        {"K": 64, "N": 7, "bits": 8, "block_size": 32},
    ),
]


@pytest.mark.parametrize(
    "index", range(len(CASES)), ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_agrees_with_ort(index: int) -> None:
    op_type, inputs, attributes = CASES[index]
    expected = ort_node(op_type, inputs, 1, domain=MS, **attributes)
    got = registry.run(op_type, MS, 1, attributes, inputs, 1)
    assert got[0].dtype == expected[0].dtype
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=2e-5)


def test_group_index_picks_the_block_of_each_row() -> None:
    a, b, scales = f32(3, 64), u8(7, 2, 16), np.abs(f32(14))
    attributes = {"K": 64, "N": 7, "bits": 4, "block_size": 32}
    order = RNG.permutation(np.repeat(np.arange(2, dtype=np.int32), 32))
    got = registry.run("MatMulNBits", MS, 1, attributes, [a, b, scales, None, order], 1)[0]
    low, high = (b & 15).astype(np.float32) - 8, (b >> 4).astype(np.float32) - 8
    levels = np.stack([low, high], axis=-1).reshape(7, 64)
    expected = a @ (levels * scales.reshape(7, 2)[:, order]).T
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_skip_layer_normalization_gives_its_sum() -> None:
    x, skip, gamma = f32(2, 3, 8), f32(2, 3, 8), f32(8)
    expected = ort_node(
        "SkipLayerNormalization",
        [x, skip, gamma],
        4,
        domain=MS,
        outputs=[True, False, False, True],
    )
    got = registry.run("SkipLayerNormalization", MS, 1, {}, [x, skip, gamma], 4)
    np.testing.assert_allclose(got[3], expected[1], rtol=1e-6)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_dynamic_quantize_lstm(direction: str, per_channel: bool) -> None:
    rng = np.random.default_rng(3)
    count = 2 if direction == "bidirectional" else 1
    seq, size, hidden = 6, 5, 4
    width = (count, 4 * hidden) if per_channel else (count,)
    inputs = [
        rng.standard_normal((seq, 1, size), dtype=np.float32),
        rng.integers(-128, 128, (count, size, 4 * hidden)).astype(np.int8),
        rng.integers(-128, 128, (count, hidden, 4 * hidden)).astype(np.int8),
        rng.standard_normal((count, 8 * hidden), dtype=np.float32),
        None,
        rng.standard_normal((count, 1, hidden), dtype=np.float32),
        rng.standard_normal((count, 1, hidden), dtype=np.float32),
        None,
        rng.uniform(0.002, 0.01, width).astype(np.float32),
        np.zeros(width, np.int8),
        rng.uniform(0.002, 0.01, width).astype(np.float32),
        np.zeros(width, np.int8),
    ]
    attributes = {"direction": direction, "hidden_size": hidden}
    expected = ort_node("DynamicQuantizeLSTM", inputs, 3, domain=MS, **attributes)
    got = registry.run("DynamicQuantizeLSTM", MS, 1, attributes, inputs, 3)
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)


def test_weights_packed_for_one_runtime_are_refused() -> None:
    attributes = {"K": 64, "N": 7, "weight_prepacked": 1}
    with pytest.raises(ValueError, match="private"):
        registry.run("MatMulNBits", MS, 1, attributes, [f32(1, 64), u8(7, 2, 16), f32(14)], 1)


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="'Softplus' is none of"):
        registry.run("FusedGemm", MS, 1, {"activation": "Softplus"}, [f32(2, 3), f32(3, 2)], 1)


def test_convolution_with_channels_last() -> None:
    x, w, b = f32(2, 4, 7, 9), f32(6, 4, 3, 2), f32(6)
    (expected,) = ort_node("Conv", [x, w, b], 1)
    (got,) = registry.run("NhwcConv", MS, 1, {}, [x.transpose(0, 2, 3, 1), w, b], 1)
    np.testing.assert_allclose(got, expected.transpose(0, 2, 3, 1), rtol=1e-4, atol=1e-5)
