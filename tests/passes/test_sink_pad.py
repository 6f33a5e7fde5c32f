"""Padding moves over views that add or drop axes of size 1, if a window operator follows."""

from __future__ import annotations

import pytest

from engine.passes.fold_pad import fold_pad
from engine.passes.infer import infer
from engine.passes.sink_pad import matching_axes, sink_pad
from tests.passes.graphs import (
    check_rewrite,
    check_same_results,
    check_untouched,
    random_weights,
    typed,
)

W = random_weights(w=(3, 2, 1, 3))
BEFORE = """g (float[b, 2, 7] x, float[3, 2, 1, 3] w) => (float[b, 3, 1, 8] y)
    <int64[6] p = {{0, 0, 1, 0, 0, 2}}, int64[1] a = {{2}}, int64[4] r = {{-1, 2, 1, 10}}> {{
    {} }}"""
VIEWS = {"Unsqueeze": ("a", "int64[1] r = {2}"), "Reshape": ("r", "int64[4] r = {0, 2, 1, 7}")}
"""The operand of each view, and what it is once the view is in front of the Pad."""


@pytest.mark.parametrize("view", VIEWS)
def test_added_axis(view: str) -> None:
    operand, new = VIEWS[view]
    before = BEFORE.format(f"q = Pad(x, p)  v = {view}(q, {operand})  y = Conv(v, w)")
    result = check_rewrite(
        sink_pad,
        before,
        f"""g (float[b, 2, 7] x, float[3, 2, 1, 3] w) => (float[b, 3, 1, 8] y)
            <int64[8] p = {{0, 0, 0, 1, 0, 0, 0, 2}}, {new}> {{
            v = {view}(x, r)  q = Pad(v, p)  y = Conv(q, w) }}""",
        W,
        W,
        b=2,
    )
    assert [n.origin for n in result.graph.nodes[:2]] == [
        (f"{view}(v)",),
        ("Pad(q)",),
    ]
    folded = fold_pad(infer(result.graph).graph).graph
    assert [n.op_type for n in folded.nodes] == [view, "Conv"]
    check_same_results(typed(before, W), folded, b=2)


def test_dropped_axis_keeps_the_value() -> None:
    check_rewrite(
        sink_pad,
        """g (float[2, 3, 1, 7] x) => (float[2, 3, 8] y)
            <int64[8] p = {0, 0, 0, 1, 0, 0, 0, 2}, float f = {-9}> {
            q = Pad(x, p, f)  v = Squeeze(q)  y = MaxPool<kernel_shape = [3]>(v) }""",
        """g (float[2, 3, 1, 7] x) => (float[2, 3, 8] y)
            <int64[6] p = {0, 0, 1, 0, 0, 2}, float f = {-9}, int64[3] r = {2, 3, 7}> {
            v = Reshape(x, r)  q = Pad(v, p, f)  y = MaxPool<kernel_shape = [3]>(q) }""",
    )


def test_elements_repeated() -> None:
    check_rewrite(
        sink_pad,
        BEFORE.format('q = Pad<mode = "reflect">(x, p)  v = Unsqueeze(q, a)  y = Conv(v, w)'),
        """g (float[b, 2, 7] x, float[3, 2, 1, 3] w) => (float[b, 3, 1, 8] y)
            <int64[8] p = {0, 0, 0, 1, 0, 0, 0, 2}, int64[1] a = {2}> {
            v = Unsqueeze(x, a)  q = Pad<mode = "reflect">(v, p)  y = Conv(q, w) }""",
        W,
        W,
        b=2,
    )


def test_axes_are_added_whatever_sizes_are_open() -> None:
    """No target of a Reshape says two sizes that are open and not where they were."""
    check_rewrite(
        sink_pad,
        """g (float[b, n] x, float[3, 1, 3] w) => (float[b, 3, m] y)
            <int64[4] p = {0, 2, 0, 2}, int64[1] a = {1}> {
            q = Pad<mode = "reflect">(x, p)  v = Unsqueeze(q, a)  y = Conv(v, w) }""",
        """g (float[b, n] x, float[3, 1, 3] w) => (float[b, 3, m] y)
            <int64[6] p = {0, 0, 2, 0, 0, 2}, int64[1] a = {1}> {
            v = Unsqueeze(x, a)  q = Pad<mode = "reflect">(v, p)  y = Conv(q, w) }""",
        random_weights(w=(3, 1, 3)),
        random_weights(w=(3, 1, 3)),
        b=2,
        n=7,
    )


def test_no_window_behind() -> None:
    check_untouched(
        sink_pad,
        BEFORE.format("q = Pad(x, p)  v = Unsqueeze(q, a)  c = Conv(x, w)  y = Neg(v)")
        .replace("c = Conv(x, w)", "")
        .replace("[b, 3, 1, 8]", "[b, 2, 1, 10]"),
        W,
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "q = Pad(x, p)  v = Unsqueeze(q, a)  c = Conv(v, w)  s = ReduceSum(q)  y = Add(c, s)",
            "needed as it is: ReduceSum 's' reads it too",
        ),
    ],
)
def test_pad_stays(body: str, reason: str) -> None:
    check_untouched(sink_pad, BEFORE.format(body), W, reason)


def test_pads_that_vary_stay() -> None:
    check_untouched(
        sink_pad,
        """g (float[b, 2, 7] x, float[3, 2, 1, 3] w, int64[6] s) => (float[b, 3, 1, m] y)
            <int64[1] a = {2}> { q = Pad(x, s)  v = Unsqueeze(q, a)  y = Conv(v, w) }""",
        W,
        "not padding of known size",
    )


def test_view_that_moves_elements() -> None:
    check_untouched(
        sink_pad,
        """g (float[1, 2, 8] x, float[3, 2, 1, 3] w) => (float[1, 3, 5, 3] y)
            <int64[6] p = {0, 0, 1, 0, 0, 1}, int64[4] r = {1, 2, 2, 5}> {
            q = Pad(x, p)  v = Reshape(q, r)  y = Conv(v, w) }""".replace("5, 3] y", "2, 3] y"),
        W,
        "does more than add or drop axes of size 1",
    )


def test_matching_axes() -> None:
    assert matching_axes((2, 1, 5), (2, 5, 1)) == {0: 0, 2: 1}
    assert matching_axes((2, 3), (3, 2)) is None
    assert matching_axes((1,), (1, 1)) == {}
