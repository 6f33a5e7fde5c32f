"""Expressions of sizes that are the same in the call that is planned for become one."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import engine
from engine.exporter import to_model
from engine.passes.canonicalize import canonicalize
from engine.passes.infer import infer
from tests.passes.graphs import parse, random_weights

PYRAMID = """g (float[1, 2, h, w] x, float[3, 2, 1, 1] k, float[3, 2, 1, 1] v)
    => (float[1, 3, m, n] y) <float[4] twice = {1.0, 1.0, 2.0, 2.0}> {
    a = Conv<kernel_shape = [1, 1]>(x, k)  p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
    c = Conv<kernel_shape = [1, 1]>(p, v)  r = Relu(c)
    u = Resize<mode = "nearest">(r, , twice)  s = Sigmoid(u)  y = JOIN }"""
CROPPED = """g (float[h, w] x) => (float[m, w] y) <int64[1] zero = {0}, int64[1] two = {2},
    int64[1] far = {9223372036854775807}, int64[1] last = {-2}> {
    p = Slice(x, zero, far, zero, two)  q = Slice(x, last, far, zero)  y = Add(p, q) }"""
"""Every other row, and the last two."""
WEIGHTS = random_weights(k=(3, 2, 1, 1), v=(3, 2, 1, 1))


def shapes(text: str, **binding: int) -> tuple[dict[str, str], list[str]]:
    result = infer(canonicalize(parse(text, WEIGHTS if " k," in text else {})).graph, binding)
    kinds = {n: str(v.tensor) for n, v in result.graph.values.items()}
    return kinds, [str(g) for g in result.guards]


@pytest.mark.parametrize("joined", ["Add(s, a)", "Concat<axis = 1>(s, a)"])
def test_an_upsampled_map_has_the_sizes_of_what_it_is_joined_with(joined: str) -> None:
    kinds, guards = shapes(
        PYRAMID.replace("JOIN", joined).replace("[1, 3, m", "[1, c, m"), h=8, w=6
    )
    assert kinds["a"] == kinds["s"] == kinds["u"] == "float32[1, 3, h, w]"
    assert kinds["y"] == f"float32[1, {3 if 'Add' in joined else 6}, h, w]"
    assert [g for g in guards if "the same" in g] == [
        "the sizes h and 2*(h // 2) are the same",
        "the sizes w and 2*(w // 2) are the same",
    ]


@pytest.mark.parametrize("binding", [{}, {"w": 8}, {"h": 1, "w": 6}, {"h": 2, "w": 6}])
def test_sizes_that_are_not_known_or_1_or_differ(binding: dict[str, int]) -> None:
    kinds, guards = shapes(CROPPED, **binding)
    assert kinds["y"].startswith("float32[bcast(") and not guards
    kinds, guards = shapes(CROPPED, h=4, w=6)
    assert kinds["p"] == kinds["q"] == kinds["y"] and len(guards) == 1


def test_sizes_that_are_joined_only_where_they_are_equal_may_be_1() -> None:
    text = """g (float[h, w] x) => (float[m, w] y) <int64[1] zero = {0}, int64[1] cap = {5}> {
        p = Slice(x, zero, cap, zero)  e = Exp(p)  y = Add(e, x) }"""
    for size in (1, 4):
        kinds, guards = shapes(text, h=size, w=3)
        assert kinds["p"] == kinds["e"] == kinds["y"] == "float32[h, w]"
        assert "the sizes h and min(5, h) are the same" in guards
    assert shapes(text, h=6, w=3)[0]["p"] == "float32[min(5, h), w]"


def test_sizes_of_different_symbols_may_differ() -> None:
    """Inputs keep theirs, so that one plan does for all calls."""
    text = "g (float[h, w] x, float[n, w] z) => (float[m, w] y) { e = Exp(z)  y = Add(x, e) }"
    kinds, guards = shapes(text, h=3, w=2, n=3)
    assert [kinds[n] for n in "xzey"] == [
        f"float32[{d}, w]" for d in ("h", "n", "n", "bcast(h, n)")
    ]
    assert not guards


@pytest.mark.gpu
def test_one_kernel_adds_to_what_it_makes_whatever_the_sizes() -> None:
    model = to_model(parse(PYRAMID.replace("JOIN", "Add(s, a)"), WEIGHTS))
    chance = np.random.default_rng(3)
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        for h, w in ((8, 6), (4, 10), (2, 2)):
            feeds = {"x": chance.standard_normal((1, 2, h, w)).astype(np.float32)}
            (found,) = session.run(None, feeds)
            (wanted,) = ReferenceEvaluator(model).run(None, feeds)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        labels = [d.label for d in session.plan(feeds).dispatches]
        assert session.plans_made == 1
    assert labels == ["Conv", "MaxPool", "Conv + Relu", "Resize + Sigmoid + Add"]


@pytest.mark.gpu
def test_sizes_that_differ_again_are_broadcast() -> None:
    model = to_model(parse(CROPPED))
    chance = np.random.default_rng(3)
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        for h in (4, 3, 2, 1, 4):
            x = chance.standard_normal((h, 6)).astype(np.float32)
            (found,) = session.run(None, {"x": x})
            np.testing.assert_allclose(found, x[::2] + x[-2:], rtol=1e-5)
        assert session.plans_made == 2
