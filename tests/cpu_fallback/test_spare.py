"""Operators that may write over an input: the same numbers, and really no new memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpu_fallback import registry

TAKERS = [op for op in registry.registered() if "spare" in op.services]
SHAPE = (3, 5, 50, 100)
CHANNEL, SCALAR = (5,), ()
OTHERS: dict[str, list[tuple[int, ...]]] = {
    **{name: [(5, 50, 1)] for name in ("Add", "Sub", "Mul", "Div", "Max", "Min")},
    "Clip": [SCALAR, SCALAR],
    "BatchNormalization": [CHANNEL] * 4,
}
"""Shapes of the inputs after the first."""


def inputs_of(op_type: str, shape: tuple[int, ...]) -> list[Any]:
    chance = np.random.default_rng(1)
    shapes = [shape, *OTHERS.get(op_type, [])]
    return [(chance.random(s) + (i == 2)).astype(np.float32) for i, s in enumerate(shapes)]


@pytest.mark.parametrize("op", TAKERS, ids=lambda op: op.op_type)
@pytest.mark.parametrize("shape", [SHAPE, (1, 5, 50, 3)])
def test_result_in_place(op: registry.CpuOp, shape: tuple[int, ...]) -> None:
    call = registry.prepare(op.op_type, op.domain, op.since_version, {}, 1)
    inputs = inputs_of(op.op_type, shape)
    with np.errstate(all="ignore"):
        want = call([x.copy() for x in inputs])[0]
        got = call(inputs, inputs[0])[0]
    np.testing.assert_array_equal(got, want)
    assert np.shares_memory(got, inputs[0])


@pytest.mark.parametrize("op", TAKERS, ids=lambda op: op.op_type)
def test_what_does_not_fit_is_left_alone(op: registry.CpuOp) -> None:
    call = registry.prepare(op.op_type, op.domain, op.since_version, {}, 1)
    inputs = inputs_of(op.op_type, SHAPE)
    spare = np.zeros((1, 5, 1, 1), np.float32)
    with np.errstate(all="ignore"):
        want = call(inputs)[0]
        np.testing.assert_array_equal(call(inputs, spare)[0], want)
    assert not spare.any()


@pytest.mark.parametrize("op_type", ["Add", "Mul", "Max"])
def test_of_two_operands_the_larger_is_written(op_type: str) -> None:
    small, large = np.full((4, 1), 2, np.float32), np.arange(12, dtype=np.float32).reshape(4, 3)
    want = registry.run(op_type, "", 14, {}, [small, large], 1)[0]
    call = registry.prepare(op_type, "", 14, {}, 1)
    assert call([small, large], small)[0] is not small
    got = call([small, large], large)[0]
    assert got is large
    np.testing.assert_array_equal(got, want)
