"""Selection, sampling, signals, sequences, random values and norms beyond the node suite."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cpu_fallback import registry
from tests.cpu_fallback.node_cases import cases_of, failures
from tests.cpu_fallback.oracle import ort_node

OPS = (
    "AffineGrid BlackmanWindow CausalConvWithState CumProd CumSum DFT Einsum GridSample "
    "HammingWindow HannWindow LRN LinearAttention LpNormalization MeanVarianceNormalization "
    "NonMaxSuppression NonZero OptionalGetElement OptionalHasElement ReverseSequence RoiAlign "
    "RotaryEmbedding STFT SequenceInsert SplitToSequence TensorScatter TopK Unique"
).split()
RNG = np.random.default_rng(11)


def f32(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape, dtype=np.float32)


def run(op_type: str, inputs: list[Any], n_outputs: int = 1, **attributes: Any) -> list[Any]:
    return registry.run(op_type, "", 28, attributes, inputs, n_outputs)


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.slow
def test_node_suite(op_type: str) -> None:
    cases = cases_of(op_type)
    assert cases
    assert failures(cases) == {}


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, ml_dtypes.bfloat16])
def test_top_k_prefers_the_lower_index_among_equals(largest: int, dtype: Any) -> None:
    x = RNG.integers(0, 4, (3, 50)).astype(dtype)
    values, indices = run("TopK", [x, np.array([7])], 2, largest=largest)
    sign = -1 if largest else 1
    for row, picked in zip(x, indices, strict=True):
        order = sorted(range(50), key=lambda i, row=row: (sign * float(row[i]), i))
        assert picked.tolist() == order[:7]
    assert values.dtype == x.dtype
    np.testing.assert_array_equal(values, np.take_along_axis(x, indices, axis=1))


def test_top_k_of_extreme_integers() -> None:
    x = np.array([0, -(2**63), 2**63 - 1])
    values, _ = run("TopK", [x, np.array([3])], 2)
    assert values.tolist() == [2**63 - 1, 0, -(2**63)]


def test_top_k_of_too_many_is_refused() -> None:
    with pytest.raises(ValueError, match="k = 5 of 4"):
        run("TopK", [np.ones(4, np.float32), np.array([5])], 2)


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("sorted_", [0, 1])
def test_unique_rebuilds_its_input(axis: int | None, sorted_: int) -> None:
    x = RNG.integers(0, 2, (6, 3)).astype(np.float16)
    attributes = {"sorted": sorted_} | ({} if axis is None else {"axis": axis})
    distinct, first, inverse, counts = run("Unique", [x], 4, **attributes)
    flat = x.reshape(-1) if axis is None else x
    where = axis or 0
    np.testing.assert_array_equal(np.take(distinct, inverse, axis=where), flat)
    np.testing.assert_array_equal(np.take(flat, first, axis=where), distinct)
    assert counts.sum() == flat.shape[where]
    assert {value.dtype for value in (first, inverse, counts)} == {np.dtype(np.int64)}
    if not sorted_:
        assert (np.diff(first) > 0).all()


def test_unique_of_strings() -> None:
    x = np.array(["b", "a", "b"], object)
    distinct, first, inverse, counts = run("Unique", [x], 4)
    assert distinct.tolist() == ["a", "b"]
    assert (first.tolist(), inverse.tolist(), counts.tolist()) == ([1, 0], [1, 0, 1], [1, 2])


@pytest.mark.parametrize("center", [0, 1])
def test_non_max_suppression_agrees_with_ort(center: int) -> None:
    boxes = RNG.uniform(0, 1, (2, 60, 4)).astype(np.float32)
    scores = RNG.uniform(0, 1, (2, 3, 60)).astype(np.float32)
    inputs = [boxes, scores, np.array([9]), np.float32([0.3]), np.float32([0.2])]
    expected = ort_node("NonMaxSuppression", inputs, 1, center_point_box=center)[0]
    np.testing.assert_array_equal(
        run("NonMaxSuppression", inputs, center_point_box=center)[0], expected
    )


def test_non_max_suppression_selects_nothing_without_a_limit() -> None:
    got = run("NonMaxSuppression", [f32(1, 5, 4), f32(1, 2, 5)])[0]
    assert got.shape == (0, 3)


def test_non_zero_of_scalars_and_nothing() -> None:
    assert run("NonZero", [np.array(3)])[0].shape == (0, 1)
    assert run("NonZero", [np.array(0)])[0].shape == (0, 0)
    assert run("NonZero", [np.zeros((2, 0))])[0].shape == (2, 0)


def test_running_sums_wrap_and_keep_their_type() -> None:
    x = np.array([2**31 - 1, 1, 1], np.int32)
    got = run("CumSum", [x, np.array(0)])[0]
    assert got.dtype == np.int32
    assert got.tolist() == [2**31 - 1, -(2**31), -(2**31) + 1]
    half = np.full(3000, 1, np.float16)
    total = run("CumSum", [half, np.array(0)], reverse=1, exclusive=1)[0]
    assert total.dtype == np.float16
    assert (total[0], total[-1]) == (np.float16(2999), 0)


def test_einsum_with_ellipsis_and_one_operand() -> None:
    a, b = f32(2, 3, 4), f32(2, 4, 5)
    got = run("Einsum", [a, b], equation="...ij, ...jk -> ...ik")[0]
    np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-6)
    trace = run("Einsum", [np.eye(3, dtype=np.float32)], equation="ii")[0]
    assert trace.shape == ()
    assert trace == 3


def test_reverse_sequence_checks_its_lengths() -> None:
    with pytest.raises(ValueError, match="for 3 steps"):
        run("ReverseSequence", [f32(3, 2), np.array([4, 1])])


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample_agrees_with_ort(mode: str, padding_mode: str, align_corners: int) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 3, 5, 6), dtype=np.float32)
    grid = rng.uniform(-1.6, 1.6, (2, 7, 4, 2)).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    expected = ort_node("GridSample", [x, grid], 1, model_opset=20, **attributes)[0]
    got = run("GridSample", [x, grid], **attributes)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5)


def test_grid_sample_in_three_dimensions_and_without_points() -> None:
    x, grid = f32(1, 2, 3, 4, 5), RNG.uniform(-1.2, 1.2, (1, 2, 3, 4, 3)).astype(np.float32)
    expected = ort_node("GridSample", [x, grid], 1, model_opset=20)[0]
    np.testing.assert_allclose(run("GridSample", [x, grid])[0], expected, rtol=1e-4, atol=1e-5)
    empty = run("GridSample", [f32(1, 2, 3, 4), np.zeros((1, 0, 4, 2), np.float32)])[0]
    assert empty.shape == (1, 2, 0, 4)


ROI_ATTRIBUTES: list[dict[str, Any]] = [
    {"sampling_ratio": 2},
    {"sampling_ratio": 0, "coordinate_transformation_mode": "output_half_pixel"},
    {"mode": "max", "sampling_ratio": 2},
]


@pytest.mark.parametrize("attributes", ROI_ATTRIBUTES)
def test_roi_align_agrees_with_ort(attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(9)
    x = rng.standard_normal((2, 3, 12, 10), dtype=np.float32)
    corner = rng.uniform(0, 12, (5, 2)).astype(np.float32)
    rois = np.concatenate([corner, corner + rng.uniform(1, 15, (5, 2)).astype(np.float32)], 1)
    inputs = [x, rois, np.array([0, 1, 1, 0, 1])]
    attributes = {"output_height": 3, "output_width": 4, "spatial_scale": 0.5} | attributes
    expected = ort_node("RoiAlign", inputs, 1, model_opset=16, **attributes)[0]
    np.testing.assert_allclose(run("RoiAlign", inputs, **attributes)[0], expected, 1e-4, 1e-5)


@pytest.mark.parametrize("ratio", [0, 2])
def test_roi_align_at_the_edge_of_what_counts(ratio: int) -> None:
    """Samples that float32 puts on the last position that counts, and float64 a hair beyond."""
    x = np.arange(10, dtype=np.float32).reshape(1, 1, 10, 1) + 1
    rois = np.array([[0, 0, 9, 9], [0, 5, 4, 9], [5, 5, 9, 9]], np.float32)
    attributes = {
        "output_height": 5,
        "output_width": 5,
        "sampling_ratio": ratio,
        "coordinate_transformation_mode": "output_half_pixel",
    }
    inputs = [x, rois, np.zeros(3, np.int64)]
    expected = ort_node("RoiAlign", inputs, 1, model_opset=16, **attributes)[0]
    np.testing.assert_allclose(run("RoiAlign", inputs, **attributes)[0], expected, 1e-5)


def test_max_roi_pool_agrees_with_ort() -> None:
    x = f32(2, 3, 12, 10)
    rois = np.array([[0, 1, 2, 9, 11], [1, 0, 0, 19, 23], [1, 4, 4, 5, 5]], np.float32)
    attributes = {"pooled_shape": [3, 2], "spatial_scale": 0.5}
    expected = ort_node("MaxRoiPool", [x, rois], 1, model_opset=16, **attributes)[0]
    np.testing.assert_allclose(run("MaxRoiPool", [x, rois], **attributes)[0], expected)


def test_attention_with_a_row_that_may_see_nothing() -> None:
    q, k, v = f32(1, 2, 3, 4), f32(1, 2, 5, 4), f32(1, 2, 5, 6)
    mask = np.zeros((3, 5), np.float32)
    mask[1] = -np.inf
    y, _, _, scores = run("Attention", [q, k, v, mask], 4, qk_matmul_output_mode=3)
    assert (y[:, :, 1] == 0).all()
    np.testing.assert_allclose(scores[:, :, [0, 2]].sum(-1), 1, rtol=1e-6)


def test_grouped_attention_is_attention_with_repeated_heads() -> None:
    q, k, v = f32(2, 6, 3, 4), f32(2, 2, 5, 4), f32(2, 2, 5, 4)
    repeated = [q, np.repeat(k, 3, axis=1), np.repeat(v, 3, axis=1)]
    np.testing.assert_allclose(
        run("Attention", [q, k, v], is_causal=1)[0],
        run("Attention", repeated, is_causal=1)[0],
        rtol=1e-5,
        atol=1e-6,
    )


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="no multiple"):
        run("Attention", [f32(1, 3, 2, 4), f32(1, 2, 2, 4), f32(1, 2, 2, 4)])
    with pytest.raises(ValueError, match="into 3 heads"):
        run("Attention", [f32(1, 2, 8)] * 3, q_num_heads=3, kv_num_heads=3)


def test_inverse_fourier_transform_returns_the_signal() -> None:
    x = f32(2, 16, 1)
    half = run("DFT", [x], onesided=1)[0]
    assert half.shape == (2, 9, 2)
    back = run("DFT", [half], onesided=1, inverse=1)[0]
    np.testing.assert_allclose(back, x, atol=1e-6)
    with pytest.raises(ValueError, match="last dimension"):
        run("DFT", [x, None, np.array(-1)])


def test_stft_agrees_with_ort() -> None:
    signal, window = f32(2, 50, 1), f32(16)
    inputs = [signal, np.array(5), window, np.array(16)]
    expected = ort_node("STFT", inputs, 1)[0]
    np.testing.assert_allclose(run("STFT", inputs)[0], expected, rtol=1e-3, atol=1e-4)


def test_lrn_sums_over_channels_not_over_the_batch() -> None:
    x = f32(3, 5, 2, 2)
    got = run("LRN", [x], size=4, alpha=0.5, beta=0.6, bias=1.5)[0]
    expected = np.empty_like(x)
    for c in range(5):
        low, high = max(0, c - 1), min(5, c + 3)
        squares = (x[:, low:high] ** 2).sum(axis=1)
        expected[:, c] = x[:, c] / (1.5 + 0.5 / 4 * squares) ** 0.6
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_l1_norm_takes_absolute_values_and_zeros_stay() -> None:
    x = np.array([[3, -1], [0, 0]], np.float32)
    got = run("LpNormalization", [x], p=1)[0]
    np.testing.assert_allclose(got, [[0.75, -0.25], [0, 0]])
    with pytest.raises(ValueError, match="not 3"):
        run("LpNormalization", [x], p=3)


def test_sequence_positions() -> None:
    a, b, c = (np.full(1, value) for value in (1, 2, 3))
    assert run("SequenceAt", [[a, b], np.array(-1)])[0] is b
    inserted = run("SequenceInsert", [[a, b], c, np.array(-1)])[0]
    assert [int(value[0]) for value in inserted] == [1, 3, 2]
    assert run("SequenceErase", [[a, b]])[0] == [a]
    with pytest.raises(ValueError, match="position 2"):
        run("SequenceAt", [[a, b], np.array(2)])


def test_concat_and_split_of_sequences_are_inverse() -> None:
    x = f32(2, 7)
    parts = run("SplitToSequence", [x, np.array(3)], axis=1)[0]
    assert [part.shape[1] for part in parts] == [3, 3, 1]
    np.testing.assert_array_equal(run("ConcatFromSequence", [parts], axis=1)[0], x)
    for empty in (np.array(3), np.zeros(0, np.int64)):
        assert run("SplitToSequence", [x[:0], empty])[0] == []
    rows = run("SplitToSequence", [x], keepdims=0)[0]
    np.testing.assert_array_equal(run("ConcatFromSequence", [rows], axis=0, new_axis=1)[0], x)
    with pytest.raises(ValueError, match="do not make up"):
        run("SplitToSequence", [x, np.array([3, 3])], axis=1)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("RandomNormal", [], {"shape": [200, 50], "mean": 3.0, "scale": 0.5}),
        ("RandomUniform", [], {"shape": [200, 50], "low": 2.0, "high": 4.0}),
        ("RandomNormalLike", [np.zeros((200, 50), np.float32)], {"mean": 3.0}),
        ("RandomUniformLike", [np.zeros((200, 50), np.float32)], {"low": 2.0, "high": 4.0}),
    ],
)
def test_random_values_honour_their_seed(
    op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    first, again = (run(op_type, inputs, seed=7.0, **attributes)[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert first.dtype == np.float32
    assert first.shape == (200, 50)
    assert abs(first.mean() - 3) < 0.05
    other = run(op_type, inputs, seed=8.0, **attributes)[0]
    fresh = run(op_type, inputs, **attributes)[0]
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, fresh)


def test_multinomial_and_bernoulli_follow_their_probabilities() -> None:
    weights = np.array([[0, np.log(3), -np.inf], [-np.inf, -np.inf, 2]], np.float32)
    drawn = run("Multinomial", [weights], sample_size=4000, seed=1.0, dtype=7)[0]
    assert drawn.dtype == np.int64
    assert set(drawn[1].tolist()) == {2}
    assert abs((drawn[0] == 1).mean() - 0.75) < 0.03
    coins = run("Bernoulli", [np.full(4000, 0.2, np.float32)], seed=1.0, dtype=9)[0]
    assert coins.dtype == np.bool_
    assert abs(coins.mean() - 0.2) < 0.03
