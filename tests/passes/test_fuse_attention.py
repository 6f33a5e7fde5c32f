"""Attention as exporters write it out is told, in all that they put around it, and nothing else."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest

import engine
from engine.ir import Graph
from engine.passes import PIPELINE, run_passes
from engine.passes.base import PassResult
from engine.passes.eliminate import eliminate
from engine.passes.fuse_attention import fuse_attention
from tests.passes.graphs import check_rewrite, check_same_results, check_untouched, numbers, typed

CONSTANTS = {"c": 0.25, "root": 4.0, "zero": 0.0, "low": -10000.0, "one": 1.0}
ATTENDED = "y = Attention<scale = {}>(q, k4, v{})"
KEYS = "k4 = Transpose<perm = [0, 1, 3, 2]>(t)"


def text(body: str, more: str = "", kind: str = "float") -> str:
    declared, _ = numbers(kind, CONSTANTS)
    return (
        f"f ({kind}[n, 3, l, 8] q, {kind}[n, 3, s, 8] k, {kind}[n, 3, s, 5] v{declared}{more})"
        f" => ({kind}[n, 3, l, 5] y) {{ t = Transpose<perm = [0, 1, 3, 2]>(k) {body} }}"
    )


def fused(graph: Graph) -> PassResult:
    """The pass, without the nodes that nothing needs any more."""
    result = fuse_attention(graph)
    return dataclasses.replace(result, graph=eliminate(result.graph).graph)


def rewrite(body: str, after: str, more: str = "", kind: str = "float") -> PassResult:
    _, arrays = numbers(kind, CONSTANTS)
    whole = text(f"{KEYS} {after}", more, kind)
    return check_rewrite(fused, text(body, more, kind), whole, arrays, arrays, n=2, l=4)


def untouched(body: str, reason: str = "", more: str = "") -> None:
    _, arrays = numbers("float", CONSTANTS)
    check_untouched(fuse_attention, text(body, more), arrays, reason)


SCALES = {
    "none": ("", "m", 1.0),
    "mul": ("a = Mul(m, c)", "a", 0.25),
    "mul first": ("a = Mul(c, m)", "a", 0.25),
    "div": ("a = Div(m, root)", "a", 0.25),
    "twice": ("b = Mul(m, c)  a = Div(b, root)", "a", 0.0625),
}


@pytest.mark.parametrize("scale", SCALES)
def test_scales(scale: str) -> None:
    nodes, name, number = SCALES[scale]
    body = f"m = MatMul(q, t)  {nodes}  p = Softmax<axis = -1>({name})  y = MatMul(p, v)"
    result = rewrite(body, ATTENDED.format(number, ""))
    assert result.applied[0].endswith("=> Transpose + Attention")


@pytest.mark.parametrize("shape", ["n, 1, l, s", "n, 1, 1, s", "l, s", "s"])
@pytest.mark.parametrize("order", ["a, x", "x, a"])
def test_masks_that_are_finite(shape: str, order: str) -> None:
    mask = "f = Cast<to = 1>(w)  o = Sub(one, f)  x = Mul(o, low)"
    body = (
        f"m = MatMul(q, t)  a = Div(m, root)  {mask}  b = Add({order})"
        "  p = Softmax<axis = 3>(b)  y = MatMul(p, v)"
    )
    rewrite(body, f"{mask}  {ATTENDED.format(0.25, ', x')}", f", bool[{shape}] w")


GUARD = "n = IsNaN(p)  g = Where(n, zero, p)  y = MatMul(g, v)"


def test_a_guard_of_rows_that_reach_no_key_allows_any_mask() -> None:
    body = f"m = MatMul(q, t)  b = Add(m, w)  p = Softmax<axis = -1>(b)  {GUARD}"
    rewrite(body, ATTENDED.format(1.0, ", w"), ", float[n, 1, l, s] w")


def test_a_guard_does_what_attention_does() -> None:
    _, arrays = numbers("float", CONSTANTS)
    low = {**arrays, "low": np.float32(-np.inf)}
    mask = "x = Where(w, zero, low)"
    body = f"m = MatMul(q, t)  {mask}  b = Add(m, x)  p = Softmax<axis = -1>(b)  {GUARD}"
    graph = typed(text(body, ", bool[l, s] w"), low)
    result = fuse_attention(graph)
    assert result.applied
    check_same_results(graph, result.graph, n=2, l=9, s=2)


def test_a_mask_that_may_be_infinite_is_left() -> None:
    body = "m = MatMul(q, t)  b = Add(m, w)  p = Softmax<axis = -1>(b)  y = MatMul(p, v)"
    untouched(body, "minus infinity for all keys", ", float[n, 1, l, s] w")


def test_a_mask_may_become_infinite_in_a_narrower_type() -> None:
    _, arrays = numbers("float16", CONSTANTS)
    wide = {**arrays, "wide": np.float32(-1e9), "none": np.float32(0)}
    body = (
        "m = MatMul(q, t)  z = Where(w, none, wide)  x = Cast<to = 10>(z)  b = Add(m, x)"
        "  p = Softmax<axis = -1>(b)  y = MatMul(p, v)"
    )
    declared = ", bool[l, s] w, float wide, float none"
    graph = text(body, declared, "float16")
    check_untouched(fuse_attention, graph, wide, "minus infinity for all keys")


WHOLE = ", float[n, 3, l, s] w"


@pytest.mark.parametrize(
    ("body", "reason", "more"),
    [
        ("m = MatMul(q, t)  p = Softmax<axis = 2>(m)  y = MatMul(p, v)", "", ""),
        ("m = MatMul(q, t)  p = Exp(m)  y = MatMul(p, v)", "", ""),
        (
            "m = Add(w, zero)  p = Softmax<axis = -1>(m)  y = MatMul(p, v)",
            "not of a product",
            WHOLE,
        ),
        (
            "m = MatMul(q, t)  a = Tanh(m)  p = Softmax<axis = -1>(a)  y = MatMul(p, v)",
            "is no scale and no mask",
            "",
        ),
        (
            "m = MatMul(q, t)  b = Add(m, w)  a = Mul(b, c)  p = Softmax<axis = -1>(a)"
            "  y = MatMul(p, v)",
            "is no scale and no mask",
            WHOLE,
        ),
        (
            "m = MatMul(q, t)  p = Softmax<axis = -1>(m)  z = MatMul(p, v)  r = ReduceMax(p)"
            "  y = Add(z, r)",
            "reads 'p' too",
            "",
        ),
        (
            "m = MatMul(q, w)  p = Softmax<axis = -1>(m)  y = MatMul(p, v)",
            "not the transpose",
            ", float[n, 3, 8, s] w",
        ),
        (
            "m = MatMul(q, t)  p = Softmax<axis = -1>(m)  i = IsNaN(p)  g = Where(i, one, p)"
            "  y = MatMul(g, v)",
            "what is done to its weights",
            "",
        ),
        (
            "m = MatMul(q, t)  x = Cast<to = 1>(w)  b = Add(m, x)  p = Softmax<axis = -1>(b)"
            "  y = MatMul(p, v)",
            "one for all keys",
            ", bool[l, 1] w",
        ),
    ],
)
def test_what_is_something_else(body: str, reason: str, more: str) -> None:
    untouched(body, reason, more)


@pytest.mark.parametrize(
    ("query", "key", "value", "reason"),
    [
        ("2, 3, 4, 8", "2, 3, 5, 8", "1, 3, 5, 6", "differ in the batch"),
        ("2, 3, 4, 8", "1, 3, 5, 8", "2, 3, 5, 6", "differ in the batch"),
        ("n, 3, 4, 8", "2, 3, 5, 8", "2, 3, 5, 6", "differ in the batch"),
        ("2, 1, 4, 8", "2, 3, 5, 8", "2, 3, 5, 6", "differ in their number of heads"),
        ("2, 3, 4, 8", "2, 1, 5, 8", "2, 3, 5, 6", "differ in their number of heads"),
        ("2, 3, 4, 8", "3, 5, 8", "2, 3, 5, 6", "no dimension of heads each"),
        ("2, 3, 4, 8", "5, 8", "2, 3, 5, 6", "no dimension of heads each"),
        ("2, 3, 4, 8", "2, 3, 5, 8", "3, 5, 6", "no dimension of heads each"),
        ("2, 3, 4, 8", "2, 1, 5, 8", "2, 1, 5, 6", ""),
    ],
)
def test_what_products_broadcast_attention_does_not(
    query: str, key: str, value: str, reason: str
) -> None:
    axes = list(range(key.count(",") + 1))
    turned = [*axes[:-2], axes[-1], axes[-2]]
    graph = typed(
        f"f (float[{query}] q, float[{key}] k, float[{value}] v) => (float[a, b, c, d] y) {{"
        f" t = Transpose<perm = {turned}>(k)  m = MatMul(q, t)  p = Softmax<axis = -1>(m)"
        " y = MatMul(p, v) }"
    )
    result = fused(graph)
    assert [n.op_type for n in result.graph.nodes].count("Attention") == (not reason)
    assert any(reason in line for line in result.near_misses) or not reason
    check_same_results(graph, run_passes(graph).graph, n=2)


HEADS = """f (float[n, l, 24] q, float[n, s, 24] k, float[n, s, 15] v, float[l, s] w)
    => (float[n, l, 15] y) {
    h = Constant<value_ints = [0, 0, 3, -1]>()  j = Constant<value_ints = [0, 0, -1]>()
    q1 = Reshape(q, h)  q2 = Transpose<perm = [0, 2, 1, 3]>(q1)
    k1 = Reshape(k, h)  k2 = Transpose<perm = [0, 2, 3, 1]>(k1)
    v1 = Reshape(v, h)  v2 = Transpose<perm = [0, 2, 1, 3]>(v1)
    m = MatMul(q2, k2)  b = Add(m, w)  p = Softmax<axis = -1>(b)
    i = IsNaN(p)  zero = Constant<value_float = 0.0>()  g = Where(i, zero, p)
    o = MatMul(g, v2)  o1 = Transpose<perm = [0, 2, 1, 3]>(o)  y = Reshape(o1, j) }"""


def operators(graph: Graph) -> list[str]:
    return [n.op_type for n in graph.nodes]


def test_heads_stay_where_they_lie() -> None:
    start = typed(HEADS)
    found = run_passes(start).graph
    assert operators(found) == ["Attention"]
    assert found.nodes[0].attrs["q_num_heads"] == found.nodes[0].attrs["kv_num_heads"] == 3
    check_same_results(start, found, n=2, l=4, s=5)


def test_a_cpu_computes_the_products_one_by_one() -> None:
    result = run_passes(typed(HEADS), on_cpu=True)
    assert "Attention" not in operators(result.graph)
    step = next(s for s in PIPELINE if s.name == "fuse_attention")
    (missed,) = result.results[step.name].near_misses
    assert missed.endswith(f": left out, as a CPU computes it all: {step.not_on_cpu}")
    plain = run_passes(typed("g (float[n] x) => (float[n] y) { y = Exp(x) }"), on_cpu=True)
    assert plain.results[step.name].near_misses == ()


@pytest.mark.gpu
@pytest.mark.parametrize("length", [1, 5, 70])
def test_the_kernels_agree(length: int) -> None:
    header = '<ir_version: 10, opset_import: ["" : 21]>'
    model = onnx.parser.parse_model(header + HEADS)
    chance = np.random.default_rng(0)
    shapes = {"q": (2, length, 24), "k": (2, 37, 24), "v": (2, 37, 15), "w": (length, 37)}
    feeds = {n: chance.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    feeds["w"][0] = -np.inf
    with (
        engine.InferenceSession(model, device="gpu", require_gpu=True) as gpu,
        engine.InferenceSession(model, device="cpu") as cpu,
    ):
        (found,), (wanted,) = gpu.run(None, feeds), cpu.run(None, feeds)
        labels = [d.label for d in gpu.plan(feeds).dispatches]
    assert labels == ["Attention"]
    assert not wanted[:, 0].any()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
