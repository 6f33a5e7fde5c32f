"""The importer: files of all forms to graphs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from engine import dims
from engine.errors import ModelError
from engine.exporter import to_model
from engine.importer import load_model
from engine.ir import Graph, TensorType
from engine.passes import run_passes
from tests.real_models import RealModel, real_models

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, shape: list[Any] | None, code: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, code, shape)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[str],
    initializers: dict[str, Any] | None = None,
    *,
    opset: int = 28,
    domains: dict[str, int] | None = None,
    **more: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [value(n, None) for n in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (initializers or {}).items()],
    )
    imports = [helper.make_opsetid(d, v) for d, v in {"": opset, **(domains or {})}.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, **more)


def run(graph: Graph, *feed: np.ndarray) -> list[Any]:
    names = [n for n in graph.inputs if graph.constant(n) is None]
    return ReferenceEvaluator(to_model(graph)).run(None, dict(zip(names, feed, strict=True)))


RELU = [helper.make_node("Relu", ["x"], ["y"], name="r")]


class TestForms:
    def test_path_bytes_and_proto_give_the_same(self, tmp_path: Path) -> None:
        proto = model(RELU, [value("x", ["N", 3])], ["y"])
        path = tmp_path / "größe.onnx"
        onnx.save(proto, path)
        for source in (path, str(path), path.read_bytes(), proto):
            graph = load_model(source).graph
            assert [n.op_type for n in graph.nodes] == ["Relu"]
            assert graph.values["x"].tensor.shape == (dims.symbol("N"), 3)

    def test_text_form(self, tmp_path: Path) -> None:
        path = tmp_path / "m.onnxtxt"
        onnx.save(model(RELU, [value("x", [2])], ["y"]), path)
        assert load_model(path).graph.inputs == ("x",)

    def test_the_given_proto_is_not_changed(self) -> None:
        proto = model(
            [helper.make_node("Squeeze", ["x"], ["y"], axes=[0])],
            [value("x", [1, 3])],
            ["y"],
            {"w": np.zeros(5000, np.float32)},
            opset=11,
        )
        before = proto.SerializeToString()
        load_model(proto)
        assert proto.SerializeToString() == before

    def test_metadata(self) -> None:
        proto = model(RELU, [value("x", ["N", None])], ["y"], producer_name="p", model_version=3)
        proto.metadata_props.add(key="labels", value="a,b")
        loaded = load_model(proto)
        assert loaded.metadata == {"labels": "a,b"}
        assert (loaded.producer_name, loaded.version, loaded.graph_name) == ("p", 3, "g")
        assert loaded.inputs[0].dims == ("N", None)
        assert loaded.outputs[0].name == "y"
        assert loaded.opset == {"": 28}

    def test_sizes_without_a_name_get_symbols_of_their_own(self) -> None:
        proto = model(RELU, [value("x", ["?", "?", None, 0, -1, "x_0"])], ["y"])
        shape = load_model(proto).graph.values["x"].tensor.shape
        assert [str(d) for d in shape] == ["x_0_", "x_1", "x_2", "x_3", "x_4", "x_0"]

    def test_initializers_that_are_inputs_stay_optional(self) -> None:
        proto = model(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            [value("x", [2]), value("w", [2])],
            ["y"],
            {"w": np.ones(2, np.float32)},
        )
        loaded = load_model(proto)
        assert loaded.graph.inputs == ("x", "w")
        assert loaded.graph.constant("w").tolist() == [1, 1]
        assert [d.name for d in loaded.inputs] == ["x"]
        assert [d.name for d in loaded.overridable] == ["w"]

    def test_unknown_operators_are_kept(self) -> None:
        nodes = [
            helper.make_node("Frob", ["x"], ["a"], domain="my.ops", alpha=2),
            helper.make_node("ImageScaler", ["a"], ["y"], scale=0.5),
        ]
        graph = load_model(model(nodes, [value("x", [2])], ["y"], opset=9, domains={"my.ops": 4}))
        frob, scaler = graph.graph.nodes
        assert (frob.domain, frob.since_version, frob.attrs) == ("my.ops", 1, {"alpha": 2})
        assert (scaler.domain, scaler.since_version, scaler.attrs["scale"]) == ("", 9, 0.5)

    def test_nodes_know_their_version_and_origin(self) -> None:
        nodes = [
            helper.make_node("Reshape", ["x", "s"], ["a"], name="flat"),
            helper.make_node("Relu", ["a"], ["y"]),
        ]
        proto = model(nodes, [value("x", [4])], ["y"], {"s": np.array([2, 2])}, opset=13)
        reshape, relu = load_model(proto).graph.nodes
        assert (reshape.since_version, relu.since_version) == (25, 14)
        assert (reshape.origin, relu.origin) == (("flat",), ("Relu(y)",))

    def test_nodes_out_of_order_are_sorted(self) -> None:
        nodes = [helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Neg", ["x"], ["a"])]
        graph = load_model(model(nodes, [value("x", [2])], ["y"])).graph
        assert [n.op_type for n in graph.nodes] == ["Neg", "Relu"]


class TestConstants:
    @pytest.mark.parametrize(
        ("attribute", "given", "dtype"),
        [
            ("value_int", 3, np.int64),
            ("value_ints", [3, 4], np.int64),
            ("value_float", 0.5, np.float32),
            ("value_floats", [0.5, 2.0], np.float32),
            ("value_string", "ab", np.object_),
            ("value_strings", ["ab", "c"], np.object_),
            ("value", numpy_helper.from_array(np.eye(2, dtype=np.float16)), np.float16),
        ],
    )
    def test_every_form_of_constant(self, attribute: str, given: Any, dtype: type) -> None:
        node = helper.make_node("Constant", [], ["y"], **{attribute: given})
        graph = load_model(model([node], [], ["y"])).graph
        assert graph.nodes == ()
        expected = np.eye(2) if attribute == "value" else given
        assert graph.constant("y").dtype == dtype
        assert graph.constant("y").tolist() == np.asarray(expected).tolist()

    @pytest.mark.parametrize("linear", [True, False])
    def test_sparse_tensors_become_dense(self, linear: bool) -> None:
        indices = np.array([1, 5]) if linear else np.array([[0, 1], [1, 2]])
        sparse = helper.make_sparse_tensor(
            numpy_helper.from_array(np.array([3, 4], np.float32), "w"),
            numpy_helper.from_array(indices),
            [2, 3],
        )
        proto = model([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [2, 3])], ["y"])
        proto.graph.sparse_initializer.append(sparse)
        proto.graph.node.append(helper.make_node("Constant", [], ["c"], sparse_value=sparse))
        proto.graph.output.append(value("c", None))
        graph = load_model(proto).graph
        for name in ("w", "c"):
            assert graph.constant(name).tolist() == [[0, 3, 0], [0, 0, 4]]

    @pytest.mark.parametrize(
        "array",
        [
            np.array([-8, 7, 3], ml_dtypes.int4),
            np.array([0, 1, 3, 2, 1], ml_dtypes.uint2),
            np.array([1.5, -2], ml_dtypes.bfloat16),
            np.array([1.5, -2], ml_dtypes.float8_e4m3fn),
            np.array([True, False]),
            np.array(["ä", ""], object),
            np.array(7, np.uint64),
            np.zeros((0, 3), np.int8),
            np.array([1 + 2j], np.complex64),
        ],
        ids=lambda a: str(a.dtype),
    )
    def test_element_types(self, array: np.ndarray, tmp_path: Path) -> None:
        proto = model([helper.make_node("Identity", ["w"], ["y"])], [], ["y"], {"w": array})
        found = load_model(proto).graph.constant("w")
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tolist() == array.tolist()
        again = load_model(to_model(load_model(proto).graph)).graph.constant("w")
        assert again.tolist() == array.tolist()

    def test_typed_data_fields(self) -> None:
        tensor = helper.make_tensor("w", TensorProto.FLOAT16, [2], [1.5, -2.0])
        assert not tensor.HasField("raw_data")
        proto = model([helper.make_node("Identity", ["w"], ["y"])], [], ["y"])
        proto.graph.initializer.append(tensor)
        assert load_model(proto).graph.constant("w").tolist() == [1.5, -2.0]


def with_external(folder: Path, array: np.ndarray, **entries: str) -> Path:
    """A model whose weight `w` lies in another file."""
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", None)], ["y"], opset=11)
    tensor = proto.graph.initializer.add(name="w", data_type=FLOAT, dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": "w.bin", **entries}.items():
        tensor.external_data.add(key=key, value=text)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


class TestExternalData:
    @pytest.mark.parametrize("size", [3, 5000])
    def test_small_and_large(self, tmp_path: Path, size: int) -> None:
        array = np.arange(size, dtype=np.float32)
        (tmp_path / "w.bin").write_bytes(b"\0" * 6 + array.tobytes() + b"\1")
        path = with_external(tmp_path, array, offset="6", length=str(array.nbytes))
        found = load_model(path).graph.constant("w")
        assert np.array_equal(found, array)

    def test_a_length_that_is_not_given_is_the_tensors(self, tmp_path: Path) -> None:
        (tmp_path / "w.bin").write_bytes(np.arange(9, dtype=np.float32).tobytes())
        path = with_external(tmp_path, np.zeros(3, np.float32), offset="8")
        assert load_model(path).graph.constant("w").tolist() == [2, 3, 4]

    def test_large_ones_are_mapped_not_read(self, tmp_path: Path) -> None:
        array = np.arange(5000, dtype=np.float32)
        (tmp_path / "w.bin").write_bytes(array.tobytes())
        found = load_model(with_external(tmp_path, array)).graph.constant("w")
        while not isinstance(found, np.memmap):
            found = found.base
            assert found is not None

    def test_a_linked_folder_is_followed(self, tmp_path: Path) -> None:
        store, shown = tmp_path / "store", tmp_path / "shown"
        store.mkdir(), shown.mkdir()
        array = np.arange(3, dtype=np.float32)
        (store / "w.bin").write_bytes(array.tobytes())
        (store / "blob").write_bytes(with_external(store, array).read_bytes())
        os.symlink(store / "blob", shown / "m.onnx")
        os.symlink(store / "w.bin", shown / "w.bin")
        assert load_model(shown / "m.onnx").graph.constant("w").tolist() == [0, 1, 2]

    @pytest.mark.parametrize("location", ["../w.bin", "/etc/hostname", "a/../../w.bin", ""])
    def test_outside_the_folder(self, tmp_path: Path, location: str) -> None:
        folder = tmp_path / "inner"
        folder.mkdir()
        (tmp_path / "w.bin").write_bytes(bytes(12))
        path = with_external(folder, np.zeros(3, np.float32), location=location)
        with pytest.raises(ModelError, match="outside the model's folder"):
            load_model(path)

    def test_a_link_to_the_outside(self, tmp_path: Path) -> None:
        folder = tmp_path / "inner"
        folder.mkdir()
        (tmp_path / "w.bin").write_bytes(bytes(12))
        os.symlink(tmp_path / "w.bin", folder / "w.bin")
        with pytest.raises(ModelError, match="outside the model's folder"):
            load_model(with_external(folder, np.zeros(3, np.float32)))

    @pytest.mark.parametrize(
        ("content", "entries", "message"),
        [
            (None, {}, "there is no such file"),
            (b"\0" * 11, {}, "needs 12 bytes of data and has 11"),
            (b"\0" * 12, {"offset": "4", "length": "12"}, "it has 12"),
            (b"\0" * 12, {"offset": "-4"}, "is no size"),
            (b"\0" * 12, {"length": "8"}, "needs 12 bytes of data and has 8"),
        ],
    )
    def test_broken(
        self, tmp_path: Path, content: bytes | None, entries: dict[str, str], message: str
    ) -> None:
        if content is not None:
            (tmp_path / "w.bin").write_bytes(content)
        with pytest.raises(ModelError, match=message):
            load_model(with_external(tmp_path, np.zeros(3, np.float32), **entries))

    @pytest.mark.parametrize("location", ["0", "#0"])
    def test_numbers_are_files_like_others(self, tmp_path: Path, location: str) -> None:
        path = with_external(tmp_path, np.zeros(3, np.float32), location=location)
        proto = onnx.load(path, load_external_data=False)
        large = numpy_helper.from_array(np.zeros(5000, np.float32), "large")
        proto.graph.initializer.insert(0, large)
        path.write_bytes(proto.SerializeToString())
        with pytest.raises(ModelError, match="there is no such file"):
            load_model(path)
        (tmp_path / location).write_bytes(np.arange(3, dtype=np.float32).tobytes())
        assert load_model(path).graph.constant("w").tolist() == [0, 1, 2]

    def test_a_model_in_memory_has_no_folder(self, tmp_path: Path) -> None:
        path = with_external(tmp_path, np.zeros(3, np.float32))
        with pytest.raises(ModelError, match="load it by its path"):
            load_model(path.read_bytes())


def branch(name: str, nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [value(output, None)])


class TestBodies:
    def test_names_are_unique_and_captures_explicit(self) -> None:
        weights = numpy_helper.from_array(np.full(2000, 3, np.float32), "w")
        then = branch("t", [helper.make_node("Add", ["x", "w"], ["b"])], "b")
        then.initializer.append(weights)
        inner = branch("i", [helper.make_node("Neg", ["b"], ["r"])], "r")
        other = [
            helper.make_node("Mul", ["x", "x"], ["b"]),
            helper.make_node("If", ["c"], ["r"], then_branch=inner, else_branch=inner),
        ]
        node = helper.make_node(
            "If", ["c"], ["y"], then_branch=then, else_branch=branch("e", other, "r")
        )
        proto = model([node], [value("x", [2000]), value("c", [], BOOL)], ["y"], opset=13)
        graph = load_model(proto).graph
        names = [n for g, _ in graph.walk() for n in g.values if n not in g.captures]
        bodies = [b for _, n in graph.walk() for b in n.bodies.values()]
        written = [w for _, n in graph.walk() for w in n.writes]
        assert len(written) == len(set(written)) == 6
        assert set(written) <= set(names)
        assert set(graph.nodes[0].captures) == {"x", "c"}
        assert sorted(b.captures for b in bodies) == [("b",), ("b",), ("x",), ("x", "c")]
        for condition in (True, False):
            x = np.arange(2000, dtype=np.float32)
            (y,) = run(graph, x, np.array(condition))
            assert np.array_equal(y, x + 3 if condition else -x * x)

    def test_a_body_may_give_out_an_outer_value(self) -> None:
        then = branch("t", [], "x")
        other = branch("e", [helper.make_node("Neg", ["x"], ["n"])], "n")
        node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
        graph = load_model(model([node], [value("x", [2]), value("c", [], BOOL)], ["y"])).graph
        assert graph.nodes[0].bodies["then_branch"].outputs == ("x",)
        assert graph.nodes[0].captures == ("x",)

    def test_bodies_are_converted_too(self) -> None:
        body = helper.make_graph(
            [
                helper.make_node("Squeeze", ["v"], ["s"], axes=[0]),
                helper.make_node("Unsqueeze", ["s"], ["v2"], axes=[0]),
                helper.make_node("Identity", ["c"], ["c2"]),
            ],
            "b",
            [value("i", [], INT64), value("c", [], BOOL), value("v", [1, 2])],
            [value("c2", [], BOOL), value("v2", [1, 2]), value("s", [2])],
        )
        node = helper.make_node("Loop", ["m", "", "x"], ["y", "z"], body=body)
        graph = load_model(
            model([node], [value("x", [1, 2]), value("m", [], INT64)], ["y", "z"], opset=11)
        ).graph
        squeeze = graph.nodes[0].bodies["body"].nodes[0]
        assert squeeze.since_version == 25
        assert len(squeeze.inputs) == 2

    def test_local_functions_with_attributes_and_another_opset(self) -> None:
        inner = helper.make_function(
            "f",
            "Scale",
            ["a"],
            ["b"],
            [
                helper.make_node("Constant", [], ["k"]),
                helper.make_node("Squeeze", ["a"], ["s"], axes=[0]),
                helper.make_node("Mul", ["s", "k"], ["b"]),
            ],
            [helper.make_opsetid("", 11)],
            ["value_float"],
        )
        attribute = inner.node[0].attribute.add(name="value_float", ref_attr_name="value_float")
        attribute.type = onnx.AttributeProto.FLOAT
        nodes = [
            helper.make_node("Scale", ["x"], ["p"], domain="f", value_float=2.0),
            helper.make_node("Scale", ["x"], ["q"], domain="f", value_float=3.0),
            helper.make_node("Add", ["p", "q"], ["y"]),
        ]
        proto = model(nodes, [value("x", [1, 2])], ["y"], opset=17, domains={"f": 1})
        proto.functions.append(inner)
        graph = load_model(proto).graph
        (y,) = run(graph, np.array([[1, 2]], np.float32))
        assert y.tolist() == [5, 10]


@pytest.mark.slow
@real_models()
def test_real_models_keep_their_results(model: RealModel) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    graph = load_model(model.fetch()).graph
    proto = to_model(graph)
    proto.ir_version = 10
    for entry in proto.opset_import:
        if not entry.domain:
            # the newest that ONNX Runtime knows; these graphs hold no form that changed since
            entry.version = 26
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    feed = model.inputs()
    for found, wanted in zip(session.run(None, feed), model.reference(feed), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    assert all(isinstance(graph.values[n].type, TensorType) for n in graph.inputs)


def test_a_function_that_gives_its_input_on() -> None:
    """The inliner of onnx forgets the result, which the converter then misses."""
    text = """<ir_version: 10, opset_import: ["": 22, "own": 1]>
    g (float[n] x) => (float[n] y) { t = own.f(x) y = Neg(t) }
    <domain: "own", opset_import: ["": 22]> f (x) => (x) { k = Abs(x) }"""
    with pytest.raises(ModelError, match="Input t is undefined"):
        load_model(onnx.parser.parse_model(text))


def test_models_over_two_gigabytes(tmp_path: Path) -> None:
    rows = 1 << 19
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(rows * 1100 * 4)  # a hole: takes no space on disk
    proto = model(
        [helper.make_node("Gather", ["w", "x"], ["g"]),
         helper.make_node("Squeeze", ["g"], ["y"], axes=[0])],
        [value("x", [1], INT64)],
        ["y"],
        opset=11,
    )  # fmt: skip
    tensor = proto.graph.initializer.add(name="w", data_type=FLOAT, dims=[rows, 1100])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    graph = run_passes(load_model(tmp_path / "m.onnx").graph).graph
    assert graph.constant("w").nbytes > 2 << 30
    assert [n.op_type for n in graph.nodes] == ["Gather", "Squeeze"]
