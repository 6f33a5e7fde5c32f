"""Products with one-hot rows become Gather."""

from __future__ import annotations

import numpy as np
import pytest

from engine.ir import Graph
from engine.passes.base import PassResult
from engine.passes.eliminate import eliminate
from engine.passes.look_up import look_up
from tests.passes.graphs import check_rewrite, check_untouched, random_weights


def looked_up(graph: Graph) -> PassResult:
    """The pass, and what it left over taken out."""
    result = look_up(graph)
    kept = eliminate(result.graph).graph if result.applied else result.graph
    return PassResult(kept, result.applied, result.near_misses)


ONE_HOT = """g (int32[b, 7, 1] x, float[3, 4] w) => (float[b, 7, 4] y)
    <int32[1, 3] n = {-1, 0, 1}> {
    e = Equal(x, n)  h = Cast<to = 1>(e)  y = MatMul(h, w) }"""


@pytest.mark.parametrize("operands", ["x, n", "n, x"])
def test_ids_compared_with_all_numbers(operands: str) -> None:
    """Drawn ids are from about -9 to 9: most are none of the numbers."""
    weights = random_weights(w=(3, 4))
    check_rewrite(
        looked_up,
        ONE_HOT.replace("x, n", operands),
        """g (int32[b, 7, 1] x, float[5, 4] w) => (float[b, 7, 4] y)
            <int64[1] a = {-1}, int32 l = {-2}, int32 u = {2}> {
            s = Squeeze(x, a)  c = Clip(s, l, u)  i = Sub(c, l)  y = Gather<axis = 0>(w, i) }""",
        weights,
        {"w": np.pad(weights["w"], ((1, 1), (0, 0)))},
        rtol=0,
        b=2,
    )


def test_what_is_no_table() -> None:
    weights = random_weights(w=(3, 4))
    for old, new in (("{-1, 0, 1}", "{0, 2, 1}"), ("Cast<to = 1>(e)", "Cast<to = 1>(z)")):
        text = ONE_HOT.replace(old, new).replace("h =", "z = Not(e)  h =")
        check_untouched(look_up, text, weights)
    many = ONE_HOT.replace("int32[b, 7, 1]", "int32[b, 7, 3]")
    check_untouched(look_up, many, weights)


def test_weights_that_zeros_do_not_cancel() -> None:
    weights = random_weights(w=(3, 4))
    weights["w"][1, 2] = np.inf
    check_untouched(look_up, ONE_HOT, weights, "0 times an infinite weight")


def test_the_last_number_of_a_type() -> None:
    lowest = ONE_HOT.replace("{-1, 0, 1}", "{-2147483648, -2147483647, -2147483646}")
    check_untouched(look_up, lowest, random_weights(w=(3, 4)), "int32 has no numbers beyond")


def test_a_table_without_rows() -> None:
    text = ONE_HOT.replace("int32[1, 3] n = {-1, 0, 1}", "int32[1, 0] n = {}")
    check_untouched(look_up, text.replace("float[3, 4]", "float[0, 4]"), random_weights(w=(0, 4)))
