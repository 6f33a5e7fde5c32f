"""What joins a value and its own ends becomes a Pad that wraps around."""

from __future__ import annotations

import pytest

from engine.passes.eliminate import eliminate
from engine.passes.wrap_ends import wrap_ends
from tests.passes.graphs import check_rewrite, check_untouched

HEAD = """g (float[b, 3, 8, 9] x) => (float[{}] y)
    <int64[1] a = {{3}}, int64[1] h = {{2}}, int64[1] last2 = {{-2}}, int64[1] last1 = {{-1}},
     int64[1] far = {{9223372036854775807}}, int64[1] zero = {{0}}, int64[1] one = {{1}},
     int64[1] two = {{2}}, int64[1] three = {{3}}> {{ {} }}"""
LAST, FIRST = "l = Slice(x, last2, far, a)", "f = Slice(x, zero, three, a)"


@pytest.mark.parametrize(
    ("shape", "body", "pads"),
    [
        ("b, 3, 8, 14", f"{LAST} {FIRST} y = Concat<axis = 3>(l, x, f)", (2, 3)),
        ("b, 3, 8, 11", f"{LAST} y = Concat<axis = -1>(l, x)", (2, 0)),
        ("b, 3, 8, 12", f"{FIRST} y = Concat<axis = 3>(x, f)", (0, 3)),
    ],
)
def test_ends(shape: str, body: str, pads: tuple[int, int]) -> None:
    check_rewrite(
        lambda g: eliminate(wrap_ends(g).graph),
        HEAD.format(shape, body),
        f"""g (float[b, 3, 8, 9] x) => (float[{shape}] y)
            <int64[8] p = {{0, 0, 0, {pads[0]}, 0, 0, 0, {pads[1]}}}> {{
            y = Pad<mode = "wrap">(x, p) }}""",
        b=2,
    )


def test_two_axes() -> None:
    body = f"""{LAST} {FIRST} w = Concat<axis = 3>(l, x, f)
        t = Slice(w, last1, far, h)  y = Concat<axis = 2>(t, w)"""
    check_rewrite(
        lambda g: eliminate(wrap_ends(eliminate(wrap_ends(g).graph).graph).graph),
        HEAD.format("b, 3, 9, 14", body),
        """g (float[b, 3, 8, 9] x) => (float[b, 3, 9, 14] y)
            <int64[8] p = {0, 0, 1, 2, 0, 0, 0, 3}> { y = Pad<mode = "wrap">(x, p) }""",
        b=2,
    )


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        ("b, 3, 8, 14", f"{LAST} {FIRST} y = Concat<axis = 3>(f, x, l)"),
        ("b, 3, 8, 13", f"{LAST} y = Concat<axis = 3>(l, x, l)"),
        ("b, 3, 8, 12", "f = Slice(x, one, far, a)  f2 = Slice(f, zero, three, a)  "
         "y = Concat<axis = 3>(x, f2)"),
        ("b, 3, 10, 9", "l = Slice(x, last2, far, h)  y = Concat<axis = 2>(x, l)"),
        ("b, 3, 8, 18", "y = Concat<axis = 3>(x, x)"),
        ("b, 3, 8, 23", f"{LAST} {FIRST} y = Concat<axis = 3>(l, x, x, f)"),
        ("b, 3, 8, 11", f"{LAST} n = Neg(x)  y = Concat<axis = 3>(l, n)"),
    ],
)  # fmt: skip
def test_what_is_no_end_stays(shape: str, body: str) -> None:
    check_untouched(wrap_ends, HEAD.format(shape, body))
