"""Convolutions of one value that meet in a Concat become one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import engine
from engine.exporter import to_model
from engine.ir import Graph
from engine.passes.base import PassResult
from engine.passes.eliminate import eliminate
from engine.passes.infer import infer
from engine.passes.join_convs import join_convs
from tests.passes.graphs import (
    Array,
    check_rewrite,
    check_same_results,
    check_untouched,
    parse,
    random_weights,
    typed,
)


def joined(graph: Graph) -> PassResult:
    """The pass, and the view of its end taken out where that does nothing."""
    result = join_convs(graph)
    kept = eliminate(infer(result.graph).graph).graph if result.applied else result.graph
    return PassResult(kept, result.applied, result.near_misses)


WEIGHTS = random_weights(v=(3, 2, 4), w=(3, 2, 4), c=(3,), d=(3,))
SPECTRUM = """g (float[b, 2, t] x, float[3, 2, 4] v, float[3, 2, 4] w, float[3] c)
    => (float[b, u, 3, 2] y) <int64[1] at = {-1}> {
    p = Conv<strides = [2]>(x, v, c)  q = Conv<strides = [2]>(x, w)
    tp = Transpose<perm = [0, 2, 1]>(p)  tq = Transpose<perm = [0, 2, 1]>(q)
    up = Unsqueeze(tp, at)  uq = Unsqueeze(tq, at)
    y = Concat<axis = -1>(uq, up) }"""


def stacked(*arrays: Array) -> Array:
    """Rows of the arrays, in turns."""
    return np.stack(arrays, 1).reshape(-1, *arrays[0].shape[1:])


def in_turns() -> dict[str, Array]:
    bias = stacked(np.zeros(3, np.float32), WEIGHTS["c"])
    return {"w": stacked(WEIGHTS["w"], WEIGHTS["v"]), "c": bias}


def test_parts_of_a_spectrum_take_turns() -> None:
    """In the order of the Concat; a bias that only one has is zero for the others."""
    result = check_rewrite(
        join_convs,
        SPECTRUM,
        """g (float[b, 2, t] x, float[6, 2, 4] w, float[6] c) => (float[b, u, 3, 2] y)
            <int64[1] at = {-1}, int64[4] s = {0, 0, 3, 2}> {
            p = Conv<strides = [2]>(x, w, c)  tp = Transpose<perm = [0, 2, 1]>(p)
            up = Unsqueeze(tp, at)  y = Reshape(up, s) }""",
        {k: WEIGHTS[k] for k in "vwc"},
        in_turns(),
        b=2,
        t=13,
    )
    assert result.applied == ("2 convolutions such as Conv 'q' joined: they read 'x'",)
    conv = next(n for n in result.graph.nodes if n.op_type == "Conv")
    assert {"Conv(p)", "Conv(q)", "Concat(y)"} <= set(conv.origin)


@pytest.mark.parametrize("axis", [1, -2])
def test_channels_of_one_axis_follow_each_other(axis: int) -> None:
    """As many as each has, behind functions of one operand; the input of a step twice too."""
    weights = random_weights(v=(3, 2, 1), w=(1, 2, 1), u=(2, 2, 1))
    result = check_rewrite(
        joined,
        f"""g (float[b, 2, 5] x, float[3, 2, 1] v, float[1, 2, 1] w, float[2, 2, 1] u)
            => (float[b, 6, 5] y) <float two = {{2.0}}, float half = {{0.5}}> {{
            p = Conv(x, v)  q = Conv(x, w)  r = Conv(x, u)
            pp = Mul(p, p)  qq = Mul(q, q)  rr = Mul(r, r)
            pm = Sub(two, pp)  qm = Sub(two, qq)  rm = Sub(two, rr)
            pc = Clip(pm, half)  qc = Clip(qm, half)  rc = Clip(rm, half)
            y = Concat<axis = {axis}>(pc, qc, rc) }}""",
        """g (float[b, 2, 5] x, float[6, 2, 1] v) => (float[b, 6, 5] y)
            <float two = {2.0}, float half = {0.5}> {
            p = Conv(x, v)  pp = Mul(p, p)  pm = Sub(two, pp)  y = Clip(pm, half) }""",
        weights,
        {"v": np.concatenate([weights[k] for k in "vwu"])},
        b=2,
    )
    assert result.applied == ("3 convolutions such as Conv 'p' joined: they read 'x'",)


def test_a_new_axis_in_front_of_the_channels() -> None:
    check_rewrite(
        join_convs,
        SPECTRUM.replace("[b, u, 3, 2] y", "[b, u, 2, 3] y").replace("{-1}", "{2}").replace(
            "axis = -1", "axis = 2"
        ),
        """g (float[b, 2, t] x, float[6, 2, 4] w, float[6] c) => (float[b, u, 2, 3] y)
            <int64[1] at = {2}, int64[4] s = {0, 0, 2, 3}> {
            p = Conv<strides = [2]>(x, w, c)  tp = Transpose<perm = [0, 2, 1]>(p)
            up = Unsqueeze(tp, at)  y = Reshape(up, s) }""",
        {k: WEIGHTS[k] for k in "vwc"},
        {
            "w": np.concatenate([WEIGHTS["w"], WEIGHTS["v"]]),
            "c": np.concatenate([np.zeros(3, np.float32), WEIGHTS["c"]]),
        },
        b=2,
        t=13,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("q = Conv<strides = [2]>", "q = Conv<strides = [2], dilations = [1]>"),
        ("uq = Unsqueeze(tq, at)", "nq = Neg(tq)  uq = Unsqueeze(nq, at)"),
        ("perm = [0, 2, 1]>(q)", "perm = [0, 2, 1]>(q)  tq2 = Exp(tq)"),
        ("(uq, up)", "(uq, up, up)"),
        ("(uq, up)", "(uq, up, other)"),
        ("[b, u, 3, 2] y)", "[b, u, 3, 2] y, float[b, 3, u] q)"),
    ],
    ids=["attributes", "steps", "read elsewhere", "joined twice", "joined with more", "an output"],
)
def test_what_differs_from_branch_to_branch(old: str, new: str) -> None:
    text = SPECTRUM.replace("float[3] c)", "float[3] c, float[b, u, 3, 1] other)")
    changed = text.replace(old, new)
    assert changed != text
    check_untouched(join_convs, changed, {k: WEIGHTS[k] for k in "vwc"})


def test_weights_that_are_fed_or_grouped() -> None:
    check_untouched(join_convs, SPECTRUM, {"v": WEIGHTS["v"], "c": WEIGHTS["c"]})
    grouped = """g (float[b, 2, t] x, float[2, 1, 4] v, float[2, 1, 4] w) => (float[b, 4, u] y) {
        p = Conv<group = 2>(x, v)  q = Conv<group = 2>(x, w)  y = Concat<axis = 1>(p, q) }"""
    check_untouched(join_convs, grouped, random_weights(v=(2, 1, 4), w=(2, 1, 4)))


def test_other_axes_stay_apart() -> None:
    text = """g (float[1, 2, 9] x, float[3, 2, 4] v, float[3, 2, 4] w) => (float[1, 3, 12] y) {
        p = Conv(x, v)  q = Conv(x, w)  y = Concat<axis = 2>(p, q) }"""
    check_untouched(
        join_convs, text, {k: WEIGHTS[k] for k in "vw"}, "in another axis than the channels"
    )
    turns = """g (float[1, 2, 9] x, float[3, 2, 4] v, float[2, 2, 4] w) => (float[1, 5, 6, 1] y)
        <int64[1] at = {3}> { p = Conv(x, v)  q = Conv(x, w)
        up = Unsqueeze(p, at)  uq = Unsqueeze(q, at)  y = Concat<axis = 1>(up, uq) }"""
    assert join_convs(typed(turns, random_weights(v=(3, 2, 4), w=(2, 2, 4)))).applied


MELS = """g (float[b, t] x, float[5, 1, 16] v, float[5, 1, 16] w, float[5, 2] m)
    => (float[b, 1, u, 2] y) <float two = {2.0}, int64[1] at = {1}> {
    x1 = Unsqueeze(x, at)  p = Conv<strides = [2]>(x1, v)  q = Conv<strides = [2]>(x1, w)
    pp = Pow(p, two)  qq = Pow(q, two)  power = Add(pp, qq)  four = Unsqueeze(power, at)
    turned = Transpose<perm = [0, 1, 3, 2]>(four)  y = MatMul(turned, m) }"""
FILTERS = random_weights(v=(5, 1, 16), w=(5, 1, 16), m=(5, 2))


def in_two_rounds(graph: Graph) -> PassResult:
    return joined(infer(join_convs(graph).graph).graph)


def test_a_product_does_the_sum_of_a_power_spectrum() -> None:
    """A Concat in one round, which is one convolution in the next."""
    graph = typed(MELS, FILTERS)
    result = join_convs(graph)
    assert result.applied == ("Add 'power' done by MatMul 'y', whose weights are there twice",)
    assert [n.op_type for n in result.graph.nodes if n.op_type in ("Add", "Concat")] == ["Concat"]
    check_rewrite(
        in_two_rounds,
        MELS,
        """g (float[b, t] x, float[10, 1, 16] w, float[10, 2] m) => (float[b, 1, u, 2] y)
            <float two = {2.0}, int64[1] at = {1}> {
            x1 = Unsqueeze(x, at)  p = Conv<strides = [2]>(x1, w)  pp = Pow(p, two)
            four = Unsqueeze(pp, at)  turned = Transpose<perm = [0, 1, 3, 2]>(four)
            y = MatMul(turned, m) }""",
        FILTERS,
        {
            "w": np.concatenate([FILTERS["v"], FILTERS["w"]]),
            "m": np.concatenate([FILTERS["m"]] * 2),
        },
        t=40,
        b=2,
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float[5, 2] m", "float[5, 3] m"),
        ("Pow(q, two)", "Abs(q)"),
        ("four = Unsqueeze(power, at)", "root = Sqrt(power)  four = Unsqueeze(root, at)"),
        ("perm = [0, 1, 3, 2]", "perm = [0, 1, 2, 3]"),
        ("[b, 1, r, c] y)", "[b, 1, r, c] y, float[b, 5, u] power)"),
    ],
    ids=["many columns", "other functions", "not a sum", "another axis", "an output"],
)
def test_sums_that_a_product_does_not_do(old: str, new: str) -> None:
    text = MELS.replace("float[b, 1, u, 2] y", "float[b, 1, r, c] y")
    changed = text.replace(old, new)
    assert changed != text
    columns = 3 if "float[5, 3]" in new else 2
    weights = {k: FILTERS[k] for k in "vw"} | random_weights(m=(5, columns))
    check_untouched(join_convs, changed, weights)


def test_the_same_weights_are_joined_once() -> None:
    """Octaves of a transform share their weights."""
    weights = random_weights(v=(3, 1, 4), w=(3, 1, 4))
    graph = typed(
        """g (float[1, 1, 9] x, float[1, 1, 7] z, float[3, 1, 4] v, float[3, 1, 4] w)
            => (float[1, 6, 6] y, float[1, 6, 4] o) {
            p = Conv(x, v)  q = Conv(x, w)  y = Concat<axis = 1>(p, q)
            r = Conv(z, v)  s = Conv(z, w)  o = Concat<axis = 1>(r, s) }""",
        weights,
    )
    result = join_convs(graph)
    first, second = (n for n in result.graph.nodes if n.op_type == "Conv")
    assert first.inputs[1] == second.inputs[1] and len(result.applied) == 2
    check_same_results(graph, result.graph)


def run_on_gpu(graph: Graph, feeds: Mapping[str, Array]) -> tuple[list[str], list[Array]]:
    with engine.InferenceSession(to_model(graph), device="gpu", require_gpu=True) as session:
        found = session.run(None, dict(feeds))
        return [d.label for d in session.plan(dict(feeds)).dispatches], list(found)


@pytest.mark.gpu
def test_one_kernel_computes_a_spectrum_whatever_its_sizes() -> None:
    """It stores real and imaginary parts side by side, whole or as a part of something else."""
    text = SPECTRUM.replace(
        "=> (float[b, u, 3, 2] y)", "=> (float[b, u, 3, 4] z, float[b, u, 3, 2] e)"
    )
    graph = parse(text.replace("up) }", "up) e = Exp(y) z = Concat<axis = 3>(y, e) }"),
                  {k: WEIGHTS[k] for k in "vwc"})  # fmt: skip
    chance = np.random.default_rng(3)
    for b, t in ((2, 13), (1, 4), (3, 30)):
        feeds = {"x": chance.standard_normal((b, 2, t)).astype(np.float32)}
        labels, found = run_on_gpu(graph, feeds)
        wanted = ReferenceEvaluator(to_model(graph)).run(None, feeds)
        for mine, right in zip(found, wanted, strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-4)
        assert sum("Conv" in label for label in labels) == 1
