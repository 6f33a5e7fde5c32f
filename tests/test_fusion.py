"""Which nodes become one kernel, which nearly do, and what the kernel looks like."""

from __future__ import annotations

import numpy as np
import pytest

from engine.fusion import Fusion, fuse
from engine.ir import Graph, TensorType
from engine.target import Target
from tests.graphs import GraphBuilder, N


def fuse_all(graph: Graph, target: Target | None = None, **options: object) -> Fusion:
    return fuse(graph, lambda n: n.op_type != "Host", target or Target.baseline(), **options)


def groups(found: Fusion) -> list[set[str]]:
    return [{n.key for n in g.nodes} for g in found.groups]


def chain() -> GraphBuilder:
    b = GraphBuilder()
    b.input("x", N, 5)
    b.constant("c", np.ones(5, np.float32))
    b.node("Add", "x", "c", out="a")
    b.node("Relu", "a", out="r")
    b.node("Mul", "r", "x", out="m")
    return b


def test_a_chain_with_broadcasting_becomes_one_group() -> None:
    found = fuse_all(chain().graph(["m"]))
    assert groups(found) == [{"a", "r", "m"}]
    assert found.groups[0].inputs == ("x", "c")
    assert found.groups[0].outputs == ("m",)


def test_an_intermediate_that_is_returned_is_stored_as_well() -> None:
    found = fuse_all(chain().graph(["r", "m"]))
    assert found.groups[0].outputs == ("r", "m")


def test_two_chains_that_meet_become_one_group() -> None:
    b = chain()
    b.node("Neg", "x", out="n1")
    b.node("Exp", "n1", out="n2")
    b.node("Add", "m", "n2", out="sum")
    assert groups(fuse_all(b.graph(["sum"]))) == [{"a", "r", "m", "n1", "n2", "sum"}]


def test_elementwise_nodes_go_behind_an_anchor() -> None:
    b = GraphBuilder()
    b.input("x", N, 8)
    b.constant("w", np.ones((8, 5), np.float32))
    b.constant("c", np.ones(5, np.float32))
    b.node("MatMul", "x", "w", out="p")
    b.node("Add", "p", "c", out="a")
    b.node("Relu", "a", out="r")
    found = fuse_all(b.graph(["r"]))
    assert groups(found) == [{"p", "a", "r"}]
    assert found.groups[0].anchor is not None and found.groups[0].anchor.key == "p"
    assert [a.split(":")[0] for a in found.applied] == ["epilogue", "elementwise-chain"]


def test_a_residual_joins_the_later_of_two_anchors() -> None:
    b = GraphBuilder()
    b.input("x", 4, 8)
    b.constant("w", np.ones((8, 8), np.float32))
    b.node("MatMul", "x", "w", out="p1")
    b.node("MatMul", "p1", "w", out="p2")
    b.node("Add", "p1", "p2", out="s")
    found = fuse_all(b.graph(["s"]))
    assert groups(found) == [{"p1"}, {"p2", "s"}]
    assert any("kernel of its own" in m for m in found.near_misses)


def test_a_rule_can_be_disabled() -> None:
    graph = chain().graph(["m"])
    assert len(fuse_all(graph, disable=["elementwise-chain"]).groups) == 3


def test_other_shapes_stay_apart() -> None:
    b = GraphBuilder()
    b.input("x", 5)
    b.input("y", 3, 5)
    b.node("Exp", "x", out="e")
    b.node("Add", "e", "y", out="s")
    assert groups(fuse_all(b.graph(["s"]))) == [{"e"}, {"s"}]


def test_a_path_through_the_host_is_not_closed_into_a_cycle() -> None:
    b = GraphBuilder()
    b.input("x", 5)
    b.node("Exp", "x", out="e")
    b.typed("Host", "e", out="h", type_=TensorType(b.values["x"].tensor.dtype, (5,)))
    b.node("Add", "e", "h", out="s")
    found = fuse_all(b.graph(["s"]))
    assert groups(found) == [{"e"}, {"s"}]
    assert "computed elsewhere" in found.near_misses[0]


def test_the_number_of_storage_buffers_bounds_a_group() -> None:
    b = GraphBuilder()
    last = b.input("x0", 6)
    for i in range(1, 12):
        b.input(f"x{i}", 6)
        last = b.node("Add", last, f"x{i}", out=f"s{i}")
    found = fuse_all(b.graph([last]))
    assert all(len(g.inputs) + len(g.outputs) <= 8 for g in found.groups)
    assert len(found.groups) == 2
    assert "the device allows 8" in found.near_misses[0]
    wide = Target(max_storage_buffers_per_shader_stage=16)
    assert len(fuse_all(b.graph([last]), wide).groups) == 1


def test_an_anchor_binds_what_it_reads_twice_twice() -> None:
    """Eight buffers: two operands, five behind, and the result."""
    b = GraphBuilder()
    last = b.node("MatMul", b.input("x", 6, 6), "x", out="p")
    for i in range(6):
        last = b.node("Add", last, b.input(f"x{i}", 6, 6), out=f"s{i}")
    found = fuse_all(b.graph([last]))
    assert [len(g.nodes) for g in found.groups] == [6, 1]


@pytest.mark.parametrize("count", [1, 2, 40])
def test_every_node_is_in_one_group(count: int) -> None:
    rng = np.random.default_rng(count)
    b = GraphBuilder()
    names = [b.input("x", N, 3), b.input("y", N, 3)]
    for i in range(count):
        first, second = (names[int(k)] for k in rng.integers(0, len(names), 2))
        names.append(b.node("Add", first, second, out=f"v{i}"))
    graph = b.graph([names[-1], names[len(names) // 2]])
    members = [k for g in groups(fuse_all(graph)) for k in g]
    assert sorted(members) == sorted(n.key for n in graph.nodes)


def test_nothing_goes_behind_a_node_of_the_cpu() -> None:
    b = chain()
    found = fuse(b.graph(["m"]), lambda n: n.op_type != "Add", Target.baseline())
    assert groups(found) == [{"r", "m"}]
    assert found.groups[0].inputs == ("a", "x")


def test_nothing_goes_behind_an_anchor_of_the_cpu() -> None:
    b = GraphBuilder()
    b.input("x", N, 8)
    b.constant("w", np.ones((8, 5), np.float32))
    b.node("MatMul", "x", "w", out="p")
    b.node("Relu", "p", out="r")
    assert groups(fuse(b.graph(["r"]), lambda n: n.op_type == "Relu", Target.baseline())) == [{"r"}]


def test_what_an_anchor_reads_is_not_fused_behind_it() -> None:
    b = GraphBuilder()
    b.input("x", 4, 5)
    b.node("Exp", "x", out="e")
    b.node("Neg", "e", out="n")
    b.node("Softmax", "e", out="s", axis=-1)
    b.node("Add", "s", "n", out="y")
    found = fuse(b.graph(["y"]), lambda node: True, Target.baseline())
    for group in found.groups:
        made = {name for node in group.nodes for name in node.writes}
        assert group.anchor is None or not made & set(group.anchor.reads)
    groups = [[n.key for n in g.nodes] for g in found.groups]
    assert sorted(map(sorted, groups)) == [["e", "n"], ["s", "y"]]
