"""LinearAttention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.errors import ShapeError
from tests.ops.harness import (
    Array,
    OpCase,
    arrays,
    check_cpu,
    check_engine_cpu,
    check_infer,
    inferred,
    run_fallback,
    supported,
)
from tests.ops.standard import for_each, gpu_node_suite, on_gpu

F = "float32"
RNG = np.random.default_rng(7)


def some(*shape: int, dtype: str = F) -> Array:
    return np.asarray(RNG.standard_normal(shape) * 0.5).astype(dtype)


def attention(
    rule: str,
    batch: int = 2,
    length: int = 5,
    heads: int = 2,
    groups: int = 1,
    size: int = 8,
    value: int = 6,
    *,
    past: bool = False,
    lanes: bool = True,
    rates: int = 0,
    dtype: str = F,
    **attrs: Any,
) -> OpCase:
    """A node whose decay is for each lane of the keys, or (`lanes` off) for each head."""
    inputs: list[Array | None] = [
        some(batch, length, heads * groups * size, dtype=dtype),
        some(batch, length, heads * size, dtype=dtype),
        some(batch, length, heads * value, dtype=dtype),
        some(batch, heads, size, value, dtype=dtype) if past else None,
    ]
    if rule in ("gated", "gated_delta"):
        width = heads * size if lanes else heads
        inputs.append(-np.abs(some(batch, length, width, dtype=dtype)))
    if rule in ("delta", "gated_delta"):
        inputs += [None] * (5 - len(inputs))
        given = RNG.random((batch, length, rates or heads)).astype(dtype)
        inputs.append(given)
    while inputs[-1] is None:
        inputs.pop()
    counts = {"q_num_heads": heads * groups, "kv_num_heads": heads}
    what = f"{rule}-{batch}x{length}x{heads}x{groups}x{size}x{value}-{past}-{lanes}-{dtype}"
    return OpCase(
        "LinearAttention",
        tuple(inputs),
        {"update_rule": rule, **counts, **attrs},
        2,
        oracle="fallback",
        name=what + "".join(f"-{k}" for k in attrs),
    )


CASES = [
    attention("linear"),
    attention("linear", length=1, past=True),
    attention("linear", heads=1, groups=3, size=5, value=37, scale=0.3),
    attention("gated", past=True),
    attention("gated", lanes=False, size=7, groups=2),
    attention("delta", past=True, size=13, value=3),
    attention("delta", rates=1),
    attention("gated_delta", groups=3, size=64, value=65, past=True),
    attention("gated_delta", lanes=False, size=3, value=1, rates=1),
    attention("gated_delta", batch=1, length=113, heads=1, size=16, value=8),
    attention("gated_delta", size=1, past=True),
    attention("linear", length=0, past=True),
    attention("linear", batch=0),
]
HALF = attention("gated_delta", past=True, dtype="float16").replace(tol=2e-3)


def test_the_fallback_against_the_recurrence_written_out() -> None:
    case = attention("gated_delta", batch=1, heads=1, size=3, value=2, length=4, past=True)
    query, key, value, state, decay, beta = (np.asarray(a, np.float64) for a in arrays(case))
    wanted, s = [], state[0, 0]
    for t in range(4):
        s = s * np.exp(decay[0, t])[:, None]
        s = s + np.outer(key[0, t], beta[0, t] * (value[0, t] - key[0, t] @ s))
        wanted.append(query[0, t] @ s / np.sqrt(3))
    y, present = run_fallback(case, arrays(case))
    np.testing.assert_allclose(y[0], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(present[0, 0], s, rtol=1e-5, atol=1e-6)


test_cpu = for_each([*CASES, HALF], check_cpu, check_engine_cpu, check_infer)
test_gpu = on_gpu([*CASES, HALF])


def test_what_is_refused() -> None:
    assert "256" in supported(attention("linear", size=260)).reason
    assert "known size" in supported(CASES[0], dynamic=True).reason
    wrong = CASES[0].replace(attrs={**CASES[0].attrs, "update_rule": "delta"})
    assert "rule 'delta'" in supported(wrong).reason
    with pytest.raises(ShapeError, match="split"):
        inferred(CASES[0].replace(attrs={**CASES[0].attrs, "kv_num_heads": 5}))


test_node_suite = gpu_node_suite("LinearAttention", require_gpu=True)
