"""The registry: how functions are found and called, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from cpu_fallback import registry
from cpu_fallback.registry import Tensor, UnsupportedOp, cpu_op

TEST_DOMAIN = "test.registry"


@cpu_op("Scale", since=3, domain=TEST_DOMAIN)
def scale_3(x: Tensor, *, by: float = 2.0) -> Tensor:
    return x * x.dtype.type(by)


@cpu_op("Scale", since=7, domain=TEST_DOMAIN)
def scale_7(x: Tensor, *, by: float) -> Tensor:
    return x * x.dtype.type(-by)


@cpu_op("Count", since=1, domain=TEST_DOMAIN)
@cpu_op("CountAgain", since=1, domain=TEST_DOMAIN)
def count(*inputs: Tensor | None, n_outputs: int) -> tuple[Tensor, ...]:
    given = sum(value is not None for value in inputs)
    return tuple(np.full(1, given) for _ in range(n_outputs))


def test_the_newest_version_not_newer_than_asked_is_used() -> None:
    x = np.ones(2, np.float32)
    assert registry.lookup("Scale", 2, TEST_DOMAIN) is None
    assert registry.run("Scale", TEST_DOMAIN, 6, {}, [x], 1)[0].tolist() == [2, 2]
    assert registry.run("Scale", TEST_DOMAIN, 9, {"by": 3.0}, [x], 1)[0].tolist() == [-3, -3]


def test_stacked_names_omitted_inputs_and_number_of_outputs() -> None:
    for name in ("Count", "CountAgain"):
        outputs = registry.run(name, TEST_DOMAIN, 1, {}, [None, np.ones(1)], 3)
        assert [value.tolist() for value in outputs] == [[1], [1], [1]]


def test_registering_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        cpu_op("Scale", since=3, domain=TEST_DOMAIN)(scale_3)


def test_unknown_and_missing_attributes_are_errors() -> None:
    x = np.ones(2, np.float32)
    with pytest.raises(TypeError, match="extra"):
        registry.run("Scale", TEST_DOMAIN, 3, {"extra": 1}, [x], 1)
    with pytest.raises(TypeError, match="by"):
        registry.run("Scale", TEST_DOMAIN, 7, {}, [x], 1)


def test_an_unknown_operator_names_itself() -> None:
    with pytest.raises(UnsupportedOp, match="Nowhere-4") as caught:
        registry.run("Nowhere", "ai.onnx", 4, {}, [], 1)
    assert (caught.value.op_type, caught.value.domain) == ("Nowhere", "")
    assert caught.value.since_version == 4


def test_where_an_operator_runs() -> None:
    assert registry.exists("LSTM", "", 22) == "numpy"
    assert registry.exists("LSTM", "ai.onnx", 22) == "numpy"
    assert registry.exists("StringSplit", "", 20) == "reference"
    assert registry.exists("Nowhere", "", 28) is None
    assert registry.exists("Loop", "", 28) is None


def test_numpy_scalars_come_in_and_go_out_as_arrays() -> None:
    got = registry.run("Range", "", 27, {}, [np.int64(2), np.int64(6), np.int64(3)], 1)[0]
    assert got.tolist() == [2, 5]
    length = registry.run("SequenceLength", "", 11, {}, [[np.ones(2)]], 1)[0]
    assert isinstance(length, np.ndarray)
    assert length.shape == ()


def test_too_few_outputs_are_noticed() -> None:
    with pytest.raises(ValueError, match="gives 1 outputs"):
        registry.run("Scale", TEST_DOMAIN, 3, {}, [np.ones(2)], 2)


def test_every_operator_of_the_folder_is_listed_once() -> None:
    keys = [(op.domain, op.op_type, op.since_version) for op in registry.registered()]
    assert len(keys) == len(set(keys))
    assert ("", "LSTM", 7) in keys


def test_a_memo_keeps_what_depends_on_constants_alone() -> None:
    memo = registry.Memo(frozenset({1, 2}))
    made = iter(range(10))
    assert [memo.of((1, 2), "both", lambda: next(made)) for _ in range(2)] == [0, 0]
    assert [memo.of(1, "one", lambda: next(made)) for _ in range(2)] == [1, 1]
    assert [memo.of((1, 3), "also another", lambda: next(made)) for _ in range(2)] == [2, 3]


@pytest.mark.parametrize("fixed", [(), (1, 2, 8, 9, 10, 11)], ids=["changing", "constant"])
def test_a_quantised_lstm_reads_weights_that_change(fixed: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 1, 4)).astype(np.float32)
    weights = [rng.integers(-9, 9, (1, k, 20)).astype(np.int8) for k in (4, 5)]
    scale, point = np.full(1, 0.02, np.float32), np.zeros(1, np.int8)
    domain, attrs = "com.microsoft", {"hidden_size": 5}
    call = registry.prepare("DynamicQuantizeLSTM", domain, 1, attrs, 3, fixed)

    def inputs(w: Tensor, r: Tensor) -> list[Tensor | None]:
        return [x, w, r, None, None, None, None, None, scale, point, scale, point]

    first = call(inputs(*weights))
    for again, once in zip(call(inputs(*weights)), first, strict=True):
        np.testing.assert_array_equal(again, once)
    others = inputs(weights[0] + np.int8(1), weights[1])
    want = registry.run("DynamicQuantizeLSTM", domain, 1, attrs, others, 3)
    differs = [not np.array_equal(a, b) for a, b in zip(want, first, strict=True)]
    assert all(differs)
    if not fixed:
        for mine, right in zip(call(others), want, strict=True):
            np.testing.assert_array_equal(mine, right)
