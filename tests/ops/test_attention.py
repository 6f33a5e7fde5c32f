"""Attention and rotary embedding: heads, masks, windows, layouts, both kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpu_fallback import registry
from engine.ops import Lowering, definition
from engine.runtime import targets
from engine.target import Target
from tests.ops.harness import (
    OpCase,
    case_id,
    check_cpu,
    check_engine_cpu,
    check_gpu,
    check_infer,
    inferred,
    supported,
)
from tests.ops.standard import for_each, gpu_node_suite, on_gpu


def noise(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def attention(
    batch: int,
    heads: tuple[int, int],
    lengths: tuple[int, int],
    sizes: tuple[int, int],
    mask: Any = None,
    valid: tuple[int, ...] | None = None,
    *,
    packed: bool = False,
    name: str = "",
    **attrs: Any,
) -> OpCase:
    """A case of query and key heads, query and key lengths, sizes of keys and values."""
    operands = [
        noise(batch, heads[0], lengths[0], sizes[0], seed=1),
        noise(batch, heads[1], lengths[1], sizes[0], seed=2),
        noise(batch, heads[1], lengths[1], sizes[1], seed=3),
    ]
    if packed:
        flat = (x.transpose(0, 2, 1, 3) for x in operands)
        operands = [np.ascontiguousarray(x.reshape(*x.shape[:2], -1)) for x in flat]
        attrs = {"q_num_heads": heads[0], "kv_num_heads": heads[1], **attrs}
    values = [*operands, mask, None, None, valid and np.array(valid, np.int64)]
    while values[-1] is None:
        values.pop()

    def exact(*given: Any) -> Any:
        wide = [
            v.astype(np.float64) if v is not None and v.dtype == np.float32 else v for v in given
        ]
        return tuple(registry.run("Attention", "", 24, attrs, wide, 1))

    numbers = "x".join(map(str, (batch, *heads, *lengths, *sizes)))
    what = name or ",".join(f"{k}={v}" for k, v in attrs.items())
    extra = "" if mask is None else f"-{mask.dtype}{mask.shape}"
    return OpCase(
        "Attention", tuple(values), attrs, oracle=exact, name=f"{numbers}{extra}-{valid}-{what}"
    )


def masks(*shape: int) -> tuple[Any, Any]:
    """A boolean mask with a row that reaches nothing, and a float one alike."""
    keep = noise(*shape, seed=9) > -0.4
    keep[..., 0, :] = False
    return keep, np.where(keep, noise(*shape, seed=8), -np.inf).astype(np.float32)


def _cases() -> list[OpCase]:
    boolean, additive = masks(2, 4, 7, 9)
    shared, shared_float = masks(7, 9)
    cases = [
        attention(1, (1, 1), (1, 1), (1, 1)),
        attention(2, (2, 2), (7, 7), (8, 8)),
        attention(2, (2, 2), (7, 7), (8, 8), packed=True),
        attention(3, (4, 2), (7, 9), (5, 3), packed=True),
        attention(3, (4, 1), (1, 100), (16, 20)),
        attention(3, (4, 1), (1, 100), (16, 20), masks(1, 100)[1], softcap=1.5),
        attention(1, (3, 3), (100, 100), (32, 32), packed=True, is_causal=1),
        attention(1, (2, 2), (65, 33), (64, 64), scale=0.3, softcap=2.0),
        attention(1, (2, 2), (33, 300), (128, 128)),
        attention(1, (2, 1), (2, 300), (128, 72)),
        attention(1, (1, 1), (40, 70), (12, 256)),
        attention(2, (4, 4), (7, 9), (8, 8), boolean),
        attention(2, (4, 2), (7, 9), (8, 8), additive, softcap=1.5),
        attention(2, (4, 2), (7, 9), (8, 8), shared),
        attention(2, (4, 2), (7, 9), (8, 8), shared_float, packed=True),
        attention(2, (4, 2), (7, 9), (8, 8), masks(2, 1, 1, 6)[1], name="shortmask"),
        attention(2, (4, 2), (7, 9), (8, 8), masks(2, 1, 7, 9)[0], is_causal=1),
        attention(2, (4, 2), (3, 9), (8, 8), masks(4, 1, 9)[1], is_causal=1, name="rank3"),
        attention(2, (4, 2), (7, 9), (8, 8), valid=(9, 7), is_causal=1),
        attention(2, (4, 2), (2, 9), (8, 8), valid=(4, 2), is_causal=1),
        attention(2, (2, 2), (2, 9), (8, 8), valid=(4, 2)),
        attention(2, (2, 2), (40, 70), (8, 8), left_window_size=5, right_window_size=2),
        attention(2, (2, 1), (40, 70), (8, 8), valid=(70, 45), left_window_size=3),
        attention(1, (2, 1), (40, 70), (8, 8), right_window_size=1, left_window_size=0),
        attention(1, (2, 1), (40, 70), (8, 8), right_window_size=1, left_window_size=2**40),
        attention(1, (2, 2), (0, 5), (4, 4)),
        attention(1, (2, 2), (3, 0), (4, 4)),
        attention(0, (2, 2), (3, 5), (4, 4)),
    ]
    large = noise(1, 2, 9, 16, seed=5) * 200
    cases.append(OpCase("Attention", (large, large, noise(1, 2, 9, 16)), name="large", tol=2e-4))
    infinite = noise(1, 2, 9, 16)
    infinite[..., -1, 3] = np.inf
    cases.append(
        OpCase("Attention", (noise(1, 2, 9, 16), noise(1, 2, 9, 16), infinite), name="inf")
    )
    return cases


def _rotary() -> list[OpCase]:
    cases = []
    positions = np.array([[0, 4, 2], [8, 8, 1]])
    for shape, heads in (((2, 4, 3, 8), None), ((2, 3, 32), 4)):
        for dim in (0, 4):
            for interleaved in (0, 1):
                attrs = {"interleaved": interleaved, "rotary_embedding_dim": dim}
                if heads:
                    attrs["num_heads"] = heads
                half = (dim or 8) // 2
                x = noise(*shape)
                cached = (x, noise(9, half), noise(9, half, seed=1), positions)
                cases.append(OpCase("RotaryEmbedding", cached, attrs))
                each = (x, noise(2, 3, half), noise(2, 3, half, seed=1))
                cases.append(OpCase("RotaryEmbedding", each, attrs))
    cases.append(
        OpCase("RotaryEmbedding", (noise(0, 2, 3, 4), noise(9, 2), noise(9, 2), positions[:0]))
    )
    return cases


CASES = [*_cases(), *_rotary()]
DYNAMIC = [
    attention(2, (4, 2), (7, 9), (8, 8), masks(2, 1, 7, 9)[0], packed=True, is_causal=1),
]
HALF = attention(1, (2, 2), (3, 5), (4, 4))
HALF = HALF.replace(
    inputs=tuple(v.astype(np.float16) for v in HALF.inputs if isinstance(v, np.ndarray)),
    tol=3e-3,
    name="float16",
    oracle=None,
)


test_cpu = for_each([*CASES, HALF], check_cpu)
test_infer = for_each(CASES, check_infer)
test_gpu = on_gpu([*CASES, HALF])


def test_engine_on_the_cpu() -> None:
    check_engine_cpu(CASES[1])


@pytest.mark.gpu
@given(
    st.tuples(*(st.integers(1, 3) for _ in range(3))),
    st.tuples(st.integers(1, 40), st.integers(1, 70)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.booleans(),
    st.sampled_from([{}, {"is_causal": 1}, {"left_window_size": 4}]),
)
@settings(max_examples=15, deadline=None)
def test_any_sizes(
    counts: tuple[int, int, int],
    lengths: tuple[int, int],
    sizes: tuple[int, int],
    packed: bool,
    attrs: dict[str, Any],
) -> None:
    batch, kv_heads, groups = counts
    heads = (kv_heads * groups, kv_heads)
    check_gpu(attention(batch, heads, lengths, sizes, packed=packed, **attrs))


def kernel_of(case: OpCase) -> str:
    graph, node, _ = inferred(case)
    op = definition(node)
    assert op is not None and op.lower is not None
    view = Lowering(graph, node, Target.baseline(), lambda kind: "", lambda *_: "")
    (stage,) = op.lower(view)
    return stage[0].shader


def test_few_queries_get_a_workgroup_each() -> None:
    assert kernel_of(attention(1, (4, 4), (1, 100), (64, 64))) == "attention_row"
    assert kernel_of(attention(1, (8, 2), (1, 100), (64, 64))) == "attention_row"
    assert kernel_of(attention(1, (8, 1), (1, 100), (64, 64))) == "attention"
    assert kernel_of(attention(1, (4, 4), (50, 100), (64, 64))) == "attention"


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (attention(1, (2, 2), (3, 5), (4, 4), softmax_precision=10), "softmax"),
        (attention(1, (2, 2), (3, 5), (4, 300)), "out of the range"),
        (attention(1, (2, 2), (3, 5), (4, 4)).replace(n_outputs=4), "scores"),
    ],
    ids=["precision", "size", "scores"],
)
def test_what_the_gpu_refuses(case: OpCase, reason: str) -> None:
    found = supported(case)
    assert not found.ok and reason in found.reason


test_node_suite = gpu_node_suite("Attention", "RotaryEmbedding")


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES[::9], ids=case_id)
def test_tiles_for_software(case: OpCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "is_software", lambda kind: True)
    check_gpu(case)
