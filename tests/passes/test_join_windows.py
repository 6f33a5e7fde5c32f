"""Padded windows of one value that a Concat joins are taken out of it together."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import engine
from engine.exporter import to_model
from engine.ir import Graph
from engine.passes.base import PassResult
from engine.passes.eliminate import eliminate
from engine.passes.infer import infer
from engine.passes.join_windows import join_windows
from tests.passes.graphs import check_rewrite, check_untouched, parse

CONSTANTS = """int64[1] axis = {2}, int64[1] two = {2}, int64[1] zero = {0}, int64[1] four = {4},
    int64[1] far = {9223372036854775807}, int64[1] last = {-3}, float one = {1.0},
    int64[2] after = {0, 2}, int64[2] before = {3, 0}"""
WINDOWS = """
    up = Slice(x, two, far, axis)  p = Pad(up, after, , axis)
    down = Slice(x, zero, last, axis)  q = Pad(down, before, , axis)
    y = Concat<axis = 3>(q, x, p)"""
HARMONICS = f"g (float[b, t, 6, 1] x) => (float[b, t, 6, 3] y) <{CONSTANTS}> {{{WINDOWS} }}"
PLACES = [[6, 6, 6, 0, 1, 2], [0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 6, 6]]
"""The seventh place is a zero."""


def gathered(output: str, *rows: list[int]) -> str:
    places = ", ".join(str(n) for row in rows for n in row)
    return f"""g (float[b, t, 6, 1] x) => (float[b, t, {len(rows[0])}, {len(rows)}] {output})
        <int64[8] pads = {{0, 0, 0, 0, 0, 0, 1, 0}}, int64[4] to = {{0, 0, {len(rows[0])}, 3}},
         int64[{len(rows)}, {len(rows[0])}] places = {{{places}}}> {{
        p = Pad(x, pads)  g = Gather<axis = 2>(p, places)
        h = Transpose<perm = [0, 1, 3, 2, 4]>(g)  {output} = Reshape(h, to) }}"""


def rewritten(graph: Graph) -> PassResult:
    """The pass, and what it left over taken out."""
    result = join_windows(graph)
    kept = eliminate(infer(result.graph).graph).graph if result.applied else graph
    return PassResult(kept, result.applied, result.near_misses)


def test_windows_are_taken_from_where_they_are() -> None:
    result = check_rewrite(rewritten, HARMONICS, gathered("y", *PLACES), t=4)
    assert result.applied == ("Concat 'y' => Pad + Gather + Transpose + Reshape",)
    cut = HARMONICS.replace("6, 3] y", "2, 3] z").replace(
        "p) }", "p)  z = Slice(y, zero, four, axis, two) }"
    )
    result = check_rewrite(rewritten, cut, gathered("z", *(row[0:4:2] for row in PLACES)), t=4)
    assert result.applied == ("Slice 'z' => Pad + Gather + Transpose + Reshape",)


def test_channels_of_the_joined_axis_stay_together() -> None:
    check_rewrite(
        rewritten,
        f"""g (float[b, 2, 6] x) => (float[b, 4, 6] y) <{CONSTANTS}> {{
            up = Slice(x, two, far, axis)  p = Pad(up, after, , axis)
            down = Slice(x, zero, last, axis)  q = Pad(down, before, , axis)
            y = Concat<axis = 1>(p, q) }}""",
        """g (float[b, 2, 6] x) => (float[b, 4, 6] y)
            <int64[6] pads = {0, 0, 0, 0, 0, 1}, int64[3] to = {0, 4, 6},
             int64[2, 6] places = {2, 3, 4, 5, 6, 6, 6, 6, 6, 0, 1, 2}> {
            p = Pad(x, pads)  g = Gather<axis = 2>(p, places)
            h = Transpose<perm = [0, 2, 1, 3]>(g)  y = Reshape(h, to) }""",
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Pad(up, after, , axis)", 'Pad<mode = "edge">(up, after, , axis)'),
        ("Pad(up, after, , axis)", "Pad(up, after, one, axis)"),
        ("Slice(x, two", "Slice(other, two"),
        ("Concat<axis = 3>", "Concat<axis = 2>"),
        ("(q, x, p)", "(x, x, p)"),
        ("y)", "y, float[b, t, 6, 1] p)"),
    ],
    ids=["mode", "value", "sources", "along the windows", "one Pad", "an output"],
)
def test_what_is_kept(old: str, new: str) -> None:
    text = HARMONICS.replace("1] x)", "1] x, float[b, t, 6, 1] other)").replace(
        "6, 3] y", "m, n] y"
    )
    changed = text.replace(old, new, 1)
    assert changed != text
    check_untouched(join_windows, changed)


def test_a_cut_of_windows_one_behind_the_other_is_kept() -> None:
    text = HARMONICS.replace("6, 3] y", "m, n] z").replace("Concat<axis = 3>", "Concat<axis = 2>")
    check_untouched(join_windows, text.replace("p) }", "p)  z = Slice(y, four, far, axis) }"))


@pytest.mark.gpu
def test_one_kernel_takes_all_windows_whatever_the_other_sizes() -> None:
    """What is in front is computed where the zero is added, what is behind stored in order."""
    text = HARMONICS.replace("[b, t, 6, 1] x", "[b, 5, 6, 1] in").replace(
        "t, 6, 3] y", "m, n, o] z"
    )
    text = text.replace("up = ", "x = Exp(in)  up = ", 1)
    graph = parse(text.replace("p) }", "p)  z = Transpose<perm = [0, 3, 1, 2]>(y) }"))
    chance = np.random.default_rng(3)
    with engine.InferenceSession(to_model(graph), device="gpu", require_gpu=True) as session:
        for b in (2, 1, 30):
            feeds = {"in": chance.standard_normal((b, 5, 6, 1)).astype(np.float32)}
            found = session.run(None, feeds)
            wanted = ReferenceEvaluator(to_model(graph)).run(None, feeds)
            np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
        labels = [d.label for d in session.plan(feeds).dispatches]
    assert labels == ["Exp + Pad", "Gather + Transpose"]


def test_a_cut_of_open_size_stays_behind() -> None:
    start = HARMONICS.replace("float[b, t, 6, 1] x)", "float[b, t, 6, 1] x, float[m] z)")
    start = start.replace("6, 3] y)", "k, 3] o)").replace(
        "x, p) }", "x, p)  e = Shape(z)  o = Slice(y, zero, e, axis) }"
    )
    result = check_rewrite(
        rewritten,
        start,
        gathered("y", *PLACES)
        .replace("x) =>", "x, float[m] z) =>")
        .replace("(float[b, t, 6, 3] y)", "(float[b, t, k, 3] o)")
        .replace("<int64[8]", "<int64[1] zero = {0}, int64[1] axis = {2}, int64[8]")
        .replace("Reshape(h, to) }", "Reshape(h, to)  e = Shape(z)  o = Slice(y, zero, e, axis) }"),
        t=4,
        m=5,
    )
    assert result.applied
