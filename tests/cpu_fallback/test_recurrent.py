"""LSTM, GRU and RNN against the node suite and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpu_fallback import registry
from tests.cpu_fallback.node_cases import cases_of, failures
from tests.cpu_fallback.oracle import ort_node

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
VARIANTS: dict[str, dict[str, Any]] = {
    "forward": {},
    "reverse": {"direction": "reverse"},
    "both": {"direction": "bidirectional"},
    "clipped": {"clip": 0.3},
    "lengths": {"direction": "bidirectional", "lengths": [7, 3, 1]},
    "bare": {"bare": True},
}


@pytest.mark.parametrize("op_type", sorted(GATES))
@pytest.mark.slow
def test_node_suite(op_type: str) -> None:
    assert failures(cases_of(op_type)) == {}


def recurrent_inputs(
    op_type: str, directions: int, lengths: list[int] | None, bare: bool
) -> list[Any]:
    rng = np.random.default_rng(len(op_type) + directions)
    seq, batch, size, hidden, gates = 7, 3, 5, 4, GATES[op_type]
    x = rng.standard_normal((seq, batch, size), dtype=np.float32)
    w = rng.standard_normal((directions, gates * hidden, size), dtype=np.float32)
    r = rng.standard_normal((directions, gates * hidden, hidden), dtype=np.float32)
    if bare:
        return [x, w, r]
    b = rng.standard_normal((directions, 2 * gates * hidden), dtype=np.float32)
    h = rng.standard_normal((directions, batch, hidden), dtype=np.float32)
    inputs = [x, w, r, b, None if lengths is None else np.array(lengths, np.int32), h]
    if op_type == "LSTM":
        c = rng.standard_normal((directions, batch, hidden), dtype=np.float32)
        p = rng.standard_normal((directions, 3 * hidden), dtype=np.float32)
        inputs += [c, p]
    return inputs


@pytest.mark.parametrize("variant", sorted(VARIANTS))
@pytest.mark.parametrize("op_type", sorted(GATES))
def test_agrees_with_ort(op_type: str, variant: str) -> None:
    attributes = dict(VARIANTS[variant])
    lengths, bare = attributes.pop("lengths", None), attributes.pop("bare", False)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    inputs = recurrent_inputs(op_type, directions, lengths, bare)
    n_outputs = 3 if op_type == "LSTM" else 2
    expected = ort_node(op_type, inputs, n_outputs, hidden_size=4, **attributes)
    got = registry.run(op_type, "", 22, {"hidden_size": 4, **attributes}, inputs, n_outputs)
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


ACTIVATIONS: dict[str, tuple[list[str], list[float], list[float]]] = {
    "LSTM": (["HardSigmoid", "Affine", "ScaledTanh"], [0.3, 0.7, 1.2], [0.4, 0.1, 0.8]),
    "GRU": (["Sigmoid", "LeakyRelu"], [0.2], []),
    "RNN": (["ThresholdedRelu"], [0.4], []),
}


@pytest.mark.parametrize("op_type", sorted(GATES))
def test_activations_with_alpha_and_beta(op_type: str) -> None:
    names, alphas, betas = ACTIVATIONS[op_type]
    inputs = recurrent_inputs(op_type, 1, None, False)
    n_outputs = 3 if op_type == "LSTM" else 2
    attributes: dict[str, Any] = {"activations": names, "activation_alpha": alphas}
    if betas:
        attributes["activation_beta"] = betas
    expected = ort_node(op_type, inputs, n_outputs, hidden_size=4, **attributes)
    got = registry.run(op_type, "", 22, attributes, inputs, n_outputs)
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [("LSTM", {"input_forget": 1}), ("GRU", {"linear_before_reset": 1})],
)
def test_coupled_gates(op_type: str, attributes: dict[str, int]) -> None:
    inputs = recurrent_inputs(op_type, 1, None, op_type == "LSTM")
    n_outputs = 3 if op_type == "LSTM" else 2
    expected = ort_node(op_type, inputs, n_outputs, hidden_size=4, **attributes)
    got = registry.run(op_type, "", 22, attributes, inputs, n_outputs)
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op_type", sorted(GATES))
def test_layout_1_is_the_transposed_layout_0(op_type: str) -> None:
    inputs = recurrent_inputs(op_type, 2, [7, 3, 1], False)
    n_outputs = 3 if op_type == "LSTM" else 2
    attributes = {"direction": "bidirectional"}
    plain = registry.run(op_type, "", 22, attributes, inputs, n_outputs)
    swapped = list(inputs)
    for index in (0, 5, 6):
        if index < len(swapped):
            swapped[index] = np.swapaxes(swapped[index], 0, 1)
    got = registry.run(op_type, "", 22, {**attributes, "layout": 1}, swapped, n_outputs)
    np.testing.assert_array_equal(got[0], np.transpose(plain[0], (2, 0, 1, 3)))
    for mine, theirs in zip(got[1:], plain[1:], strict=True):
        np.testing.assert_array_equal(mine, np.swapaxes(theirs, 0, 1))


def test_float16_is_computed_in_float32_and_returned_as_float16() -> None:
    inputs = [None if v is None else v for v in recurrent_inputs("LSTM", 1, None, True)]
    exact = registry.run("LSTM", "", 22, {}, inputs, 3)
    got = registry.run("LSTM", "", 22, {}, [v.astype(np.float16) for v in inputs], 3)
    assert all(value.dtype == np.float16 for value in got)
    np.testing.assert_allclose(got[0].astype(np.float32), exact[0], atol=5e-3)


def test_unknown_activation_is_refused() -> None:
    inputs = recurrent_inputs("RNN", 1, None, True)
    with pytest.raises(ValueError, match="Swoosh"):
        registry.run("RNN", "", 22, {"activations": ["Swoosh"]}, inputs, 2)
