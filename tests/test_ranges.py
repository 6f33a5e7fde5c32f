"""Intervals hold what NumPy computes, and say in words where 32 bits are not proven."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import dims
from engine.ops import object_array
from engine.ranges import CHECKED, MAX_SIZE, Ranges, ranges
from tests.small_graphs import Builder

N = dims.symbol("n")
INT32 = (-(2**31), 2**31 - 1)
SMALL = st.integers(-12, 12)
LISTS = st.lists(st.integers(-(2**63), 2**63 - 1) | SMALL, min_size=1, max_size=4)


def one_node(op_type: str, *inputs: object, shape: tuple[dims.Dim, ...] = (4,), **attrs: object):
    """The ranges of a graph of one node over int64 constants; its output is `y`."""
    b = Builder()
    names = [b.constant(f"c{i}", value) for i, value in enumerate(inputs)]
    b.node(op_type, names, "y", shape, "int64", **attrs)
    return ranges(b.graph("y"))


def covers(interval: tuple[int | None, int | None], array: np.ndarray) -> bool:
    lo, hi = interval
    return all((lo is None or lo <= x) and (hi is None or x <= hi) for x in array.reshape(-1))


BINARY = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Min": np.minimum,
    "Max": np.maximum,
    "Mod": np.mod,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
}
UNARY = {
    "Neg": np.negative,
    "Abs": np.abs,
    "Sign": np.sign,
    "BitwiseNot": np.invert,
    "ReduceSum": lambda x: np.sum(x),
    "ReduceMax": lambda x: np.max(x),
    "ReduceMin": lambda x: np.min(x),
    "ReduceL1": lambda x: np.sum(np.abs(x)),
    "ReduceSumSquare": lambda x: np.sum(x * x),
    "CumSum": lambda x: np.cumsum(x),
    "Identity": lambda x: x,
    "Trilu": lambda x: np.tril(np.stack([x, x])),
}


@pytest.mark.parametrize("op_type", BINARY)
@given(a=LISTS, b=LISTS)
def test_binary_intervals_cover_numpy(op_type: str, a: list[int], b: list[int]) -> None:
    x, y = np.array(a, np.int64)[:, None], np.array(b, np.int64)[None]
    with np.errstate(all="ignore"):
        result = BINARY[op_type](x, y)
    assert covers(one_node(op_type, x, y)["y"], result)


@pytest.mark.parametrize("op_type", UNARY)
@given(a=LISTS)
def test_unary_intervals_cover_numpy(op_type: str, a: list[int]) -> None:
    x = np.array(a, np.int64)
    with np.errstate(all="ignore"):
        result = UNARY[op_type](x)
    assert covers(one_node(op_type, x)["y"], result)


@given(a=LISTS, b=LISTS)
def test_division_covers_both_roundings(a: list[int], b: list[int]) -> None:
    interval = one_node("Div", a, b)["y"]
    for x in a:
        for y in b:
            if y == 0:
                assert covers(interval, np.array([x, 0], object))
            elif (x, y) != (-(2**63), -1):
                towards_zero = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
                assert covers(interval, np.array([x // y, towards_zero], object))


@given(a=LISTS, b=LISTS)
def test_fmod_covers_numpy(a: list[int], b: list[int]) -> None:
    x, y = np.array(a, np.int64)[:, None], np.array(b, np.int64)[None]
    with np.errstate(all="ignore"):
        result = np.fmod(x, y)
    assert covers(one_node("Mod", x, y, fmod=1)["y"], result)


@given(x=st.lists(SMALL, min_size=1, max_size=5), lo=SMALL, hi=SMALL)
def test_clip_is_tight_and_right(x: list[int], lo: int, hi: int) -> None:
    interval = one_node("Clip", x, lo, hi)["y"]
    result = np.minimum(np.maximum(x, lo), hi)
    assert covers(interval, result)
    assert interval[1] <= hi and (hi < lo or interval[0] >= lo)


def test_wrapping_arithmetic_gives_up_the_interval() -> None:
    found = one_node("Add", [2**63 - 1], [1])
    assert found["y"] == (None, None)
    assert not found.fits_int32("y").ok


def test_int32_arithmetic_stays_in_its_type() -> None:
    b = Builder()
    b.input("x", (N,), "int32")
    b.node("Mul", ("x", "x"), "y", (N,), "int32")
    b.node("Cast", ("y",), "z", (N,), "int64")
    found = ranges(b.graph("z"))
    assert found["z"] == INT32
    assert found.fits_int32("z").how == "proven"
    assert found.assumes("z") == frozenset()


def ids_graph() -> Ranges:
    b = Builder()
    b.input("ids", (1, N), "int64")
    b.constant("one", 1)
    b.constant("axes", [0])
    b.node("Unsqueeze", ("ids", "axes"), "view", (1, 1, N), "int64")
    b.node("Add", ("ids", "one"), "next", (1, N), "int64")
    b.node("Equal", ("ids", "one"), "mask", (1, N), "bool")
    b.node("Cast", ("mask",), "flags", (1, N), "int64")
    b.node("CumSum", ("flags", "one"), "positions", (1, N), "int64")
    b.node("Mul", ("ids", "next"), "product", (1, N), "int64")
    b.node("Clip", ("product", "one", "one"), "clipped", (1, N), "int64")
    return ranges(b.graph("view", "positions", "clipped"))


def test_inputs_are_checked_and_what_follows_is_proven_or_refused() -> None:
    found = ids_graph()
    assert found.fits_int32("ids").how == "input (checked)"
    assert found.fits_int32("ids").inputs == {"ids"}
    assert found.fits_int32("view").how == "proven"
    assert found.fits_int32("view").inputs == {"ids"}
    assert found.fits_int32("next").how == "proven"
    refused = found.fits_int32("product")
    assert not refused.ok
    assert refused.how.startswith("int64 value could exceed the int32 range: 'product'")
    assert str(2**56 + 2**28) in refused.how


def test_inputs_are_checked_for_what_follows_through_other_types() -> None:
    b = Builder()
    b.input("ids", (3,), "int64")
    b.constant("seven", 7)
    b.node("Cast", ("ids",), "short", (3,), "int32")
    b.node("Cast", ("short",), "long", (3,), "int64")
    b.node("Mul", ("long", "seven"), "y", (3,), "int64")
    fit = ranges(b.graph("y")).fits_int32("y")
    assert fit.ok and fit.inputs == {"ids"}


def test_inputs_on_the_device_may_be_any_of_32_bits() -> None:
    b = Builder()
    b.input("ids", (3,), "int64")
    b.constant("one", 1)
    b.node("Add", ("ids", "one"), "next", (3,), "int64")
    graph = b.graph("next")
    assert ranges(graph)["next"] == (CHECKED[0] + 1, CHECKED[1] + 1)
    found = ranges(graph, held={"ids"})
    assert found.fits_int32("ids").ok
    assert not found.fits_int32("next").ok


def test_a_value_less_itself_is_zero() -> None:
    b = Builder()
    b.input("x", (3,), "int64")
    b.node("Sub", ("x", "x"), "zero", (3,), "int64")
    assert ranges(b.graph("zero"), checked=())["zero"] == (0, 0)


def test_what_was_refused_fits_once_clipped() -> None:
    found = ids_graph()
    assert found.fits_int32("clipped").ok


def test_sums_over_a_symbol_need_a_guard() -> None:
    fit = ids_graph().fits_int32("positions")
    assert fit.ok
    assert fit.inputs == frozenset(), "a comparison's result fits whatever was compared"
    assert [g.holds({"n": size}) for g in fit.guards for size in (MAX_SIZE, MAX_SIZE + 1)] == [
        True,
        False,
    ]


def test_unchecked_inputs_prove_nothing() -> None:
    b = Builder()
    b.input("a", (3,), "int64")
    b.input("b", (3,), "int64")
    b.node("Min", ("a", "b"), "y", (3,), "int64")
    graph = b.graph("y")
    assert ranges(graph).fits_int32("y").inputs == {"a", "b"}
    found = ranges(graph, checked={"a"})
    assert found.fits_int32("a").ok
    assert not found.fits_int32("b").ok
    assert not found.fits_int32("y").ok


def test_sizes_and_indices() -> None:
    b = Builder()
    b.input("x", (5, N, 7))
    b.node("Shape", ("x",), "shape", (3,), "int64", dims=object_array([5, N * 2 + 2, 7]))
    b.node("ArgMax", ("x",), "best", (1, N, 7), "int64", axis=0)
    b.node("ArgMin", ("x",), "last", (5, N, 1), "int64", axis=-1)
    b.node("Size", ("x",), "size", (), "int64")
    b.constant("k", [2])
    b.multi("TopK", ("x", "k"), {"top": ((5, N, 2), "float32"), "where": ((5, N, 2), "int64")})
    b.node("NonZero", ("x",), "nonzero", (3, dims.symbol("found")), "int64")
    b.constant("zero", 0)
    b.constant("step", 1)
    b.constant("end", 100)
    b.node("Range", ("zero", "end", "step"), "range", (100,), "int64")
    b.node("Where", ("mask", "best", "range"), "either", (100,), "int64")
    b.input("mask", (100,), "bool")
    graph = b.graph("either")
    found = ranges(graph)
    assert found["shape"] == (2, 2 * MAX_SIZE + 2)
    assert not found.fits_int32("shape").ok
    assert found["best"] == (0, 4)
    assert found["last"] == (0, 6)
    assert found["where"] == (0, 6)
    assert found["nonzero"] == (0, MAX_SIZE - 1)
    assert found["range"] == (0, 100)
    assert found["either"] == (0, 100)
    assert not found.fits_int32("size").ok
    bound = ranges(graph, {"n": 10})
    assert bound["shape"] == (5, 22)
    assert bound["size"] == (350, 350)
    assert bound.fits_int32("size").guards == ()


@given(n=st.integers(0, 50), a=st.integers(1, 9), b=st.integers(1, 9), c=SMALL)
def test_dims_lie_in_their_interval(n: int, a: int, b: int, c: int) -> None:
    forms = [
        dims.floordiv(N * a + c, b),
        dims.mod(N + c, b),
        dims.dmax(N * a, c),
        dims.dmin(N, a) * b - N,
        dims.broadcast(N, dims.symbol("m")),
    ]
    for form in forms:
        builder = Builder()
        builder.input("x", (N, dims.symbol("m")))
        builder.node("Shape", ("x",), "y", (1,), "int64", dims=object_array([form]))
        graph = builder.graph("y")
        value = dims.evaluate(form, {"n": n, "m": 1})
        assert covers(ranges(graph)["y"], np.array([value], object))
        assert covers(ranges(graph, {"n": n, "m": 1})["y"], np.array([value], object))


def test_an_empty_reduction_may_give_the_type_s_extreme() -> None:
    b = Builder()
    b.input("x", (N,), "int64")
    b.node("ReduceMax", ("x",), "y", (), "int64")
    graph = b.graph("y")
    assert not ranges(graph).fits_int32("y").ok
    assert not ranges(graph, {"n": 0}).fits_int32("y").ok
    assert ranges(graph, {"n": 3}).fits_int32("y").ok


@pytest.mark.parametrize(
    ("op_type", "attrs", "inputs", "expected"),
    [
        ("Concat", {"axis": 0}, ([1, 2], [-3]), (-3, 2)),
        ("Pad", {}, ([5], [1, 1]), (0, 5)),
        ("Pad", {}, ([5], [1, 1], 9), (5, 9)),
        ("Pad", {"mode": "edge"}, ([5], [1, 1]), (5, 5)),
        ("OneHot", {}, ([0], 3, [-1, 4]), (-1, 4)),
        ("ConstantOfShape", {"value": np.array([7])}, ([3],), (7, 7)),
        ("ConstantOfShape", {}, ([3],), (0, 0)),
        ("ScatterElements", {}, ([1, 2], [0], [9]), (1, 9)),
        ("ScatterElements", {"reduction": "add"}, ([1, 2], [0], [9]), (None, None)),
        ("Sum", {}, ([1], [2], [3]), (6, 6)),
        ("BitShift", {"direction": "LEFT"}, ([1], [2]), (None, None)),
        ("Loop", {}, ([1],), (None, None)),
    ],
)
def test_rules(op_type: str, attrs: dict, inputs: tuple, expected: tuple) -> None:
    assert one_node(op_type, *inputs, **attrs)["y"] == expected


def test_an_operator_of_another_domain_proves_nothing() -> None:
    assert one_node("Identity", [1], domain="custom")["y"] == (None, None)
