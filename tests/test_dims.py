"""Dims: canonical forms, and agreement with plain integers under random bindings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import dims
from engine.dims import Dim, Table, symbol

H, W, N = symbol("h"), symbol("w"), symbol("n")

Compute = Callable[[dict[str, int]], int]
Pair = tuple[Dim, Compute]


def _leaves() -> st.SearchStrategy[Pair]:
    number = st.integers(-9, 9).map(lambda k: (k, lambda b, k=k: k))
    name = st.sampled_from("hwn").map(lambda s: (symbol(s), lambda b, s=s: b[s]))
    return number | name


def _grow(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    def both(op: str) -> Callable[[tuple[Pair, Pair]], Pair]:
        symbolic, plain = OPERATIONS[op]
        return lambda p: (
            symbolic(p[0][0], p[1][0]),
            lambda b: plain(p[0][1](b), p[1][1](b)),
        )

    def by_number(op: str) -> Callable[[tuple[Pair, int]], Pair]:
        symbolic, plain = DIVISIONS[op]
        return lambda p: (symbolic(p[0][0], p[1]), lambda b: plain(p[0][1](b), p[1]))

    pairs = [st.tuples(inner, inner).map(both(op)) for op in OPERATIONS]
    divided = [st.tuples(inner, st.integers(1, 7)).map(by_number(op)) for op in DIVISIONS]
    return st.one_of(*pairs, *divided)


OPERATIONS: dict[str, tuple[Callable[[Dim, Dim], Dim], Callable[[int, int], int]]] = {
    "+": (lambda a, b: a + b, lambda a, b: a + b),
    "-": (lambda a, b: a - b, lambda a, b: a - b),
    "*": (lambda a, b: a * b, lambda a, b: a * b),
    "min": (dims.dmin, min),
    "max": (dims.dmax, max),
    "eq": (dims.is_equal, lambda a, b: int(a == b)),
}
DIVISIONS: dict[str, tuple[Callable[[Dim, Dim], Dim], Callable[[int, int], int]]] = {
    "//": (dims.floordiv, lambda a, b: a // b),
    "ceil": (dims.ceildiv, lambda a, b: -(-a // b)),
    "%": (dims.mod, lambda a, b: a % b),
}
EXPRESSIONS = st.recursive(_leaves(), _grow, max_leaves=10)
BINDINGS = st.fixed_dictionaries({s: st.integers(0, 50) for s in "hwn"})


@given(EXPRESSIONS, BINDINGS)
def test_expressions_agree_with_integers(pair: Pair, binding: dict[str, int]) -> None:
    dim, compute = pair
    expected = compute(binding)
    assert dims.evaluate(dim, binding) == expected
    assert dims.substitute(dim, binding) == expected
    assert dims.from_postfix(dims.to_postfix(dim)) == dim
    low, high = dims.bounds(dim)
    assert low is None or low <= expected
    assert high is None or expected <= high


@given(EXPRESSIONS, EXPRESSIONS, BINDINGS)
def test_partial_substitution_keeps_the_value(p: Pair, q: Pair, binding: dict[str, int]) -> None:
    # a symbol stands for a size, so what takes its place is one
    size = dims.dmax(q[0], 0)
    wanted = dims.evaluate(p[0], {**binding, "h": dims.evaluate(size, binding)})
    assert dims.evaluate(dims.substitute(p[0], {"h": size}), binding) == wanted


@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS)
def test_polynomial_identities(a: Pair, b: Pair, c: Pair) -> None:
    x, y, z = a[0], b[0], c[0]
    assert x + y == y + x
    assert x * (y + z) == x * y + x * z
    assert (x + y) - y == x
    assert hash(x * y) == hash(y * x)


def test_canonical_forms() -> None:
    assert 2 * H * W - W * H == H * W
    assert H - H == 0
    assert dims.floordiv(6 * H * W, 3 * H) == 2 * W
    assert dims.floordiv(H * H + H * W, H + W) == H
    assert dims.floordiv(4 * H + 2, 4) == H
    assert dims.floordiv(4 * H + 5, 4) == H + 1
    assert dims.floordiv(dims.floordiv(H, 2), 3) == dims.floordiv(H, 6)
    assert dims.mod(6 * H, 3) == 0
    assert dims.mod(6 * H + 4, 3) == 1
    assert dims.dmax(H, 0) == H
    assert dims.dmin(H + 1, H) == H
    assert dims.is_equal(H, H + 1) == 0
    assert dims.product([H, 2, W]) == 2 * H * W
    assert dims.is_static((1, 2)) and not dims.is_static((1, H))
    assert str(2 * H * W - H + 1) == "2*h*w - h + 1"


def test_broadcast() -> None:
    assert dims.broadcast(1, H) == dims.broadcast(H, 1) == H
    assert dims.broadcast(7, H) == 7
    assert dims.broadcast(H, H) == H
    assert dims.broadcast(H, W + 2) == W + 2
    open_one = dims.broadcast(H, W)
    assert dims.broadcast(W, H) == open_one
    for h, w, both in ((1, 5, 5), (5, 1, 5), (4, 4, 4), (1, 1, 1), (1, 0, 0), (0, 1, 0)):
        assert dims.evaluate(open_one, {"h": h, "w": w}) == both
    with pytest.raises(ValueError, match="2 and 3"):
        dims.broadcast(2, 3)


def test_table_evaluates_together() -> None:
    shared = dims.floordiv(H + 3, 4)
    table = Table((shared * W, 7, shared + 1))
    assert table.symbols == ("h", "w")
    assert table.evaluate({"h": 10, "w": 2}) == (6, 7, 4)
    assert Table(()).evaluate({}) == ()
    with pytest.raises(KeyError):
        table.evaluate({"h": 10})


def test_symbols_of() -> None:
    assert dims.symbols_of(dims.floordiv(H * W, dims.dmax(N, 2))) == {"h", "w", "n"}
    assert dims.symbols_of(3) == frozenset()


@pytest.mark.parametrize(
    ("guard", "true", "false"),
    [
        (dims.equal(H, 3), {"h": 3}, {"h": 4}),
        (dims.at_least(H, W), {"h": 3, "w": 3}, {"h": 2, "w": 3}),
        (dims.divisible(H, 4), {"h": 8}, {"h": 6}),
    ],
)
def test_guards(guard: dims.Guard, true: dict[str, int], false: dict[str, int]) -> None:
    assert guard.holds(true) and not guard.holds(false)
    assert guard.known is None
    assert str(guard)


def test_guards_that_are_decided() -> None:
    assert dims.at_least(H + 1, 1).known is True
    assert dims.at_least(-1 * H, 1).known is False
    assert dims.equal(H, H).known is True
    assert dims.equal(H + 1, 0).known is False
    assert dims.divisible(4 * H, 2).known is True


def test_evaluate_agrees_with_tables_and_names_what_is_unbound() -> None:
    binding = {"n": 7, "h": 3}
    for dim in (N, N * H, 3 * N * N - H + 2, N // 2 + H, (N + 1) % H * N, N - 7):
        assert dims.evaluate(dim, binding) == Table((dim,)).evaluate(binding)[0]
    with pytest.raises(KeyError, match="h"):
        dims.evaluate(N * H, {"n": 1})
