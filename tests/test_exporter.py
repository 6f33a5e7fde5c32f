"""The exporter: graphs and single nodes to models that other tools accept."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from engine.errors import ModelError
from engine.exporter import to_model
from engine.importer import load_model
from engine.ir import Graph
from engine.passes import run_passes
from tests.test_importer import INT64, branch, model, value

X = value("x", ["N", 3])
WEIGHT = {"w": np.arange(3, dtype=np.float32)}
DATA = np.arange(6, dtype=np.float32).reshape(2, 3)


def typed(nodes: list[onnx.NodeProto], outputs: list[str], *inputs: onnx.ValueInfoProto) -> Graph:
    return run_passes(load_model(model(nodes, list(inputs), outputs, WEIGHT)).graph).graph


def test_a_typed_graph_passes_the_checker() -> None:
    graph = typed([helper.make_node("Add", ["x", "w"], ["y"])], ["y"], X)
    proto = to_model(graph)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "N"
    (y,) = ReferenceEvaluator(proto).run(None, {"x": DATA})
    assert np.array_equal(y, DATA + WEIGHT["w"])


def test_nodes_that_share_a_name_are_told_apart() -> None:
    nodes = [
        helper.make_node("Neg", [source], [result], name=name)
        for source, result, name in (
            *(("x", "a", "n"), ("a", "b", "n"), ("b", "c", "n_2")),
            *(("c", "d", ""), ("d", "y", "")),
        )
    ]
    graph = load_model(model(nodes, [X], ["y"], {})).graph
    nodes_made = [
        dataclasses.replace(n, name=o.name) for n, o in zip(graph.nodes, nodes, strict=True)
    ]
    made = to_model(dataclasses.replace(graph, nodes=tuple(nodes_made))).graph.node
    assert [n.name for n in made] == ["n", "n_2", "n_2_2", "", ""]


def test_constants_as_inputs() -> None:
    graph = typed([helper.make_node("Add", ["x", "w"], ["y"])], ["y"], X)
    proto = to_model(graph, constants=False)
    assert [i.name for i in proto.graph.input] == ["x", "w"]
    assert not proto.graph.initializer


def test_every_kind_of_attribute_comes_back() -> None:
    node = helper.make_node("Frob", ["x"], ["y"], domain="my.ops")
    body = branch("b", [helper.make_node("Neg", ["x"], ["r"])], "r")
    tensor = onnx.numpy_helper.from_array(np.eye(2, dtype=np.float16))
    kind = helper.make_tensor_type_proto(1, [2, "K"])
    for name, given in {
        "i": 3,
        "f": 0.5,
        "s": "ä",
        "ints": [1, 2],
        "floats": [0.5],
        "strings": ["a", ""],
        "t": tensor,
        "ts": [tensor],
        "g": body,
        "gs": [body, body],
        "tp": kind,
        "tps": [helper.make_sequence_type_proto(kind)],
    }.items():
        node.attribute.append(helper.make_attribute(name, given))
    graph = load_model(model([node], [X], ["y"], domains={"my.ops": 1})).graph
    again = load_model(to_model(graph)).graph
    first, second = graph.nodes[0].attrs, again.nodes[0].attrs
    assert first.keys() == second.keys()
    for name in ("i", "f", "s", "ints", "floats", "strings", "tp", "tps"):
        assert first[name] == second[name]
    assert np.array_equal(first["t"], second["t"]) and second["t"].dtype == np.float16
    assert [b.to_text() for b in first["gs"]] == [b.to_text() for b in second["gs"]]
    assert first["g"].captures == second["g"].captures == ("x",)


def test_an_empty_list_keeps_the_type_of_the_schema() -> None:
    node = helper.make_node("StringNormalizer", ["x"], ["y"], stopwords=["a"])
    text = value("x", [2], onnx.TensorProto.STRING)
    graph = load_model(model([node], [text], ["y"])).graph
    changed = graph.nodes[0].replace(attrs={"stopwords": []})
    proto = to_model(graph.rebuild([changed]))
    assert proto.graph.node[0].attribute[0].type == onnx.AttributeProto.STRINGS


def test_a_node_of_an_older_form_is_refused_in_a_whole_model() -> None:
    graph = load_model(model([helper.make_node("Relu", ["x"], ["y"])], [X], ["y"])).graph
    old = graph.rebuild([graph.nodes[0].replace(since_version=6)])
    with pytest.raises(ModelError, match="Relu 'y' is of version 6"):
        to_model(old)


def test_types_of_sequences() -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["q"]),
        helper.make_node("SequenceAt", ["q", "i"], ["y"]),
    ]
    proto = to_model(typed(nodes, ["y"], X, value("i", [], INT64)))
    (q,) = (v for v in proto.graph.value_info if v.name == "q")
    assert q.type.WhichOneof("value") == "sequence_type"
