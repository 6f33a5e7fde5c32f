"""The importer says in words what is wrong with a broken file, and never fails otherwise."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper

from engine.errors import ModelError
from engine.importer import load_model
from tests.test_importer import BOOL, RELU, branch, model, value


class TestMalformed:
    @pytest.mark.parametrize("data", [b"", b"\x08\x07", b"not a model", b"\x00" * 9])
    def test_no_model(self, data: bytes, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"no graph|no ONNX model"):
            load_model(data)
        (tmp_path / "m.onnx").write_bytes(data)
        with pytest.raises(ModelError):
            load_model(tmp_path / "m.onnx")

    def test_truncated(self) -> None:
        data = model(RELU, [value("x", [2])], ["y"]).SerializeToString()
        with pytest.raises(ModelError, match="truncated"):
            load_model(data[:-3])

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            load_model(tmp_path / "none.onnx")

    @pytest.mark.parametrize(
        ("nodes", "message"),
        [
            ([("Relu", ["nowhere"], ["y"])], "reads 'nowhere', which nothing provides"),
            ([("Relu", ["x"], ["y"]), ("Neg", ["x"], ["y"])], "writes 'y', which exists already"),
            ([("Relu", ["x"], ["x"])], "writes 'x', which exists already"),
            ([("Relu", ["x"], ["z"])], "output 'y' is produced by no node"),
            ([("Add", ["x", "b"], ["y"]), ("Neg", ["y"], ["b"])], "cycle"),
        ],
    )
    def test_structure(self, nodes: list[tuple[str, list[str], list[str]]], message: str) -> None:
        proto = model([helper.make_node(*n) for n in nodes], [value("x", [2])], ["y"])
        with pytest.raises(ModelError, match=message):
            load_model(proto)

    def test_duplicated_names(self) -> None:
        proto = model(RELU, [value("x", [2]), value("x", [2])], ["y"])
        with pytest.raises(ModelError, match="several inputs"):
            load_model(proto)
        proto = model(RELU, [value("x", [2])], ["y"], {"w": np.zeros(2)})
        proto.graph.initializer.append(proto.graph.initializer[0])
        with pytest.raises(ModelError, match="two initializers are named 'w'"):
            load_model(proto)

    def test_type_of_an_initializer_and_its_input(self) -> None:
        proto = model(RELU, [value("x", [2]), value("w", [2])], ["y"], {"w": np.zeros(2)})
        with pytest.raises(ModelError, match="declared as float32"):
            load_model(proto)

    def test_data_of_the_wrong_length(self) -> None:
        proto = model(RELU, [value("x", [2])], ["y"], {"w": np.zeros(2)})
        proto.graph.initializer[0].raw_data = bytes(15)
        with pytest.raises(ModelError, match=r"'w' float64\[2\] needs 16 bytes .* has 15"):
            load_model(proto)

    def test_element_type_that_does_not_exist(self) -> None:
        proto = model(RELU, [value("x", [2], 99)], ["y"])
        with pytest.raises(ModelError, match="unknown element type 99"):
            load_model(proto)

    @pytest.mark.parametrize("opset", [1, 29])
    def test_opset_out_of_range(self, opset: int) -> None:
        node = helper.make_node("Relu" if opset > 28 else "Caffe2Thing", ["x"], ["y"])
        proto = model([node], [value("x", [2])], ["y"], opset=opset)
        with pytest.raises(ModelError, match=f"opset {opset}"):
            load_model(proto)

    def test_no_opset(self) -> None:
        proto = model(RELU, [value("x", [2])], ["y"])
        del proto.opset_import[:]
        with pytest.raises(ModelError, match=r"imports no ai\.onnx opset"):
            load_model(proto)

    def test_recursive_function(self) -> None:
        proto = model(
            [helper.make_node("F", ["x"], ["y"], domain="f")], [value("x", [2])], ["y"],
            domains={"f": 1},
        )  # fmt: skip
        calls = [helper.make_node("F", ["a"], ["b"], domain="f")]
        imports = [helper.make_opsetid("f", 1)]
        proto.functions.append(helper.make_function("f", "F", ["a"], ["b"], calls, imports))
        with pytest.raises(ModelError, match="call each other in a circle: F -> F"):
            load_model(proto)


@pytest.mark.slow
def test_damaged_files_never_do_worse_than_a_model_error() -> None:
    rng = random.Random(0)
    then = branch("t", [helper.make_node("Add", ["x", "w"], ["r"])], "r")
    other = [
        helper.make_node("Unsqueeze", ["x"], ["u"], axes=[0]),
        helper.make_node("Squeeze", ["u"], ["r"], axes=[0]),
    ]
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=branch("e", other, "r")),
        helper.make_node("Frob", ["y"], ["z"], domain="my.ops"),
    ]
    weights = {"w": np.arange(3, dtype=np.float32)}
    inputs = [value("x", ["N", 3]), value("c", [], BOOL)]
    data = model(nodes, inputs, ["z"], weights, opset=11, domains={"my.ops": 1}).SerializeToString()
    refused = 0
    for _ in range(1500):
        damaged = bytearray(data[: rng.randrange(len(data))] if rng.random() < 0.1 else data)
        for _ in range(rng.choice([0, 1, 1, 2])):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            load_model(bytes(damaged))
        except ModelError:
            refused += 1
    assert 300 < refused < 1500


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (helper.make_node("Relu", ["x", "x"], ["y"]), "has 2 inputs, from 1 to 1 are due"),
        (helper.make_node("Add", ["", "x"], ["y"]), "lacks its input A"),
        (helper.make_node("Relu", ["x"], ["y", "z"]), "has 2 outputs, at most 1"),
        (helper.make_node("Concat", ["x", "x"], ["y"]), "lacks its attribute axis"),
        (helper.make_node("Softmax", ["x"], ["y"], axis=1.0), "axis as FLOAT, INT is due"),
        (helper.make_node("Split", ["x"], ["y", "z"], num_outputs=1), "num_outputs is 1"),
        (
            helper.make_node("Softmax", ["x"], ["y"], axes=1),
            r"\['axes'\], which no version of it knows",
        ),
    ],
)
def test_nodes_that_contradict_their_schema(node: onnx.NodeProto, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(model([node], [value("x", [2])], ["y"], opset=11))


def test_a_constant_of_another_type_than_its_attribute_says() -> None:
    node = helper.make_node("Constant", [], ["y"])
    node.attribute.append(helper.make_attribute("value_float", "text"))
    with pytest.raises(ModelError, match="'value_float' is of another type"):
        load_model(model([node], [], ["y"], opset=13))


def test_a_size_whose_name_is_no_text() -> None:
    proto = model([helper.make_node("Neg", ["x"], ["y"])], [value("x", ["width"])], ["y"])
    damaged = proto.SerializeToString().replace(b"width", b"w\xeedth")
    with pytest.raises(ModelError, match=r"w\\xeedth.*is no UTF-8 text"):
        load_model(damaged)


def test_a_damaged_local_function_is_named() -> None:
    calls = [helper.make_node("Neg", ["nowhere"], ["b"])]
    function = helper.make_function("f", "F", ["a"], ["b"], calls, [helper.make_opsetid("", 11)])
    node = helper.make_node("F", ["x"], ["y"], domain="f")
    proto = model([node], [value("x", [2])], ["y"], domains={"f": 1})
    proto.functions.append(function)
    with pytest.raises(ModelError, match=r"local function 'F'.*reads 'nowhere'"):
        load_model(proto)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n", "pointer of Git LFS"),
        (b"\n<!DOCTYPE html><html>not found</html>", "page of text"),
        (b"\x1f\x8b\x08\x00rest", "compressed by gzip"),
        (b"PK\x03\x04rest", "ZIP archive"),
        (b"\x89HDF\r\n", "HDF5"),
        (b"\xff\xffrest", "damaged or truncated"),
    ],
)
def test_files_of_other_kinds_are_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=f"model.onnx is no ONNX model.*{words}"):
        load_model(path)


def test_a_model_without_a_graph_is_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.write_bytes(b"")
    with pytest.raises(ModelError, match=r"empty\.onnx has no graph"):
        load_model(path)
