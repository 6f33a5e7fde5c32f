"""What the GPU can take, said in words, and which nodes only work out sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import dims, ops
from engine.errors import ShapeError
from engine.ir import Graph
from engine.ops import OpDef, Support, object_array
from engine.ranges import MAX_SIZE, ranges
from engine.support import gpu_support, roles, strongest
from engine.target import Target
from tests.own_ops import registered
from tests.small_graphs import Builder

N = dims.symbol("n")


def _refuse(view: ops.NodeView) -> Support:
    match view.attr("mood"):
        case "bad":
            return ops.no("its mood is bad")
        case "even":
            return ops.yes_if(dims.divisible(view.shape(0)[0], 2))
        case "lost":
            raise ShapeError("sizes 2 and 3 do not broadcast")
        case _:
            return ops.YES


OPS = (
    OpDef("Calc", domain="test", lower=lambda v: (), supports=_refuse),
    OpDef("Any", domain="test", lower=lambda v: (), dtypes=ops.ALL),
    OpDef("Shaped", domain="test", lower=lambda v: (), shape_inputs=(1,)),
    OpDef("Many", domain="test", lower=lambda v: (), variadic=True),
    OpDef("Greedy", domain="test", lower=lambda v: (), scratch=7),
    OpDef("Typed", domain="test"),
)


@pytest.fixture(autouse=True, scope="module")
def own_ops() -> Iterator[None]:
    with registered(OPS):
        yield


def support_of(graph: Graph, key: str = "y", **options: object) -> Support:
    return gpu_support(graph, Target.baseline(), ranges=ranges(graph), **options)[key]  # type: ignore


def one(
    op: str, shape: tuple[dims.Dim, ...] | None = (4,), dtype: str = "float32", **attrs
) -> Graph:
    b = Builder()
    b.input("x", shape, dtype)
    b.node(op, ("x",), "y", shape, dtype, domain="test", **attrs)
    return b.graph("y")


def test_a_plain_node_is_supported() -> None:
    assert support_of(one("Calc")) == Support(True)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (one("Nothing"), "there is no GPU kernel for test:Nothing-23"),
        (one("Typed"), "there is no GPU kernel for test:Typed-23"),
        (one("Calc", dtype="int32"), "its kernel does not take int32 ('x')"),
        (one("Any", dtype="float64"), "no kernel computes with float64 ('x')"),
        (one("Calc", None), "the rank of 'x' is unknown"),
        (one("Calc", (1,) * 9), "'x' has rank 9, and kernels index at most 8"),
        (
            one("Calc", (1 << 26,)),
            "'x' takes 256.0 MiB, more than the 128.0 MiB that one binding may hold",
        ),
        (one("Greedy"), "it needs 9 storage buffers, and a kernel may bind 8"),
        (one("Calc", mood="bad"), "its mood is bad"),
        (one("Calc", mood="lost"), "sizes 2 and 3 do not broadcast"),
        (one("Calc", (3,), mood="even"), "it needs that 2 divides 3, which no size fulfils"),
    ],
)
def test_refusals_in_words(graph: Graph, reason: str) -> None:
    assert support_of(graph) == Support(False, reason)


def test_a_bool_result_of_a_float_kernel_is_fine() -> None:
    b = Builder()
    b.input("x", (4,))
    b.node("Calc", ("x",), "y", (4,), "bool", domain="test")
    assert support_of(b.graph("y")).ok


def test_untyped_operands_are_refused() -> None:
    graph = one("Calc")
    values = {**graph.values, "y": graph.values["y"].replace(type=None)}
    assert support_of(graph.replace(values=values)).reason == "'y' is not a tensor of known type"


def test_control_flow_is_driven_by_the_host() -> None:
    b = Builder()
    b.input("x", (4,))
    b.node("SequenceMap", ("x",), "y", body=one("Calc"))
    assert support_of(b.graph("y")).reason == "control flow is driven by the host"


def test_shape_inputs_must_be_known() -> None:
    b = Builder()
    b.input("x", (4,))
    b.input("given", (1,), "int64")
    b.constant("fixed", [4])
    b.node("Shape", ("x",), "known", (1,), "int64", dims=object_array([N]))
    for sizes in ("given", "fixed", "known"):
        b.node("Shaped", ("x", sizes), f"y_{sizes}", domain="test")
    b.node("Shaped", ("x",), "y_none", domain="test")
    graph = b.graph("y_given", "y_fixed", "y_known", "y_none")
    assert support_of(graph, "y_given").reason == "its input 1 ('given') is not known when planning"
    assert all(support_of(graph, key).ok for key in ("y_fixed", "y_known", "y_none"))


def test_variadic_operators_may_have_many_inputs() -> None:
    for op, ok in (("Calc", False), ("Many", True)):
        b = Builder()
        names = [b.input(f"x{i}", (4,)) for i in range(9)]
        b.node(op, names, "y", domain="test")
        assert support_of(b.graph("y")).ok == ok


def test_one_value_read_twice_takes_one_buffer() -> None:
    b = Builder()
    b.input("x", (4,))
    b.node("Calc", ["x"] * 9, "y", domain="test")
    assert support_of(b.graph("y")).ok


def test_symbolic_sizes_are_guarded_and_decided_at_a_binding() -> None:
    graph = one("Calc", (N, 1024), mood="even")
    found = support_of(graph)
    assert [g.holds({"n": n}) for g in found.guards[:1] for n in (1 << 15, (1 << 15) + 1)] == [
        True,
        False,
    ]
    assert len(found.guards) == 2, "the size of x, which is that of y, and the operator's own"
    assert support_of(graph, binding={"n": 8}) == found
    odd = support_of(graph, binding={"n": 7})
    assert odd.reason == "it needs that 2 divides n, which is not so at n=7"
    large = support_of(graph, binding={"n": 1 << 16})
    assert "takes at most 128.0 MiB, which is not so at n=65536" in large.reason
    assert support_of(graph, binding={"m": 7}) == found, "an unbound symbol decides nothing"


M = dims.symbol("m")


@given(data=st.data())
def test_the_strongest_guards_imply_all(data: st.DataObject) -> None:
    number = st.integers(-9, 9)
    forms = [N, M, N * M, N * 2 + M, dims.floordiv(N, 3), dims.mod(M, 4)]
    guards = []
    for _ in range(data.draw(st.integers(0, 8))):
        expr = data.draw(number) * data.draw(st.sampled_from(forms)) + data.draw(number)
        guards.append(dims.Guard(data.draw(st.sampled_from(["zero", "nonneg", "nonneg"])), expr))
    kept = strongest(guards)
    assert set(kept) <= set(guards)
    for n, m in itertools.product(range(8), repeat=2):
        binding = {"n": n, "m": m}
        assert all(g.holds(binding) for g in kept) == all(g.holds(binding) for g in guards)


def test_of_bounds_alike_the_tightest_is_kept() -> None:
    loose, tight = (dims.at_least(100, N * M * k, f"k={k}") for k in (2, 5))
    other, even = dims.at_least(100, N), dims.divisible(N, 2)
    same = dims.divisible(N, 2, "said otherwise")
    assert strongest([loose, other, even, tight, same]) == (other, even, tight)
    assert strongest([tight, loose]) == (tight,)


def test_int64_needs_a_proof() -> None:
    b = Builder()
    b.input("ids", (N,), "int64")
    b.constant("big", [2**40])
    b.constant("one", [1])
    b.node("Mul", ("ids", "ids"), "next", (N,), "int64")
    b.node("Equal", ("ids", "one"), "flag", (N,), "bool")
    b.node("Cast", ("flag",), "flags", (N,), "int64", to=7)
    b.node("CumSum", ("flags", "one"), "positions", (N,), "int64")
    for name in ("ids", "big", "next", "positions"):
        b.node("Any", (name,), f"y_{name}", (N,), domain="test")
    graph = b.graph("y_ids", "y_big", "y_next", "y_positions")
    assert support_of(graph, "y_ids").ok
    assert "could exceed the int32 range: 'big'" in support_of(graph, "y_big").reason
    assert "could exceed the int32 range: 'next'" in support_of(graph, "y_next").reason
    roomy = Target(max_storage_buffer_binding_size=1 << 40, max_buffer_size=1 << 40)
    guards = gpu_support(graph, roomy, ranges=ranges(graph))["y_positions"].guards
    assert any(not g.holds({"n": MAX_SIZE + 1}) and g.holds({"n": MAX_SIZE}) for g in guards)


def shape_graph() -> Graph:
    b = Builder()
    b.input("x", (N, 4))
    b.input("rows", (2,), "int64")
    b.input("half", (N, 4), "float64")
    b.constant("zero", [0])
    b.node("Shape", ("x",), "shape", (2,), "int64", dims=object_array([N, 4]))
    b.node("Gather", ("shape", "zero"), "n", (1,), "int64", dims=object_array([N]))
    b.node("Shaped", ("x", "n"), "flat", (N, 4), domain="test")
    b.node("Any", ("rows",), "picked", (2,), "int64", domain="test")
    b.node("Calc", ("half", "picked"), "onhost", (N, 4), "float64", domain="test")
    b.node("Cast", ("rows",), "used", (2,), "int32", to=6)
    b.node("Any", ("used",), "ongpu", (2,), "int32", domain="test")
    b.node("Shape", ("flat",), "returned", (2,), "int64", dims=object_array([N, 4]))
    b.node("Any", ("x",), "wide", (2,), "int64", domain="test")
    b.node("Shaped", ("x", "wide"), "last", (N, 4), domain="test")
    return b.graph("flat", "onhost", "ongpu", "returned", "last")


def test_roles() -> None:
    graph = shape_graph()
    support = gpu_support(graph, Target.baseline(), ranges=ranges(graph))
    assert not support["onhost"].ok
    assert roles(graph, support) == {"shape": "folded", "n": "folded", "picked": "host-shape"}


def test_a_folded_node_that_a_kernel_reads_is_run() -> None:
    b = Builder()
    b.input("x", (N, 4))
    b.node("Shape", ("x",), "shape", (2,), "int64", dims=object_array([N, 4]))
    b.node("Any", ("shape",), "y", (2,), domain="test")
    graph = b.graph("y")
    assert roles(graph, {"shape": Support(False, "no kernel"), "y": Support(True)}) == {}


def test_random_operators_are_never_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = OpDef("Dice", domain="test", random=True)
    monkeypatch.setitem(ops._REGISTRY, ("test", "Dice"), [dice])
    b = Builder()
    b.constant("seed", [1])
    b.input("x", (4,))
    b.node("Dice", ("seed",), "die", (1,), "int64", dims=np.array([4], object), domain="test")
    b.node("Shaped", ("x", "die"), "y", domain="test")
    graph = b.graph("y")
    support = gpu_support(graph, Target.baseline(), ranges=ranges(graph))
    assert roles(graph, support) == {}
