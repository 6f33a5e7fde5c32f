"""What is computed where a kernel loads it, what nearly is and why not, and when that pays."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from engine.costs import DeviceProfile
from engine.fusion import Fusion, fuse
from engine.groups import Prologue
from engine.ir import Graph
from engine.prologue import PrologueCosts
from engine.target import Target
from tests.graphs import GraphBuilder, N


def fuse_all(graph: Graph, target: Target | None = None, **options: object) -> Fusion:
    return fuse(graph, lambda n: n.op_type != "Host", target or Target.baseline(), **options)


def labels(found: Fusion) -> list[str]:
    return [g.label for g in found.groups]


def before_a_sum(*extra: str) -> GraphBuilder:
    b = GraphBuilder()
    b.input("x", N, 8)
    b.constant("c", np.ones(8, np.float32))
    b.constant("axes", np.array([1]))
    b.node("Mul", "x", "c", out="m")
    b.node("Exp", "m", out="e")
    b.node("ReduceSum", "e", "axes", out="s")
    return b


def test_a_chain_goes_in_front_of_a_kernel() -> None:
    (group,) = fuse_all(before_a_sum().graph(["s"])).groups
    assert [n.key for n in group.nodes] == ["m", "e", "s"]
    assert group.key == "s" and [n.key for n in group.chain] == ["s"]
    assert group.prologues == (Prologue(group.nodes[:2], "e"),)
    assert group.inputs == ("x", "c") and group.outputs == ("s",)
    found = fuse_all(before_a_sum().graph(["s"]))
    assert found.applied[-1] == "prologue: Exp 'e' in front of ReduceSum 's'"


def test_the_rule_can_be_disabled() -> None:
    found = fuse_all(before_a_sum().graph(["s"]), disable=["prologue"])
    assert labels(found) == ["Mul + Exp", "ReduceSum"]


@pytest.mark.parametrize("stored", ["m", "e"])
def test_what_is_returned_is_stored(stored: str) -> None:
    found = fuse_all(before_a_sum().graph([stored, "s"]))
    assert labels(found) == ["Mul + Exp", "ReduceSum"]
    assert any("so it is stored anyway" in m for m in found.near_misses)


def test_what_another_kernel_reads_is_stored() -> None:
    b = before_a_sum()
    b.node("Softmax", "e", out="p", axis=1)
    found = fuse_all(b.graph(["s", "p"]))
    assert labels(found) == ["Mul + Exp", "ReduceSum", "Softmax"]
    assert any("something else reads it" in m for m in found.near_misses)


def test_kernels_that_say_nothing_of_their_loads_take_nothing_in() -> None:
    b = GraphBuilder()
    b.input("x", 4, 8)
    b.node("Exp", "x", out="e")
    b.node("Transpose", "e", out="t", perm=[1, 0])
    b.node("CumSum", "t", b.constant("axis", np.array(0)), out="y")
    assert labels(fuse_all(b.graph(["y"]), disable=["transposed-store"]))[0] == "Exp"


def test_kernels_of_other_nodes_are_taken_in_by_none() -> None:
    b = GraphBuilder()
    b.input("x", 4, 8)
    b.constant("w", np.ones((8, 8), np.float32))
    b.node("MatMul", "x", "w", out="p")
    b.node("Exp", "p", out="e")
    b.node("Softmax", "e", out="y", axis=1)
    assert labels(fuse_all(b.graph(["y"]))) == ["MatMul + Exp", "Softmax"]


def test_two_operands_of_a_product() -> None:
    b = GraphBuilder()
    b.input("x", 4, 8)
    b.input("w", 8, 8)
    b.node("Exp", "x", out="e")
    b.node("Neg", "w", out="n")
    b.node("MatMul", "e", "n", out="p")
    b.node("Add", "p", "x", out="y")
    (group,) = fuse_all(b.graph(["y"])).groups
    assert {p.value for p in group.prologues} == {"e", "n"}
    assert {n.key for n in group.nodes[:2]} == {"e", "n"}
    assert [n.key for n in group.chain] == ["p", "y"]


def test_the_number_of_storage_buffers_bounds_a_prologue() -> None:
    b = GraphBuilder()
    last = b.input("x0", 6, 4)
    for i in range(1, 8):
        b.input(f"x{i}", 6, 4)
    for i in range(1, 7):
        last = b.node("Add", last, f"x{i}", out=f"s{i}")
    b.node("MatMul", last, b.input("w", 4, 5), out="y")
    graph = b.graph(["y"])
    found = fuse_all(graph)
    assert len(found.groups) == 2
    assert any("9 storage buffers" in m and "loads" in m for m in found.near_misses)
    assert len(fuse_all(graph, Target(max_storage_buffers_per_shader_stage=16)).groups) == 1


def test_a_buffer_that_is_read_in_front_and_behind_counts_twice() -> None:
    """Of eight: four in front, the weights, and x1 once more; another does not fit."""
    b = GraphBuilder()
    last = b.input("x0", 4, 4)
    for i in range(1, 4):
        last = b.node("Add", last, b.input(f"x{i}", 4, 4), out=f"s{i}")
    last = b.node("MatMul", last, b.input("w", 4, 4), out="p")
    for i in range(1, 4):
        last = b.node("Add", last, f"x{i}", out=f"t{i}")
    found = fuse_all(b.graph([last]))
    assert labels(found) == ["Add + Add + Add + MatMul + Add + Add", "Add"]


def test_nothing_that_is_loaded_is_computed_behind() -> None:
    """What the chain in front reads is a group of its own, though a node behind reads it too."""
    b = GraphBuilder()
    b.input("x", 4, 4)
    b.input("w", 4, 4)
    b.node("Exp", "x", out="e")
    b.typed("Host", "e", out="h", type_=b.values["x"].tensor)
    b.node("Neg", "h", out="n")
    b.node("Mul", "n", "e", out="f")
    b.node("MatMul", "f", "w", out="p")
    b.node("Add", "p", "e", out="y")
    found = fuse_all(b.graph(["y"]))
    assert labels(found) == ["Exp", "Neg + Mul + MatMul + Add"]


def pointwise(channels: int, size: int, outputs: int) -> tuple[Graph, Fusion, DeviceProfile]:
    b = GraphBuilder()
    b.input("x", 1, channels, size, size)
    b.input("s", 1, channels, 1, 1)
    b.constant("w", np.ones((outputs, channels, 1, 1), np.float32))
    b.node("Mul", "x", "s", out="m")
    b.node("Conv", "m", "w", out="y")
    graph = b.graph(["y"])
    return graph, fuse_all(graph), DeviceProfile.builtin()


@pytest.mark.parametrize(("outputs", "pays"), [(16, True), (4096, False)])
def test_it_pays_where_few_tiles_load_an_element(outputs: int, pays: bool) -> None:
    graph, found, profile = pointwise(64, 56, outputs)
    why_not = PrologueCosts(graph, {}, Target.baseline(), profile)
    (group,) = found.groups
    assert group.anchor is not None
    reason = why_not(group.prologues[0], group.anchor)
    assert (reason == "") == pays
    if not pays:
        assert reason.startswith("it loads each element 256 times, which would add ")


def test_it_pays_on_a_gpu_and_not_in_software() -> None:
    graph, found, _ = pointwise(128, 40, 128)
    (group,) = found.groups
    assert group.anchor is not None
    for name, pays in (("integrated", True), ("lavapipe", False)):
        why_not = PrologueCosts(graph, {}, Target.baseline(), DeviceProfile.builtin(name))
        assert (why_not(group.prologues[0], group.anchor) == "") == pays


def test_open_sizes_are_those_of_the_first_call() -> None:
    graph = before_a_sum().graph(["s"])
    slow = dataclasses.replace(
        DeviceProfile.builtin(),
        gpu=dataclasses.replace(DeviceProfile.builtin().gpu, ops_per_s=10**8),
    )
    (group,) = fuse_all(graph).groups
    assert group.anchor is not None
    for size, pays in ((4, True), (10**6, False)):
        why_not = PrologueCosts(graph, {str(N): size}, Target.baseline(), slow)
        assert (why_not(group.prologues[0], group.anchor) == "") == pays


def padded_by(mode: str, *extra: str) -> GraphBuilder:
    b = GraphBuilder()
    b.input("x", 1, 4, 10)
    b.constant("pads", np.array([0, 0, 1, 0, 0, 1]))
    b.constant("w", np.ones((8, 4, 3), np.float32))
    b.node("Pad", "x", "pads", out="p", mode=mode)
    b.node("Conv", "p", "w", out="c")
    for i, op in enumerate(extra):
        b.node(op, "p", "w", out=f"e{i}") if op == "Conv" else b.node(op, "p", out=f"e{i}")
    return b


def test_a_pad_is_done_where_a_convolution_loads() -> None:
    found = fuse_all(padded_by("reflect").graph(["c"]))
    (group,) = found.groups
    assert [n.key for n in group.nodes] == ["p", "c"] and group.border is group.nodes[0]
    assert group.prologues == (Prologue(group.nodes[:1], "p", border=True),)
    assert group.inputs == ("x", "w") and group.outputs == ("c",)
    assert found.applied == ("border: Pad 'p' in Conv 'c'",)


def test_each_reader_does_a_pad() -> None:
    first, second = fuse_all(padded_by("wrap", "Conv").graph(["c", "e0"])).groups
    assert first.border is second.border is not None
    assert first.outputs == ("c",) and second.outputs == ("e0",)


@pytest.mark.parametrize(
    ("graph", "options"),
    [
        (padded_by("edge", "Neg").graph(["c", "e0"]), {}),
        (padded_by("edge").graph(["c", "p"]), {}),
        (padded_by("edge").graph(["c"]), {"disable": ["border"]}),
        (padded_by("edge").graph(["c"]), {"single": ["p"]}),
        (padded_by("constant").graph(["c"]), {}),
    ],
    ids=["another kernel", "an output", "disabled", "alone", "zeros"],
)
def test_a_pad_that_is_needed_is_stored(graph: Graph, options: dict[str, list[str]]) -> None:
    found = fuse_all(graph, **options)
    assert {"Pad", "Conv"} <= {n.op_type for g in found.groups for n in g.nodes if len(g.nodes) < 3}
    assert all(g.border is None for g in found.groups)


def test_a_pad_that_a_convolution_of_the_cpu_reads_is_stored() -> None:
    graph = padded_by("edge", "Conv").graph(["c", "e0"])
    found = fuse(graph, lambda n: n.key != "e0", Target.baseline())
    assert labels(found) == ["Pad", "Conv"]
