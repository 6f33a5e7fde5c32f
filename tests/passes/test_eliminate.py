"""Nodes that do nothing go; nodes that only seem to do nothing stay."""

from __future__ import annotations

import numpy as np
import pytest

from engine.passes.eliminate import eliminate
from tests.passes.graphs import (
    check_rewrite,
    check_same_results,
    check_untouched,
    parse,
    run,
    typed,
)

COPIES = {
    "identity": "y = Identity(x)",
    "dropout": "y = Dropout(x)",
    "cast": "y = Cast<to = 1>(x)",
    "cast round trip": "w = Cast<to = 11>(x) \n y = Cast<to = 1>(w)",
    "reshape": "s = Constant<value_ints = [2, 3]>() \n y = Reshape(x, s)",
    "expand": "s = Constant<value_ints = [1, 3]>() \n y = Expand(x, s)",
    "flatten": "y = Flatten<axis = 1>(x)",
    "tile": "s = Constant<value_ints = [1, 1]>() \n y = Tile(x, s)",
    "transpose": "y = Transpose<perm = [0, 1]>(x)",
    "squeeze": "y = Squeeze(x)",
    "pad": 's = Constant<value_ints = [0, 0, 0, 0]>() \n y = Pad<mode = "reflect">(x, s)',
    "slice": (
        "f = Constant<value_ints = [0]>() \n e = Constant<value_ints = [9]>() \n y = Slice(x, f, e)"
    ),
    "concat": "y = Concat<axis = 0>(x)",
    "max": "y = Max(x)",
    "mul by 1": "c = Constant<value_float = 1.0>() \n y = Mul(c, x)",
    "div by 1": "c = Constant<value_floats = [1.0, 1.0, 1.0]>() \n y = Div(x, c)",
    "pow 1": "c = Constant<value_float = 1.0>() \n y = Pow(x, c)",
    "add -0": "c = Constant<value_float = -0.0>() \n y = Add(x, c)",
    "sub 0": "c = Constant<value_float = 0.0>() \n y = Sub(x, c)",
}


def surrounded(body: str) -> str:
    """`body` makes y from x, between two operators."""
    return f"g (float[2, 3] a) => (float[2, 3] b) {{ x = Neg(a) \n {body} \n b = Exp(y) }}"


@pytest.mark.parametrize("body", COPIES.values(), ids=COPIES)
def test_copy_is_removed(body: str) -> None:
    after = "g (float[2, 3] a) => (float[2, 3] b) { x = Neg(a) \n b = Exp(x) }"
    result = check_rewrite(eliminate, surrounded(body), after)
    assert any("copies 'x'" in line for line in result.applied)


KEPT = {
    "add +0": "c = Constant<value_float = 0.0>() \n y = Add(x, c)",
    "sub -0": "c = Constant<value_float = -0.0>() \n y = Sub(x, c)",
    "reversed div": "c = Constant<value_float = 1.0>() \n y = Div(c, x)",
    "reversed sub": "c = Constant<value_float = 0.0>() \n y = Sub(c, x)",
    "narrowing round trip": "w = Cast<to = 10>(x) \n y = Cast<to = 1>(w)",
    "transpose": "t = Transpose(x) \n s = Constant<value_ints = [2, 3]>() \n y = Reshape(t, s)",
    "pad": "s = Constant<value_ints = [1, 0, -1, 0]>() \n y = Pad(x, s)",
    "reversing slice": (
        "f = Constant<value_ints = [-1]>() \n e = Constant<value_ints = [-9]>() \n"
        "i = Constant<value_ints = [0]>() \n y = Slice(x, f, e, i, f)"
    ),
    "mul by 1 and 2": "c = Constant<value_floats = [1.0, 1.0, 2.0]>() \n y = Mul(x, c)",
    "training dropout": (
        "r = Constant<value_float = 0.5>() \n t = Cast<to = 9>(r) \n y = Dropout<seed = 1>(x, r, t)"
    ),
    "clip": "c = Constant<value_float = 0.0>() \n y = Clip(x, c)",
    "clip infinities": "y = Clip(x)",
}


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_other_node_stays(body: str) -> None:
    check_untouched(eliminate, surrounded(body))


def test_clip_of_integers() -> None:
    check_rewrite(
        eliminate,
        "g (int32[2] a) => (int32[2] b) { x = Neg(a)  y = Clip(x)  b = Abs(y) }",
        "g (int32[2] a) => (int32[2] b) { x = Neg(a)  b = Abs(x) }",
    )


def test_negative_zero_is_why_adding_zero_stays() -> None:
    text = surrounded(KEPT["add +0"]).replace("Exp", "Reciprocal")
    graph = eliminate(typed(text)).graph
    feed = {"a": np.zeros((2, 3), np.float32)}
    assert (run(graph, feed)[0] == np.inf).all()


def test_growing_constant_stays() -> None:
    """Ones of a larger shape broadcast x."""
    check_untouched(
        eliminate,
        """g (float[3] a) => (float[1, 3] b) <float[1, 3] c = {1, 1, 1}> {
            x = Neg(a)  b = Mul(x, c) }""",
    )


def test_unknown_size_stays() -> None:
    """n may be 1, and then the three ones broadcast it."""
    check_untouched(
        eliminate,
        """g (float[n] a) => (float[m] b) <float[3] c = {1, 1, 1}> { x = Neg(a)  b = Mul(x, c) }""",
    )


def test_input_with_default() -> None:
    """Counts as constant: a call that feeds it has a graph without the constant."""
    text = (
        "g (float[3] a, float[3] c{}) => (float[3] b) {{ x = Neg(a)  y = Mul(x, c)  b = Exp(y) }}"
    )
    result = eliminate(typed(text.format(" = {1, 1, 1}")))
    assert [n.op_type for n in result.graph.nodes] == ["Neg", "Exp"]
    assert result.graph.inputs == ("a", "c")
    assert not eliminate(result.graph).applied
    check_untouched(eliminate, text.format(""))


def test_symbolic_shape() -> None:
    check_rewrite(
        eliminate,
        """g (float[n, 3] a) => (float[n, 3] b) <float o = {1}> {
            x = Neg(a)  y = Mul(x, o)  z = Flatten(y)  b = Exp(z) }""",
        "g (float[n, 3] a) => (float[n, 3] b) { x = Neg(a)  b = Exp(x) }",
    )


def test_output_keeps_its_name() -> None:
    result = check_rewrite(
        eliminate,
        "g (float[2] a) => (float[2] b) { x = Neg(a)  b = Identity(x) }",
        "g (float[2] a) => (float[2] b) { b = Neg(a) }",
    )
    assert result.graph.nodes[0].outputs == ("b",)


def test_input_as_output_needs_its_copy() -> None:
    check_untouched(eliminate, "g (float[2] a) => (float[2] b) { b = Identity(a) }")


def test_two_outputs_of_one_value() -> None:
    check_rewrite(
        eliminate,
        """g (float[2] a) => (float[2] b, float[2] c) {
            x = Neg(a)  b = Identity(x)  c = Identity(x) }""",
        "g (float[2] a) => (float[2] b, float[2] c) { b = Neg(a)  c = Identity(b) }",
    )


def test_dead_nodes_and_constants() -> None:
    result = check_rewrite(
        eliminate,
        """g (float[2] a) => (float[2] b) <float[2] w = {1, 2}> {
            b = Neg(a)  p = Mul(a, w)  q = Exp(p) }""",
        "g (float[2] a) => (float[2] b) { b = Neg(a) }",
    )
    assert set(result.graph.values) == {"a", "b"}


def test_unread_constant() -> None:
    text = "g (float[2] a) => (float[2] b) <float[2] w = {1, 2}> { b = Neg(a) }"
    result = eliminate(parse(text))
    assert set(result.graph.values) == {"a", "b"}
    assert result.applied == ("constants removed, nothing reads them: 'w'",)
    assert eliminate(result.graph).graph is result.graph


def test_unread_optional_outputs() -> None:
    result = check_rewrite(
        eliminate,
        """g (float[1, 2, 4] a) => (float[1, 2, 3] y) {
            y, i = MaxPool<kernel_shape = [2]>(a)  d = Neg(i) }""",
        "g (float[1, 2, 4] a) => (float[1, 2, 3] y) { y = MaxPool<kernel_shape = [2]>(a) }",
    )
    assert result.graph.nodes[0].outputs == ("y",)


def test_lstm_first_output() -> None:
    text = """g (float[5, 2, 3] a, float[1, 16, 3] w, float[1, 16, 4] r) => (float[1, 2, 4] h) {
        y, h, c = LSTM<hidden_size = 4>(a, w, r)  d = Neg(y)  e = Neg(c) }"""
    result = eliminate(typed(text))
    assert result.graph.nodes[0].outputs == ("", "h")


STATES = """g (float[5, b, 3] a, float[1, 16, 3] w, float[1, 16, 4] r) => (float[5, 1, b, 4] y) {{
    n = Shape<start = 1, end = 2>(a)  one = Constant<value_ints = [1]>()
    four = Constant<value_ints = [4]>()  s = Concat<axis = 0>(one, n, four)
    {} }}"""


@pytest.mark.parametrize(
    "made",
    [
        "z = ConstantOfShape(s)",
        "z = ConstantOfShape<value = float[1] {0}>(s)",
        "k = ConstantOfShape(four)  z = Expand(k, s)",
    ],
)
def test_initial_states_of_zeros(made: str) -> None:
    text = STATES.format(f"{made}  y = LSTM<hidden_size = 4>(a, w, r, , , z, z)")
    result = eliminate(typed(text))
    (node,) = (n for n in result.graph.nodes if n.op_type == "LSTM")
    assert len(result.graph.nodes) == 1 and node.inputs == ("a", "w", "r")
    assert any("left out, as it is zeros" in line for line in result.applied)
    check_same_results(typed(text), result.graph, b=2)


def test_one_initial_state_of_zeros() -> None:
    text = STATES.format(
        "z = ConstantOfShape(s)  o = ConstantOfShape<value = float[1] {1}>(s)  "
        "y = LSTM<hidden_size = 4>(a, w, r, , , z, o)"
    )
    result = eliminate(typed(text))
    (node,) = (n for n in result.graph.nodes if n.op_type == "LSTM")
    assert node.inputs == ("a", "w", "r", "", "", "", "o")
    check_same_results(typed(text), result.graph, b=2)


IF = """g (bool c, float[2] a) => (float[2] b) {{
    x = Neg(a)
    {before}
    b = If(c) <
        then_branch = t () => (float[2] p) {{ {inside} }},
        else_branch = e () => (float[2] q) {{ q = Exp(x) }}
    > }}"""


def test_body_reads_what_was_copied() -> None:
    check_rewrite(
        eliminate,
        IF.format(before="w = Identity(x)", inside="p = Sqrt(w)"),
        IF.format(before="", inside="p = Sqrt(x)"),
    )


def test_inside_a_body() -> None:
    result = check_rewrite(
        eliminate,
        IF.format(before="", inside="w = Identity(x)  v = Dropout(w)  p = Sqrt(v)"),
        IF.format(before="", inside="p = Sqrt(x)"),
    )
    assert any("then_branch" in line for line in result.applied)


def test_captures_shrink() -> None:
    """What only a dead node of a body captured is dead outside too."""
    result = check_rewrite(
        eliminate,
        IF.format(before="w = Cos(a)", inside="p = Sqrt(x)  v = Sin(w)"),
        IF.format(before="", inside="p = Sqrt(x)"),
    )
    (node,) = (n for n in result.graph.nodes if n.op_type == "If")
    assert node.captures == ("x",)


def test_body_can_not_return_a_captured_value() -> None:
    check_untouched(eliminate, IF.format(before="", inside="p = Identity(x)"))
