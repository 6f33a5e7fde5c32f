"""Graph: invariants, sorting, rebuilding, and what it knows of itself."""

from __future__ import annotations

import numpy as np
import pytest

from engine import dtypes
from engine.errors import ModelError
from engine.ir import Graph, Node, OptionalType, SequenceType, TensorType, Value, sort_nodes
from tests.small_graphs import Builder

F32 = dtypes.FLOAT32


def node(op_type: str, inputs: str, outputs: str, **more: object) -> Node:
    return Node(op_type, tuple(inputs.split()), tuple(outputs.split()), **more)  # type: ignore[arg-type]


def graph_of(nodes: list[Node], inputs: str, outputs: str, constants: str = "") -> Graph:
    names = {*inputs.split(), *outputs.split(), *(n for x in nodes for n in (*x.reads, *x.writes))}
    values = {n: Value(n) for n in names}
    for name in constants.split():
        values[name] = Value(name, TensorType(F32, (1,)), np.ones(1, np.float32))
    return Graph(tuple(nodes), values, tuple(inputs.split()), tuple(outputs.split()))


CHAIN = [node("Relu", "x", "a"), node("Add", "a w", "b"), node("Mul", "a b", "y")]


def test_indexes() -> None:
    graph = graph_of(CHAIN, "x", "y", "w")
    graph.check()
    assert graph.producer["b"] is CHAIN[1]
    assert graph.consumers["a"] == (CHAIN[1], CHAIN[2])
    assert "y" not in graph.consumers and graph.is_output("y")
    assert graph.constant("w").tolist() == [1] and graph.constant("") is None
    assert graph.tensor("w") == TensorType(F32, (1,)) and graph.tensor("x") is None


def test_reads_count_once_and_captures_too() -> None:
    body = graph_of([node("Neg", "c", "r")], "", "r").replace(captures=("c",))
    both = Node("If", ("k", "k", ""), ("", "y"), {"then_branch": body}, captures=("c", "k"))
    assert both.reads == ("k", "c")
    assert both.writes == ("y",) and both.key == "y"
    assert both.input(5) == "" and both.bodies == {"then_branch": body}
    graph = graph_of([both], "k c", "y")
    graph.check()
    assert graph.consumers["c"] == (both,)
    assert [n.op_type for _, n in graph.walk()] == ["If", "Neg"]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Relu", "z", "y")], "reads 'z', which no input"),
        ([CHAIN[1], CHAIN[0], CHAIN[2]], "reads 'a'"),
        ([node("Relu", "x", "y"), node("Neg", "x", "y")], "writes 'y', which exists already"),
        ([node("Relu", "x", "x")], "writes 'x'"),
        ([node("Relu", "x", "w")], "writes 'w'"),
        ([node("Relu", "x", "a")], "output 'y' is produced by no node"),
    ],
)
def test_check_finds(nodes: list[Node], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        graph_of(nodes, "x", "y", "w").check()


def test_check_looks_into_bodies() -> None:
    body = graph_of([node("Neg", "c", "r")], "", "r").replace(captures=("c",))
    bare = Node("If", ("x",), ("y",), {"then_branch": body})
    with pytest.raises(ModelError, match="does not capture"):
        graph_of([bare], "x c", "y").check()
    broken = body.replace(captures=())
    with pytest.raises(ModelError, match="reads 'c'"):
        graph_of([Node("If", ("x",), ("y",), {"then_branch": broken})], "x", "y").check()


def test_a_value_without_description() -> None:
    graph = graph_of(CHAIN, "x", "y", "w")
    values = {k: v for k, v in graph.values.items() if k != "b"}
    with pytest.raises(ModelError, match="'b' is used but not described"):
        graph.replace(values=values).check()


def test_sorting_is_stable_and_finds_cycles() -> None:
    assert sort_nodes(tuple(CHAIN), ("x", "w")) == tuple(CHAIN)
    mixed = (CHAIN[2], CHAIN[1], CHAIN[0])
    assert sort_nodes(mixed, ("x", "w")) == tuple(CHAIN)
    loop = (node("Neg", "b", "a"), node("Neg", "a", "b"))
    with pytest.raises(ModelError, match="cycle"):
        sort_nodes(loop, ())
    long = tuple(node("Neg", f"v{i + 1}", f"v{i}") for i in range(5000))
    assert sort_nodes(long, ("v5000",)) == long[::-1]


def test_rebuild_drops_and_adds_values() -> None:
    graph = graph_of(CHAIN, "x", "y", "w")
    kind = TensorType(F32, (2,))
    new = graph.rebuild([node("Exp", "n", "y"), node("Neg", "x", "n")], [Value("n", kind)])
    new.check()
    assert [n.op_type for n in new.nodes] == ["Neg", "Exp"]
    assert set(new.values) == {"x", "n", "y"}
    assert new.tensor("n") == kind
    assert [n.op_type for n in graph.nodes] == ["Relu", "Add", "Mul"]


def test_types() -> None:
    kind = TensorType(F32, (2, 3))
    assert kind.static_shape == (2, 3) and kind.size == 6
    assert TensorType(F32).static_shape is None and TensorType(F32).size is None
    assert str(TensorType(F32)) == "float32[?]"
    assert str(SequenceType(OptionalType(kind))) == "sequence(optional(float32[2, 3]))"


def test_text() -> None:
    builder = Builder()
    builder.input("x", (2, 3))
    builder.node("Softmax", ["x"], "y", (2, 3), axis=1)
    text = builder.graph("y").to_text()
    assert text == "graph (x) -> y\n  y = Softmax(x) {axis=1}  : float32[2, 3]"


@pytest.mark.parametrize(
    ("op_type", "name", "output", "title"),
    [
        ("Conv", "/encoder/Conv", "3", "/encoder/Conv"),
        ("Conv", "conv1", "out", "conv1"),
        ("Conv", "Conv@3", "conv2d_53.tmp_0", "conv2d_53.tmp_0"),
        ("Add", "p2o.Add.12", "relu_1.tmp_0", "relu_1.tmp_0"),
        ("HardSwish", "Div@0", "Div@0", "Div@0"),
        ("HardSwish", "Div@0", "hardswish_0", "hardswish_0"),
        ("Conv", "Conv_3", "127", "Conv_3"),
        ("HardSwish", "Div_3", "127", "127"),
        ("Conv", "", "out", "out"),
    ],
)
def test_a_node_is_called_by_what_says_most(
    op_type: str, name: str, output: str, title: str
) -> None:
    assert Node(op_type, ("x",), (output,), name=name).title == title
