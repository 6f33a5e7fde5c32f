"""The cache of Attention becomes a Concat, which grows in place; results stay."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx.parser
import pytest

import engine
from engine.importer import load_model
from engine.passes import run_passes
from tests.ops.harness import OpCase, arrays, build_model, compare, feeds, run_fallback

DECODE = """<ir_version: 13, opset_import: ["" : 24]>
decode (float[1,new,32] q, float[1,new,16] k, float[1,new,16] v,
        float[1,2,past,8] past_k, float[1,2,past,8] past_v)
    => (float[1,new,32] out, float[1,2,total,8] all_k, float[1,2,total,8] all_v) {
  out, all_k, all_v = Attention <q_num_heads = 4, kv_num_heads = 2, is_causal = 1>
      (q, k, v, , past_k, past_v)
}"""


def f32(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def cached(
    lengths: tuple[int, int, int],
    mask: Any = None,
    *,
    packed: bool = False,
    outputs: int = 3,
    **attrs: Any,
) -> OpCase:
    """A case of queries, new keys and past keys; four query heads for two key heads."""
    queries, keys, past = lengths
    q, k, v = f32(2, 4, queries, 8), f32(2, 2, keys, 8), f32(2, 2, keys, 6, seed=1)
    if packed:
        flat = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
        q, k, v = (np.ascontiguousarray(x.reshape(*x.shape[:2], -1)) for x in flat)
        attrs = {"q_num_heads": 4, "kv_num_heads": 2, **attrs}
    values: list[Any] = [q, k, v, mask]
    if past >= 0:
        values += [f32(2, 2, past, 8, seed=2), f32(2, 2, past, 6, seed=3)]
    while values[-1] is None:
        values.pop()
    return OpCase("Attention", tuple(values), attrs, outputs, opset=25)


CASES = {
    "plain": cached((3, 3, 5)),
    "packed": cached((3, 3, 5), packed=True),
    "causal": cached((3, 3, 5), is_causal=1),
    "packed causal": cached((1, 1, 9), packed=True, is_causal=1),
    "fewer queries": cached((2, 5, 4), is_causal=1),
    "more queries": cached((6, 2, 4), is_causal=1),
    "window": cached((3, 3, 5), left_window_size=2, right_window_size=1),
    "mask": cached((3, 3, 5), f32(2, 1, 3, 8) > 0, is_causal=1),
    "empty past": cached((3, 3, 0), packed=True, is_causal=1),
    "no past": cached((3, 5, -1)),
    "no past, packed": cached((3, 5, -1), packed=True, is_causal=1),
    "softcap": cached((3, 3, 5), softcap=2.0, scale=0.4),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_same_results(name: str, device: str) -> None:
    case = CASES[name]
    values = arrays(case)
    for dynamic in (False, True):
        model = build_model(case, values, dynamic=dynamic)
        with engine.InferenceSession(model, device=device) as session:
            got = session.run(None, feeds(case, values))
        for mine, want in zip(got, run_fallback(case, values), strict=True):
            compare(mine, want, 5e-6)


@pytest.mark.parametrize("name", CASES)
def test_attention_is_left_without_cache(name: str) -> None:
    graph = run_passes(load_model(build_model(CASES[name])).graph).graph
    found = Counter(node.op_type for node in graph.nodes)
    (node,) = (n for n in graph.nodes if n.op_type == "Attention")
    assert not node.input(4) and len(node.outputs) == 1
    assert found["Concat"] == (0 if name.startswith("no past") else 2)


def test_what_stays_says_why() -> None:
    case = cached((2, 5, 4), left_window_size=1)
    result = run_passes(load_model(build_model(case)).graph)
    assert "behind those of the last query" in result.results["split_cache"].near_misses[0]
    with engine.InferenceSession(build_model(case), device="cpu") as session:
        values = arrays(case)
        got = session.run(None, feeds(case, values))
    for mine, want in zip(got, run_fallback(case, values), strict=True):
        np.testing.assert_array_equal(mine, want)


def test_scores_may_be_wanted_too() -> None:
    case = cached((3, 3, 5), packed=True, outputs=4, is_causal=1, qk_matmul_output_mode=3)
    values = arrays(case)
    with engine.InferenceSession(build_model(case, values), device="cpu") as session:
        got = session.run(None, feeds(case, values))
    for mine, want in zip(got, run_fallback(case, values), strict=True):
        compare(mine, want, 1e-6)


@pytest.mark.gpu
def test_a_cache_on_the_device_grows_in_place() -> None:
    rng = np.random.default_rng(0)
    past = {n: np.zeros((1, 2, 0, 8), np.float32) for n in ("past_k", "past_v")}
    want_past = dict(past)
    buffers = set()
    model = onnx.parser.parse_model(DECODE)
    with (
        engine.InferenceSession(model, device="gpu") as session,
        engine.InferenceSession(model, device="cpu") as host,
    ):
        for step in range(40):
            length = 5 if step == 0 else 1
            feed = {
                name: rng.standard_normal((1, length, width)).astype(np.float32)
                for name, width in (("q", 32), ("k", 16), ("v", 16))
            }
            out, *caches = session.run(None, {**feed, **past}, outputs_on_device=("all_k", "all_v"))
            want, *want_caches = host.run(None, {**feed, **want_past})
            np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
            past = dict(zip(past, caches, strict=True))
            want_past = dict(zip(want_past, want_caches, strict=True))
            buffers.add(caches[0].buffer.uid)
        np.testing.assert_array_equal(caches[0].numpy(), want_caches[0])
        assert ("gpu", "Attention") in {(n.device, n.op_type) for n in session.explain().nodes}
    assert len(buffers) <= 6, "the buffer must grow by doubling, not with every step"
