"""The last view of a chain decides; transposes compose; what can't be said in one Reshape stays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.dims import Dim, floordiv, symbol
from engine.passes.chains import Target, chains, reshape_target
from engine.passes.eliminate import eliminate
from engine.passes.infer import infer
from tests.passes.graphs import (
    check_rewrite,
    check_same_results,
    check_untouched,
    run,
    typed,
)

B, S = symbol("b"), symbol("s")


@pytest.mark.parametrize(
    ("start", "end", "target"),
    [
        ((2, 3), (6,), Target((6,))),
        ((0, 3), (3, 0), Target((3, 0), True)),
        ((B, S, 8), (B, S, 2, 4), Target((0, 0, 2, 4))),
        ((B, 8), (2, B, 4), Target((2, -1, 4))),
        ((B, S, 8), (B * S, 8), Target((-1, 8))),
        ((B, S + 1, 8), (B, 8, S + 1), None),
        ((S + 1, B, 8), (S + 1, 8 * B), Target((0, -1))),
        ((B, S, 8), (S, B, 8), None),
        ((B, 0), (B, 0, 2), None),
        (None, (B, 2), None),
        ((S, 2), (B, 2), None),
        ((B,), None, None),
    ],
)
def test_reshape_target(
    start: tuple[Dim, ...] | None, end: tuple[Dim, ...] | None, target: Target | None
) -> None:
    """-1 is left open only if no other size may be 0, and if all elements are there."""
    assert reshape_target(start, end) == target


def test_a_size_that_was_left_open_stays_open() -> None:
    assert reshape_target((S, 2), (floordiv(S, 2), 4), solved=True) == Target((-1, 4))
    assert reshape_target((S, 2), (floordiv(S, 2), 4)) is None


VIEWS = {
    "reshape, reshape": "p = Reshape(x, u)  y = Reshape(p, v)",
    "unsqueeze, reshape": "p = Unsqueeze(x, i)  y = Reshape(p, v)",
    "flatten, reshape": "p = Flatten<axis = 2>(x)  y = Reshape(p, v)",
    "three": "p = Flatten(x)  q = Unsqueeze(p, i)  y = Reshape(q, v)",
}


@pytest.mark.parametrize("body", VIEWS.values(), ids=VIEWS)
def test_last_view_wins(body: str) -> None:
    constants = "<int64[3] u = {4, 3, 2}, int64[2] v = {-1, 8}, int64[1] i = {0}>"
    check_rewrite(
        lambda graph: chains(graph),
        f"g (float[2, 3, 4] x) => (float[3, 8] y) {constants} {{ {body} }}",
        "g (float[2, 3, 4] x) => (float[3, 8] y) <int64[2] v = {3, 8}> { y = Reshape(x, v) }",
    )


def test_last_view_of_unknown_sizes() -> None:
    """The second target has neither a copied size nor needs any known one."""
    check_rewrite(
        chains,
        """g (float[b, s, 4] x) => (float[k, 8] y) <int64[2] u = {-1, 2}, int64[2] v = {-1, 8}> {
            p = Reshape(x, u)  y = Reshape(p, v) }""",
        "g (float[b, s, 4] x) => (float[k, 8] y) <int64[2] v = {-1, 8}> { y = Reshape(x, v) }",
        b=2,
        s=3,
    )


def test_copied_size_means_the_one_in_between() -> None:
    check_rewrite(
        chains,
        """g (float[2, 6] x) => (float[4, 3] y) <int64[2] u = {4, 3}, int64[2] v = {0, -1}> {
            p = Reshape(x, u)  q = Reshape(p, v)  y = Neg(q) }""",
        """g (float[2, 6] x) => (float[4, 3] y) <int64[2] v = {4, 3}> {
            p = Reshape(x, v)  y = Neg(p) }""",
    )


def test_copied_size_that_is_not_known() -> None:
    """The first size in between is b * s, which the input has on no axis."""
    check_rewrite(
        chains,
        """g (float[b, s, 6] x) => (float[k, 2, 3] y)
            <int64[2] u = {-1, 6}, int64[3] v = {0, 2, 3}> {
            p = Reshape(x, u)  y = Reshape(p, v) }""",
        """g (float[b, s, 6] x) => (float[k, 2, 3] y) <int64[3] v = {-1, 2, 3}> {
            y = Reshape(x, v) }""",
        b=2,
        s=5,
    )


def test_views_that_cancel() -> None:
    result = chains(
        typed(
            """g (float[b, s, 4] x) => (float[b, s, 4] y) <int64[2] i = {0, 2}> {
                n = Neg(x)  p = Unsqueeze(n, i)  q = Squeeze(p, i)  y = Exp(q) }"""
        )
    )
    assert [n.op_type for n in result.graph.nodes] == ["Neg", "Exp"]
    assert "they cancel" in result.applied[0]


def test_view_that_is_read_elsewhere_stays_beside() -> None:
    result = check_rewrite(
        chains,
        """g (float[2, 6] x) => (float[4, 3] y, float[12] z)
            <int64[1] u = {12}, int64[2] v = {4, 3}> {
            p = Reshape(x, u)  z = Neg(p)  y = Reshape(p, v) }""",
        """g (float[2, 6] x) => (float[4, 3] y, float[12] z)
            <int64[1] u = {12}, int64[2] v = {4, 3}> {
            p = Reshape(x, u)  z = Neg(p)  y = Reshape(x, v) }""",
    )
    assert result.graph.producer["y"].origin == ("Reshape(y)",)


def test_chain_that_no_target_says() -> None:
    """[b * s, 4] to [1, b, s, 2, 2] has two sizes that the input has not."""
    check_untouched(
        chains,
        """g (float[b, s, 4] x) => (float[1, s, b, 2, 2] y)
            <int64[1] i = {0}, int64[4] r = {0, 0, 2, 2}> {
            t = Transpose<perm = [1, 0, 2]>(x)  w = Reshape(t, r)  y = Unsqueeze(w, i) }""",
        reason="can't be written as one Reshape target",
    )


def test_computed_target_becomes_constant() -> None:
    check_rewrite(
        lambda graph: chains(graph),
        """g (float[b, 8] x, float[b, 2] z) => (float[b, 2, 4] y)
            <int64[1] i = {0}, int64[2] r = {2, 4}> {
            s = Shape<start = 0, end = 1>(z)  t = Concat<axis = 0>(s, r)  y = Reshape(x, t) }""",
        """g (float[b, 8] x, float[b, 2] z) => (float[b, 2, 4] y) <int64[3] r = {0, 2, 4}> {
            y = Reshape(x, r) }""",
    )


def test_transposes_compose() -> None:
    check_rewrite(
        chains,
        """g (float[2, 3, 4] x) => (float[4, 2, 3] y) {
            p = Transpose<perm = [1, 2, 0]>(x)  y = Transpose<perm = [1, 2, 0]>(p) }""",
        "g (float[2, 3, 4] x) => (float[4, 2, 3] y) { y = Transpose<perm = [2, 0, 1]>(x) }",
    )


def test_default_transposes_cancel() -> None:
    check_rewrite(
        chains,
        """g (float[b, 3, s] x) => (float[b, 3, s] y) {
            n = Neg(x)  p = Transpose(n)  q = Transpose<perm = [2, 1, 0]>(p)  y = Exp(q) }""",
        "g (float[b, 3, s] x) => (float[b, 3, s] y) { n = Neg(x)  y = Exp(n) }",
        b=2,
        s=5,
    )


def test_cancelling_transposes_around_the_graph() -> None:
    """From input to output: the copy has to be there, so one of identity perm is left."""
    result = chains(
        typed(
            "g (float[2, 3] x) => (float[2, 3] y) { p = Transpose(x)  y = Transpose(p) }",
        )
    )
    check_same_results(
        typed("g (float[2, 3] x) => (float[2, 3] y) { y = Identity(x) }"), result.graph
    )
    assert len(result.graph.nodes) == 1


def test_transposes_of_unknown_rank() -> None:
    check_untouched(
        chains,
        """g (float[2, 3] x, int64[k] r) => (float y) {
            d = Reshape(x, r)  p = Transpose(d)  y = Transpose(p) }""",
    )


def test_moved_axis_of_size_one() -> None:
    check_rewrite(
        chains,
        "g (float[1, 5, 4] x) => (float[5, 1, 4] y) { y = Transpose<perm = [1, 0, 2]>(x) }",
        "g (float[1, 5, 4] x) => (float[5, 1, 4] y) <int64[3] r = {5, 1, 4}> { y = Reshape(x, r) }",
    )
    check_rewrite(
        chains,
        "g (float[1, b, 4] x) => (float[b, 1, 4] y) { y = Transpose<perm = [1, 0, 2]>(x) }",
        "g (float[1, b, 4] x) => (float[b, 1, 4] y) <int64[3] r = {-1, 1, 4}> {y = Reshape(x, r) }",
    )


def test_moved_axis_that_may_be_more() -> None:
    check_untouched(
        chains,
        "g (float[b, 5, 4] x) => (float[5, b, 4] y) { y = Transpose<perm = [1, 0, 2]>(x) }",
    )


def test_inside_a_body() -> None:
    text = """g (bool c, float[2, 3] a) => (float[2, 3] b) {{
        x = Neg(a)
        b = If(c) <
            then_branch = t () => (float[2, 3] p) {{ {} }},
            else_branch = e () => (float[2, 3] q) {{ q = Exp(x) }}
        > }}"""
    check_rewrite(
        chains,
        text.format("w = Transpose(x)  v = Transpose(w)  p = Sqrt(v)"),
        text.format("p = Sqrt(x)"),
    )


STEP = st.sampled_from(["reshape", "flatten", "unsqueeze", "squeeze", "transpose"])


@given(st.data())
def test_random_chains(data: st.DataObject) -> None:
    """Whatever the chain, the result is the same, and no two neighbours of a kind are left."""
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 1, 2, 3, 0]), min_size=1, max_size=4)))
    lines, constants, name, now = [], [], "x", shape
    for index in range(data.draw(st.integers(2, 5))):
        kind = data.draw(STEP)
        if kind == "squeeze" and 1 not in now:
            kind = "reshape"
        out, const = f"v{index}", f"c{index}"
        if kind == "transpose":
            perm = data.draw(st.permutations(range(len(now))))
            now = tuple(now[a] for a in perm)
            lines.append(f"{out} = Transpose<perm = {perm}>({name})")
        elif kind == "flatten":
            axis = data.draw(st.integers(0, len(now)))
            sizes = [int(np.prod(now[:axis])), int(np.prod(now[axis:]))]
            now = (sizes[0], sizes[1])
            lines.append(f"{out} = Flatten<axis = {axis}>({name})")
        else:
            values, now = draw_view(data, kind, now)
            content = "{" + ", ".join(map(str, values)) + "}"
            constants.append(f"int64[{len(values)}] {const} = {content}")
            op = {"reshape": "Reshape<allowzero = 1>", "unsqueeze": "Unsqueeze"}.get(
                kind, "Squeeze"
            )
            lines.append(f"{out} = {op}({name}, {const})")
        name = out
    text = (
        f"g (float{list(shape)} x) => (float{list(now)} y) <{', '.join(constants)}> {{"
        f"{'  '.join(lines)}  y = Neg({name}) }}"
    ).replace("<> ", "")
    graph = typed(text)
    changed = graph
    for _ in range(3):
        for change in (eliminate, chains):
            changed = infer(change(changed).graph).graph
            changed.check()
    feed = {"x": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)}
    (want,), (got,) = run(graph, feed), run(changed, feed)
    np.testing.assert_array_equal(got, want)
    kinds = ["t" if n.op_type == "Transpose" else "v" for n in changed.nodes[:-1]]
    assert "tt" not in "".join(kinds) and "vv" not in "".join(kinds)


def draw_view(
    data: st.DataObject, kind: str, now: tuple[int, ...]
) -> tuple[list[int], tuple[int, ...]]:
    """The constant of a Reshape, Squeeze or Unsqueeze, and the shape behind it."""
    if kind == "unsqueeze":
        axis = data.draw(st.integers(0, len(now)))
        return [axis], (*now[:axis], 1, *now[axis:])
    if kind == "squeeze":
        axis = data.draw(st.sampled_from([a for a, d in enumerate(now) if d == 1]))
        return [axis], (*now[:axis], *now[axis + 1 :])
    new = tuple(data.draw(st.permutations(now)))
    return list(new), new
