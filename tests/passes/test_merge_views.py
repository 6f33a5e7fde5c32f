"""Views around a Transpose that merge and split axes vanish in a Transpose of all axes."""

from __future__ import annotations

import pytest

from engine.dims import Dim, symbol
from engine.passes.chains import chains
from engine.passes.merge_views import merge_views, merged_axes
from tests.passes.graphs import check_rewrite, check_untouched

B, S = symbol("b"), symbol("s")


@pytest.mark.parametrize(
    ("start", "merged", "groups"),
    [
        ((2, 3, 5), (6, 5), [[0, 1], [2]]),
        ((B, 12, S, 4), (12 * B, S, 4), [[0, 1], [2], [3]]),
        ((B, S), (B, S), [[0], [1]]),
        ((2, 3), (3, 2), None),
        ((B, 12, S), (B, S * 12), [[0], [1, 2]]),
        ((B, S), (S, B), None),
        ((2, 3, 1), (2, 3), [[0], [1, 2]]),
        ((2, 1, 3), (2, 3), [[0], [1, 2]]),
        ((2, 3), (2, 1, 3), [[0], [], [1]]),
        ((1,), (), None),
        ((6,), (2, 3), None),
    ],
)
def test_merged_axes(
    start: tuple[Dim, ...], merged: tuple[Dim, ...], groups: list[list[int]] | None
) -> None:
    assert merged_axes(start, merged) == groups


def test_keys_of_attention() -> None:
    result = check_rewrite(
        merge_views,
        """g (float[b, 12, s, 4] x) => (float[b, 12, 4, s] y)
            <int64[1] m = {-1}, int64[1] h = {12}, int64[1] d = {4}> {
            n = Shape<start = 2, end = 3>(x)  k = Shape<start = 0, end = 1>(x)
            u = Concat<axis = 0>(m, n, d)  v = Concat<axis = 0>(k, h, d, n)
            p = Reshape(x, u)  t = Transpose<perm = [0, 2, 1]>(p)  y = Reshape(t, v) }""",
        "g (float[b, 12, s, 4] x) => (float[b, 12, 4, s] y) {"
        "y = Transpose<perm = [0, 1, 3, 2]>(x) }",
        b=2,
        s=5,
    )
    (node,) = result.graph.nodes
    assert node.origin == ("Reshape(p)", "Transpose(t)", "Reshape(y)")


def test_groups_move() -> None:
    check_rewrite(
        merge_views,
        """g (float[2, 3, 4, 5] x) => (float[4, 5, 2, 3] y)
            <int64[2] u = {6, 20}, int64[4] v = {4, 5, 2, 3}> {
            p = Reshape(x, u)  t = Transpose(p)  y = Reshape(t, v) }""",
        "g (float[2, 3, 4, 5] x) => (float[4, 5, 2, 3] y) {y = Transpose<perm = [2, 3, 0, 1]>(x) }",
    )


def test_split_into_other_axes() -> None:
    """[4, 5] comes back as [5, 4], which no order of the axes gives."""
    check_untouched(
        merge_views,
        """g (float[2, 3, 4, 5] x) => (float[5, 4, 2, 3] y)
            <int64[2] u = {6, 20}, int64[4] v = {5, 4, 2, 3}> {
            p = Reshape(x, u)  t = Transpose(p)  y = Reshape(t, v) }""",
    )


def test_first_view_splits() -> None:
    check_untouched(
        merge_views,
        """g (float[6, 4] x) => (float[12, 2] y)
            <int64[3] u = {2, 3, 4}, int64[2] v = {12, 2}> {
            p = Reshape(x, u)  t = Transpose<perm = [1, 2, 0]>(p)  y = Reshape(t, v) }""",
    )


def test_transposed_value_is_read_elsewhere() -> None:
    check_untouched(
        merge_views,
        """g (float[2, 3, 4, 5] x) => (float[4, 5, 2, 3] y, float[20, 6] z)
            <int64[2] u = {6, 20}, int64[4] v = {4, 5, 2, 3}> {
            p = Reshape(x, u)  t = Transpose(p)  y = Reshape(t, v)  z = Neg(t) }""",
        reason="'t' is needed as it is: Neg 'z' reads it too",
    )


def test_a_view_between_two_transposes_goes_behind_them() -> None:
    """As in a recurrence of both directions whose batch comes first."""
    before = """g (float[s, 2, b, 4] x) => (float[b, s, 8] y) <int64[3] v = {{0, 0, -1}}> {{
        t = Transpose<perm = [0, 2, 1, 3]>(x)  r = Reshape(t, v)  {} }}"""
    check_rewrite(
        lambda g: chains(merge_views(g).graph),
        before.format("y = Transpose<perm = [1, 0, 2]>(r)"),
        """g (float[s, 2, b, 4] x) => (float[b, s, 8] y) <int64[3] v = {0, 0, 8}> {
            t = Transpose<perm = [2, 0, 1, 3]>(x)  y = Reshape(t, v) }""",
        b=2,
        s=5,
    )
    needed = before.format("y = Transpose<perm = [1, 0, 2]>(r)  z = Neg(r)")
    check_untouched(merge_views, needed.replace("y)", "y, float[s, b, 8] z)", 1))


@pytest.mark.parametrize("middle", ["6, 4, 5", "2, 12, 5"])
def test_a_view_between_two_transposes_may_only_merge(middle: str) -> None:
    text = f"""g (float[3, 2, 20] x) => (float[5, {middle[:-3]}] y) <int64[3] v = {{{middle}}}> {{
        t = Transpose<perm = [1, 0, 2]>(x)  r = Reshape(t, v)
        y = Transpose<perm = [2, 0, 1]>(r) }}"""
    check_untouched(merge_views, text)
