"""One form per operator: each rewrite, and where it must not happen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from engine.exporter import to_model
from engine.importer import load_model
from engine.ir import Graph
from engine.passes.canonicalize import canonicalize
from tests.passes.test_infer import graph_of, node
from tests.test_importer import BOOL, branch, model, value

X = value("x", [2, 3])
HALF = np.array(0.5, np.float32)


def check(graph: Graph, expected: list[str], **feed: Any) -> Graph:
    """The canonical graph, with the operators it should have; equal results on `feed`."""
    result = canonicalize(graph)
    result.graph.check()
    assert [n.op_type for n in result.graph.nodes] == expected
    assert bool(result.applied) == (result.graph is not graph)
    if feed:
        before, after = (
            ReferenceEvaluator(to_model(g)).run(None, feed) for g in (graph, result.graph)
        )
        for a, b in zip(before, after, strict=True):
            assert a.dtype == b.dtype
            assert np.array_equal(a, b)
    return result.graph


DATA = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)


def test_dropout_is_identity() -> None:
    nodes = [node("Dropout", "x r", "y", name="drop")]
    graph = check(graph_of(nodes, [X], ["y"], {"r": HALF}), ["Identity"], x=DATA)
    assert graph.nodes[0].origin == ("drop",)


@pytest.mark.parametrize("outputs", [["y", "mask"], ["mask"]])
def test_the_mask_of_dropout_is_all_true(outputs: list[str]) -> None:
    constants = {"r": HALF, "t": np.array(False)}
    graph = graph_of([node("Dropout", "x r t", "y mask")], [X], outputs, constants)
    kept = canonicalize(graph).graph
    found = dict(
        zip(outputs, ReferenceEvaluator(to_model(kept)).run(None, {"x": DATA}), strict=True)
    )
    assert found["mask"].dtype == bool
    assert found["mask"].all() and found["mask"].shape == (2, 3)
    assert "Dropout" not in [n.op_type for n in kept.nodes]


@pytest.mark.parametrize("training", ["constant", "input"])
def test_dropout_in_training_stays(training: str) -> None:
    inputs = [X] if training == "constant" else [X, value("t", [], BOOL)]
    constants: dict[str, Any] = {"r": HALF}
    if training == "constant":
        constants["t"] = np.array(True)
    check(graph_of([node("Dropout", "x r t", "y")], inputs, ["y"], constants), ["Dropout"])


@pytest.mark.parametrize("op_type", ["Sum", "Max", "Min", "Mean"])
def test_one_input(op_type: str) -> None:
    check(graph_of([node(op_type, "x", "y")], [X], ["y"]), ["Identity"], x=DATA)
    expected = "Add" if op_type == "Sum" else op_type
    check(graph_of([node(op_type, "x x", "y")], [X], ["y"]), [expected], x=DATA)
    check(graph_of([node(op_type, "x x x", "y")], [X], ["y"]), [op_type], x=DATA)


def test_concat_of_one() -> None:
    check(graph_of([node("Concat", "x", "y", axis=0)], [X], ["y"]), ["Identity"], x=DATA)


def test_empty_inputs_of_resize() -> None:
    x = value("x", [1, 1, 2, 3])
    nodes = [node("Resize", "x roi scales sizes", "y")]
    constants = {
        "roi": np.ones(8, np.float32),
        "scales": np.zeros(0, np.float32),
        "sizes": np.array([1, 1, 4, 6]),
    }
    data = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    graph = check(graph_of(nodes, [x], ["y"], constants), ["Resize"], x=data)
    assert graph.nodes[0].inputs == ("x", "", "", "sizes")
    nodes = [
        node(
            "Resize",
            "x roi scales sizes",
            "y",
            coordinate_transformation_mode="tf_crop_and_resize",
        )
    ]
    graph = check(graph_of(nodes, [x], ["y"], constants), ["Resize"])
    assert graph.nodes[0].inputs == ("x", "roi", "", "sizes")


def test_no_axes_to_reduce() -> None:
    constants = {"a": np.zeros(0, np.int64)}
    graph = graph_of([node("ReduceSum", "x a", "y")], [X], ["y"], constants)
    assert check(graph, ["ReduceSum"], x=DATA).nodes[0].inputs == ("x",)
    nodes = [node("ReduceSum", "x a", "y", noop_with_empty_axes=1)]
    graph = check(graph_of(nodes, [X], ["y"], constants), ["ReduceSum"])
    assert graph.nodes[0].inputs == ("x", "a")


def test_outputs_that_nobody_reads() -> None:
    x = value("x", [1, 1, 4])
    nodes = [node("MaxPool", "x", "y i", kernel_shape=[2])]
    assert check(graph_of(nodes, [x], ["y"]), ["MaxPool"]).nodes[0].outputs == ("y",)
    assert check(graph_of(nodes, [x], ["y", "i"]), ["MaxPool"]).nodes[0].outputs == ("y", "i")
    constants = {
        "w": np.ones((1, 8, 4), np.float32),
        "r": np.ones((1, 8, 2), np.float32),
    }
    nodes = [node("LSTM", "x w r", "a b c", hidden_size=2)]
    graph = check(graph_of(nodes, [x], ["c"], constants), ["LSTM"])
    assert graph.nodes[0].outputs == ("a", "", "c")


def test_a_reader_in_a_body_counts() -> None:
    use = branch("t", [helper.make_node("Identity", ["i"], ["r"])], "r")
    nodes = [
        node("MaxPool", "x", "y i", kernel_shape=[2]),
        helper.make_node("If", ["c"], ["z"], then_branch=use, else_branch=use),
    ]
    inputs = [value("x", [1, 1, 4]), value("c", [], BOOL)]
    graph = check(graph_of(nodes, inputs, ["y", "z"]), ["MaxPool", "If"])
    assert graph.nodes[0].outputs == ("y", "i")


def test_bodies_are_rewritten() -> None:
    body = branch("t", [helper.make_node("Sum", ["x"], ["r"])], "r")
    other = branch("e", [helper.make_node("Neg", ["x"], ["r"])], "r")
    outer = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other)
    graph = load_model(model([outer], [X, value("c", [], BOOL)], ["y"])).graph
    for condition in (True, False):
        done = check(graph, ["If"], x=DATA, c=np.array(condition))
    assert [n.op_type for n in done.nodes[0].bodies["then_branch"].nodes] == ["Identity"]


@pytest.mark.parametrize(
    ("to", "kept"), [(TensorProto.FLOAT16, False), (TensorProto.FLOAT8E5M2, True)]
)
def test_saturate_is_for_float8(to: int, kept: bool) -> None:
    graph = graph_of([node("Cast", "x", "y", to=to, saturate=0)], [X], ["y"])
    assert ("saturate" in check(graph, ["Cast"]).nodes[0].attrs) == kept


def test_other_domains_are_left_alone() -> None:
    nodes = [helper.make_node("Sum", ["x"], ["y"], domain="my.ops")]
    graph = load_model(model(nodes, [X], ["y"], domains={"my.ops": 1})).graph
    check(graph, ["Sum"])
