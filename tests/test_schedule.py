"""Order of the tasks: dependencies, transfers once per value and direction, few switches."""

from __future__ import annotations

import numpy as np
import pytest

from engine import schedule as tasks
from engine.dims import symbol
from engine.dtypes import FLOAT32
from engine.fusion import fuse
from engine.ir import Graph, TensorType
from engine.schedule import Task, schedule
from engine.target import Target
from tests.graphs import GraphBuilder

F5 = TensorType(FLOAT32, (5,))


def scheduled(graph: Graph, disable: tuple[str, ...] = ()) -> tuple[Task, ...]:
    found = fuse(graph, lambda n: n.op_type != "Host", Target.baseline(), disable)
    host = [n for n in graph.nodes if n.op_type == "Host"]
    constants = {n for n, v in graph.values.items() if v.constant is not None}
    return schedule(
        graph,
        found.groups,
        host,
        on_host={*graph.inputs, *constants},
        symbols=(),
        root=lambda n: n,
    )


def kinds(found: tuple[Task, ...]) -> str:
    letters = {
        tasks.Upload: "u",
        tasks.RunGpu: "G",
        tasks.Download: "d",
        tasks.Submit: "S",
        tasks.Wait: "W",
        tasks.RunCpu: "C",
        tasks.Bind: "B",
    }
    return "".join(letters[type(t)] for t in found)


def test_gpu_only() -> None:
    b = GraphBuilder()
    b.input("x", 5)
    b.node("Exp", "x", out="y")
    assert kinds(scheduled(b.graph(["y"]))) == "uGdSW"


def test_host_work_that_needs_no_result_runs_before_the_wait() -> None:
    b = GraphBuilder()
    b.input("x", 5)
    b.node("Exp", "x", out="y")
    b.typed("Host", "x", out="h", type_=F5)
    b.typed("Host", "y", out="z", type_=F5)
    found = scheduled(b.graph(["h", "z"]))
    assert kinds(found) == "uGdSCWC"
    assert [t.node.key for t in found if isinstance(t, tasks.RunCpu)] == ["h", "z"]


def test_a_value_crosses_once_however_many_read_it() -> None:
    b = GraphBuilder()
    b.input("x", 5)
    b.input("y", 3, 5)
    b.node("Exp", "x", out="e")
    b.node("Add", "e", "y", out="s")
    b.node("Mul", "x", "y", out="m")
    b.typed("Host", "e", out="h1", type_=F5)
    b.typed("Host", "e", out="h2", type_=F5)
    found = scheduled(b.graph(["s", "m", "h1", "h2", "e"]))
    assert sorted(t.value for t in found if isinstance(t, tasks.Upload)) == ["x", "y"]
    assert sum(isinstance(t, tasks.Download) and t.value == "e" for t in found) == 1


def test_constants_do_not_cross_in_a_call() -> None:
    b = GraphBuilder()
    b.input("x", 5)
    b.constant("w", np.ones(5, np.float32))
    b.node("Add", "x", "w", out="a")
    b.typed("Host", "w", out="h", type_=F5)
    b.node("Mul", "a", "h", out="y")
    found = scheduled(b.graph(["y"]), ("elementwise-chain",))
    assert sorted(t.value for t in found if isinstance(t, tasks.Upload)) == ["h", "x"]


def test_islands_that_are_ready_share_a_batch() -> None:
    b = GraphBuilder()
    b.input("x", 5)
    b.input("y", 7)
    b.node("Exp", "x", out="a")
    b.typed("Host", "a", out="h", type_=F5)
    b.node("Neg", "h", out="n")
    b.node("Exp", "y", out="c")
    assert kinds(scheduled(b.graph(["n", "c"]))) == "uuGGddSWCuGdSW"


def test_a_size_that_data_decide_is_bound_before_it_is_used() -> None:
    b = GraphBuilder()
    b.input("x", 5)
    b.typed("Host", "x", out="h", type_=TensorType(FLOAT32, (symbol("k"),)))
    b.node("Exp", "h", out="y")
    found = scheduled(b.graph(["y"]))
    assert kinds(found) == "CBuGdSW"
    (bind,) = (t for t in found if isinstance(t, tasks.Bind))
    assert bind.symbols == (("k", "h", 0),)


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_run_in_a_valid_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = GraphBuilder()
    names = [b.input("x", 5), b.input("y", 5)]
    for i in range(30):
        first, second = (names[int(k)] for k in rng.integers(max(0, len(names) - 8), len(names), 2))
        if rng.random() < 0.3:
            names.append(b.typed("Host", first, second, out=f"v{i}", type_=F5))
        else:
            names.append(b.node("Add", first, second, out=f"v{i}"))
    graph = b.graph(names[-3:])
    found = scheduled(graph, ("elementwise-chain",) if seed % 2 else ())
    host, device, pending, ran = set(graph.inputs), set(), set(), set()
    for task in found:
        match task:
            case tasks.Upload(value):
                assert value in host and value not in device
                device.add(value)
            case tasks.RunGpu(group):
                assert set(group.inputs) <= device
                device |= {n for node in group.nodes for n in node.writes}
                ran |= {n.key for n in group.nodes}
            case tasks.Download(value):
                assert value in device
                pending.add(value)
            case tasks.Wait(values):
                assert set(values) <= pending
                host |= set(values)
            case tasks.RunCpu(node):
                assert set(node.reads) <= host
                host |= set(node.writes)
                ran.add(node.key)
    assert ran == {n.key for n in graph.nodes}
    assert set(graph.outputs) <= host


def test_a_chain_on_the_host_feeds_a_group_that_starts_before_it() -> None:
    b = GraphBuilder()
    b.input("x", 5)
    b.node("Exp", "x", out="e")
    b.typed("Host", "x", out="h1", type_=F5)
    b.typed("Host", "h1", out="h2", type_=F5)
    b.node("Add", "e", "h2", out="s")
    found = scheduled(b.graph(["s"]))
    assert kinds(found) == "CCuuGdSW"
