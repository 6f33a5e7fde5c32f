"""Inference: types, contents, folding, guards, and control flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine import dims
from engine.errors import ModelError, ShapeError
from engine.importer import load_model
from engine.ir import Graph, OptionalType, SequenceType, TensorType
from engine.passes import run_passes
from engine.passes.infer import infer
from tests.real_models import RealModel, real_models
from tests.test_importer import BOOL, INT64, branch, model, value


def graph_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[str],
    initializers: dict[str, Any] | None = None,
    **more: Any,
) -> Graph:
    return load_model(model(nodes, inputs, outputs, initializers, **more)).graph


def node(op_type: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attrs)


def shown(graph: Graph, name: str) -> str:
    return str(graph.values[name].type)


X = value("x", ["N", 4, "W"])


class TestSymbolicShapes:
    def test_reshape_by_computed_sizes_vanishes(self) -> None:
        nodes = [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "n"),
            node("Gather", "s two", "w"),
            node("Mul", "w four", "m"),
            node("Unsqueeze", "n zero1", "n1"),
            node("Unsqueeze", "m zero1", "m1"),
            node("Concat", "n1 m1", "target", axis=0),
            node("Reshape", "x target", "y"),
        ]
        constants = {
            "zero": np.array(0),
            "two": np.array(2),
            "four": np.array(4),
            "zero1": np.array([0]),
        }
        graph = infer(graph_of(nodes, [X], ["y"], constants)).graph
        assert shown(graph, "y") == "float32[N, 4*W]"
        assert [str(d) for d in graph.values["target"].dims] == ["N", "4*W"]

    def test_a_node_that_stays_writes_no_constants(self) -> None:
        """Of the parts of a shape some are numbers; what is computed from these is constant."""
        nodes = [
            node("Shape", "x", "s"),
            node("Split", "s", "n c w", num_outputs=3),
            node("Add", "c c", "d"),
            node("Reshape", "x d", "y"),
        ]
        graph = infer(graph_of(nodes, [X], ["y", "n", "c"])).graph
        graph.check()
        assert [n.op_type for n in graph.nodes] == ["Shape", "Split", "Reshape"]
        assert [list(graph.values[n].dims) for n in "nc"] == [[dims.symbol("N")], [4]]
        np.testing.assert_array_equal(graph.constant("d"), [8])

    def test_known_contents_become_constants(self) -> None:
        nodes = [
            node("Shape", "x", "s"),
            node("Gather", "s one", "c"),
            node("Cast", "c", "f", to=TensorProto.FLOAT),
            node("Add", "f f", "d"),
            node("Add", "x d", "y"),
        ]
        result = infer(graph_of(nodes, [X], ["y"], {"one": np.array(1)}))
        assert [n.op_type for n in result.graph.nodes] == ["Shape", "Add"]
        assert result.graph.constant("d") == np.float32(8)
        assert result.graph.constant("d").dtype == np.float32
        assert len(result.applied) == 3

    def test_data_decide_about_a_size(self) -> None:
        graph = infer(
            graph_of([node("NonZero", "x", "y"), node("Neg", "y", "z")], [X], ["z"])
        ).graph
        assert shown(graph, "y") == shown(graph, "z") == "int64[3, y_1]"

    def test_unknown_rank(self) -> None:
        nodes = [node("Relu", "x", "a"), node("MatMul", "a w", "y")]
        weight = {"w": np.zeros((3, 2), np.float32)}
        graph = infer(graph_of(nodes, [value("x", None)], ["y"], weight)).graph
        assert shown(graph, "a") == "float32[?]"
        assert graph.values["y"].tensor.dtype.name == "float32"

    def test_declared_types_are_not_trusted(self) -> None:
        proto = model([node("Relu", "x", "a"), node("Neg", "a", "y")], [X], ["y"])
        proto.graph.value_info.append(value("a", [7, 7]))
        proto.graph.output[0].CopyFrom(value("y", [9], INT64))
        graph = infer(load_model(proto).graph).graph
        assert shown(graph, "a") == shown(graph, "y") == "float32[N, 4, W]"

    def test_a_second_run_changes_nothing(self) -> None:
        nodes = [node("NonZero", "x", "y"), node("Transpose", "y", "z")]
        once = infer(graph_of(nodes, [X], ["z"])).graph
        twice = infer(once)
        assert twice.graph.to_text() == once.to_text()
        assert twice.applied == ()


class TestOperatorsWithoutARule:
    @pytest.fixture(autouse=True)
    def no_rules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("engine.ops.definition", lambda node: None)

    def test_a_size_that_passes_through_stays_a_symbol(self) -> None:
        result = infer(graph_of([node("Relu", "x", "y")], [X], ["y"]), {"N": 2, "W": 5})
        assert shown(result.graph, "y") == "float32[N, 4, W]"
        assert result.guards == ()

    def test_numbers_under_guards(self) -> None:
        nodes = [node("Concat", "x x", "y", axis=2)]
        result = infer(graph_of(nodes, [X], ["y"]), {"N": 2, "W": 5})
        assert shown(result.graph, "y") == "float32[2, 4, 10]"
        assert {(g.kind, str(g.expr)) for g in result.guards} == {
            ("zero", "N - 2"),
            ("zero", "W - 5"),
        }
        assert "Concat" in str(result.guards[0])
        assert all(g.holds({"N": 2, "W": 5}) for g in result.guards)

    def test_no_numbers(self) -> None:
        graph = infer(graph_of([node("Concat", "x x", "y", axis=2)], [X], ["y"])).graph
        assert shown(graph, "y") == "float32[N, 4, y_2]"

    def test_sizes_that_are_seen_as_zero_elsewhere(self) -> None:
        q = value("q", ["B", 2, "L", 8])
        k = value("k", ["B", 2, "P", 8])
        attention = node("Attention", "q k k", "y")
        attention.output.extend(["", "", "qk"])
        graph = infer(graph_of([attention], [q, k], ["y", "qk"])).graph
        assert "0" not in [str(d) for d in graph.values["qk"].tensor.shape]

    def test_contradictions(self) -> None:
        nodes = [helper.make_node("MatMul", ["x", "b"], ["y"], name="product")]
        inputs = [value("x", [2, 3]), value("b", [4, 5])]
        with pytest.raises(
            ShapeError, match=r"MatMul 'product' \(float32\[2, 3\], float32\[4, 5\]\)"
        ):
            infer(graph_of(nodes, inputs, ["y"]))


class TestContradictions:
    def test_shapes(self) -> None:
        nodes = [helper.make_node("MatMul", ["x", "b"], ["y"], name="product")]
        inputs = [value("x", [2, 3]), value("b", [4, 5])]
        with pytest.raises(ShapeError, match="product"):
            infer(graph_of(nodes, inputs, ["y"]))

    def test_element_types(self) -> None:
        nodes = [helper.make_node("Add", ["x", "b"], ["y"], name="sum")]
        inputs = [value("x", [2]), value("b", [2], INT64)]
        with pytest.raises(ModelError, match=r"'sum': input 1 \(B\) is a tensor\(int64\)"):
            infer(graph_of(nodes, inputs, ["y"]))

    def test_an_element_type_that_the_operator_does_not_take(self) -> None:
        inputs = [value("x", [2], BOOL)]
        with pytest.raises(ModelError, match=r"input 0 \(X\) can't be a tensor\(bool\)"):
            infer(graph_of([node("Relu", "x", "y")], inputs, ["y"]))

    def test_too_many_inputs(self) -> None:
        graph = graph_of([node("Relu", "x", "y")], [X], ["y"])
        doubled = graph.rebuild([graph.nodes[0].replace(inputs=("x", "x"))])
        with pytest.raises(ModelError, match="it takes 1 inputs, 2 are given"):
            infer(doubled)


class TestFolding:
    def fold(self, nodes: list[onnx.NodeProto], constants: dict[str, Any]) -> list[str]:
        outputs = [nodes[-1].output[0]]
        return [n.op_type for n in infer(graph_of(nodes, [], outputs, constants)).graph.nodes]

    def test_small_values(self) -> None:
        result = infer(
            graph_of([node("Add", "a b", "y")], [], ["y"], {"a": np.ones(3), "b": np.ones(1)})
        )
        assert result.graph.constant("y").tolist() == [2, 2, 2]
        assert result.applied == ("Add 'y' is constant",)

    def test_weights_of_any_size(self) -> None:
        weight = np.ones((300, 400), np.int8)
        assert self.fold([node("Cast", "w", "y", to=TensorProto.FLOAT)], {"w": weight}) == []
        assert self.fold([node("Transpose", "w", "y")], {"w": weight}) == []
        scale = np.array(0.5, np.float32)
        nodes = [node("DequantizeLinear", "w s", "y")]
        assert self.fold(nodes, {"w": weight, "s": scale}) == []
        filled = [node("ConstantOfShape", "s", "y")]
        assert self.fold(filled, {"s": np.array([300, 400])}) == []

    def test_not_what_grows(self) -> None:
        constants = {"w": np.ones(1, np.float32), "s": np.array([300, 400])}
        assert self.fold([node("Expand", "w s", "y")], constants) == ["Expand"]

    @pytest.mark.parametrize(
        "random",
        [
            node("RandomNormalLike", "a", "y"),
            node("RandomUniform", "", "y", shape=[2]),
            node("Bernoulli", "a", "y"),
            node("Multinomial", "a", "y"),
            node("Dropout", "a r t", "y"),
        ],
        ids=lambda n: n.op_type,
    )
    def test_never_random_ones(self, random: onnx.NodeProto) -> None:
        constants = {
            "a": np.full((2, 2), 0.5, np.float32),
            "r": np.array(0.5, np.float32),
            "t": np.array(True),
        }
        assert self.fold([random], constants) == [random.op_type]

    def test_dropout_outside_training(self) -> None:
        constants = {
            "a": np.ones(2, np.float32),
            "r": np.array(0.5, np.float32),
            "t": np.array(False),
        }
        assert self.fold([node("Dropout", "a r t", "y")], constants) == []

    def test_what_fails_stays_and_is_reported(self) -> None:
        proto = model(
            [helper.make_node("Frob", ["a"], ["y"], domain="my.ops")],
            [],
            ["y"],
            {"a": np.ones(2)},
            domains={"my.ops": 1},
        )
        result = infer(load_model(proto).graph)
        assert [n.op_type for n in result.graph.nodes] == ["Frob"]

    def test_several_outputs(self) -> None:
        nodes = [node("Split", "a", "p q", num_outputs=2), node("Add", "p q", "y")]
        assert self.fold(nodes, {"a": np.arange(4)}) == []


def if_graph(then: list[onnx.NodeProto], other: list[onnx.NodeProto], **more: Any) -> Graph:
    outer = helper.make_node(
        "If",
        ["c"],
        ["y"],
        name="choice",
        then_branch=branch("t", then, "r"),
        else_branch=branch("e", other, "r"),
    )
    return graph_of([*more.pop("before", []), outer], more.pop("inputs"), ["y"], **more)


class TestIf:
    def test_join_of_both_branches(self) -> None:
        then = [node("Relu", "x", "r")]
        inputs = [X, value("c", [], BOOL)]
        same = infer(if_graph(then, [node("Neg", "x", "r")], inputs=inputs)).graph
        assert shown(same, "y") == "float32[N, 4, W]"
        longer = infer(if_graph(then, [node("Concat", "x x", "r", axis=2)], inputs=inputs)).graph
        assert shown(longer, "y") == "float32[N, 4, y_2]"
        flat = infer(if_graph(then, [node("Flatten", "x", "r")], inputs=inputs)).graph
        assert shown(flat, "y") == "float32[?]"

    def test_branches_of_different_element_types(self) -> None:
        cast = [node("Cast", "x", "r", to=INT64)]
        graph = if_graph([node("Relu", "x", "r")], cast, inputs=[X, value("c", [], BOOL)])
        with pytest.raises(ModelError, match="'y' is float32"):
            infer(graph)

    def test_symbols_made_inside_do_not_leave(self) -> None:
        inputs = [X, value("c", [], BOOL)]
        branches = [node("NonZero", "x", "r")], [node("NonZero", "x", "r")]
        graph = infer(if_graph(*branches, inputs=inputs)).graph
        inner = [b.values[b.outputs[0]].tensor.shape[1] for b in graph.nodes[0].bodies.values()]
        outer = graph.values["y"].tensor.shape[1]
        assert len({outer, *inner}) == 3

    @pytest.mark.parametrize("taken", [True, False])
    def test_constant_condition(self, taken: bool) -> None:
        graph = if_graph(
            [node("Relu", "x", "r")],
            [node("Concat", "x x", "r", axis=2)],
            inputs=[X],
            initializers={"c": np.array([taken])},
        )
        result = infer(graph)
        op_types = [n.op_type for n in result.graph.nodes]
        assert op_types == ["Relu" if taken else "Concat", "Identity"]
        assert shown(result.graph, "y") == f"float32[N, 4, {'W' if taken else '2*W'}]"
        assert result.applied == ("If 'choice' has a constant condition",)

    def test_condition_on_sizes(self) -> None:
        before = [
            node("Shape", "x", "s"),
            node("Gather", "s two", "w"),
            node("Equal", "w one", "c"),
        ]
        graph = if_graph(
            [node("Squeeze", "x axes", "r")],
            [node("Identity", "x", "r")],
            before=before,
            inputs=[X],
            initializers={"two": np.array(2), "one": np.array(1), "axes": np.array([2])},
        )
        assert shown(infer(graph).graph, "y") == "float32[?]"
        for width, expected in ((1, "float32[N, 4]"), (7, "float32[N, 4, W]")):
            result = infer(graph, {"N": 3, "W": width})
            assert shown(result.graph, "y") == expected
            (guard,) = result.guards
            assert guard.holds({"N": 9, "W": width})
            assert not guard.holds({"N": 9, "W": 1 if width == 7 else 2})


class TestSqueezeWithoutAxes:
    def test_axes_follow_from_the_binding(self) -> None:
        graph = graph_of([node("Squeeze", "x", "y")], [value("x", ["N", 1, "W"])], ["y"])
        assert shown(infer(graph).graph, "y") == "float32[?]"
        result = infer(graph, {"N": 1, "W": 5})
        assert shown(result.graph, "y") == "float32[W]"
        assert result.graph.constant(result.graph.nodes[0].inputs[1]).tolist() == [0, 1]
        holds = [all(g.holds({"N": n, "W": w}) for g in result.guards) for n, w in (
            (1, 5), (1, 9), (2, 5), (1, 1),
        )]  # fmt: skip
        assert holds == [True, True, False, False]


def loop(
    body: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[str],
    operands: str = "m c x",
    results: str = "y z",
    constants: Mapping[str, Any] = {},
) -> Graph:
    sub = helper.make_graph(
        body,
        "b",
        [value("i", None, INT64), value("t", None, BOOL), value("v", None)],
        [value(n, None) for n in outputs],
    )
    outer = helper.make_node("Loop", operands.split(), results.split(), body=sub)
    return graph_of([outer], inputs, results.split(), dict(constants))


TRIPS = [value("m", [], INT64), value("c", [], BOOL)]


class TestLoop:
    def test_stable_state_and_scan_output(self) -> None:
        body = [node("Relu", "v", "v2"), node("Neg", "v", "o"), node("Identity", "t", "t2")]
        graph = infer(loop(body, [X, *TRIPS], ["t2", "v2", "o"])).graph
        assert shown(graph, "y") == "float32[N, 4, W]"
        assert shown(graph, "z") == "float32[z_0, N, 4, W]"
        inner = graph.nodes[0].bodies["body"]
        assert [shown(inner, n) for n in inner.inputs] == [
            "int64[]",
            "bool[]",
            "float32[N, 4, W]",
        ]

    def test_number_of_turns(self) -> None:
        body = [node("Relu", "v", "v2"), node("Neg", "v", "o"), node("Identity", "t", "t2")]
        known = {"m": np.array(5), "c": np.array(True)}
        graph = infer(loop(body, [X], ["t2", "v2", "o"], constants=known)).graph
        assert shown(graph, "z") == "float32[5, N, 4, W]"
        stops = [node("Relu", "v", "v2"), node("Neg", "v", "o"), node("Not", "t", "t2")]
        graph = infer(loop(stops, [X], ["t2", "v2", "o"], constants=known)).graph
        assert shown(graph, "z") == "float32[z_0, N, 4, W]"

    def test_growing_state(self) -> None:
        body = [
            node("Concat", "v v", "v2", axis=2),
            node("Neg", "v2", "o"),
            node("Identity", "t", "t2"),
        ]
        graph = infer(loop(body, [X, *TRIPS], ["t2", "v2", "o"])).graph
        inner = graph.nodes[0].bodies["body"]
        carried = inner.values["v"].tensor.shape
        assert [str(d) for d in carried[:2]] == ["N", "4"]
        assert shown(inner, "v2") == f"float32[N, 4, 2*{carried[2]}]"
        assert shown(graph, "y") == "float32[N, 4, y_2]"
        assert shown(graph, "z").startswith("float32[z_0, N, 4, z_2")
        assert str(carried[2]) not in {"W", "y_2"}

    def test_state_of_changing_rank(self) -> None:
        zero = helper.make_node("Constant", [], ["k"], value_ints=[0])
        body = [
            zero,
            node("Unsqueeze", "v k", "v2"),
            node("Neg", "v2", "o"),
            node("Identity", "t", "t2"),
        ]
        graph = infer(loop(body, [X, *TRIPS], ["t2", "v2", "o"])).graph
        assert shown(graph, "y") == "float32[?]"

    def test_state_of_changing_element_type(self) -> None:
        body = [
            node("Cast", "v", "v2", to=INT64),
            node("Neg", "v", "o"),
            node("Identity", "t", "t2"),
        ]
        with pytest.raises(ModelError, match="'v' is float32"):
            infer(loop(body, [X, *TRIPS], ["t2", "v2", "o"]))

    def test_constants_are_seen_and_folded_inside(self) -> None:
        body = [
            node("Add", "k k", "kk"),
            node("Add", "v kk", "v2"),
            node("Neg", "v", "o"),
            node("Identity", "t", "t2"),
        ]
        constants = {"k": np.ones(1, np.float32)}
        result = infer(loop(body, [X, *TRIPS], ["t2", "v2", "o"], constants=constants))
        inner = result.graph.nodes[0].bodies["body"]
        assert [n.op_type for n in inner.nodes] == ["Add", "Neg", "Identity"]
        assert inner.constant("kk").tolist() == [2]
        assert inner.captures == result.graph.nodes[0].captures == ()
        assert result.applied == ("Add 'kk' is constant",)

    def test_a_second_run_keeps_the_symbols(self) -> None:
        body = [
            node("Concat", "v v", "v2", axis=2),
            node("Neg", "v2", "o"),
            node("Identity", "t", "t2"),
        ]
        once = infer(loop(body, [X, *TRIPS], ["t2", "v2", "o"])).graph
        twice = infer(once).graph
        assert twice.to_text() == once.to_text()
        bodies = [g.nodes[0].bodies["body"].to_text() for g in (once, twice)]
        assert bodies[0] == bodies[1]


class TestScan:
    def test_state_elements_and_axes(self) -> None:
        sub = helper.make_graph(
            [node("Add", "s e", "s2"), node("Neg", "s2", "o")],
            "b",
            [value("s", None), value("e", None)],
            [value("s2", None), value("o", None)],
        )
        outer = helper.make_node(
            "Scan",
            ["s0", "x"],
            ["f", "y"],
            body=sub,
            num_scan_inputs=1,
            scan_input_axes=[-1],
            scan_output_axes=[1],
        )
        graph = infer(graph_of([outer], [value("s0", ["N", 4]), X], ["f", "y"])).graph
        assert shown(graph, "f") == "float32[N, 4]"
        assert shown(graph, "y") == "float32[N, W, 4]"

    def test_lengths_that_differ(self) -> None:
        sub = helper.make_graph(
            [node("Add", "a b", "o")],
            "b",
            [value("a", None), value("b", None)],
            [value("o", None)],
        )
        outer = helper.make_node("Scan", ["p", "q"], ["y"], body=sub, num_scan_inputs=2)
        inputs = [value("p", [3, 2]), value("q", [4, 2])]
        with pytest.raises(ShapeError, match="3 and 4"):
            infer(graph_of([outer], inputs, ["y"]))


class TestSequencesAndOptionals:
    def test_sequence_of_tensors_that_differ(self) -> None:
        nodes = [
            node("SequenceConstruct", "x x2", "q"),
            node("SequenceAt", "q i", "a"),
            node("SequenceAt", "q j", "b"),
            node("Add", "a b", "y"),
        ]
        inputs = [
            value("x", ["N", 4]),
            value("x2", ["M", 4]),
            value("i", [], INT64),
            value("j", [], INT64),
        ]
        graph = infer(graph_of(nodes, inputs, ["y"])).graph
        assert isinstance(graph.values["q"].type, SequenceType)
        a, b = graph.values["a"].tensor.shape, graph.values["b"].tensor.shape
        assert a[1] == b[1] == 4
        assert a[0] != b[0]

    def test_sequence_map(self) -> None:
        sub = helper.make_graph(
            [node("Concat", "e e", "o", axis=0)], "b", [value("e", None)], [value("o", None)]
        )
        nodes = [
            node("SequenceConstruct", "x x", "q"),
            helper.make_node("SequenceMap", ["q"], ["y"], body=sub),
        ]
        graph = infer(graph_of(nodes, [value("x", ["N", 4])], ["y"])).graph
        kind = graph.values["y"].type
        assert isinstance(kind, SequenceType)
        assert isinstance(kind.element, TensorType)
        assert kind.element.shape[1] == 4

    def test_optional(self) -> None:
        nodes = [node("Optional", "x", "o"), node("OptionalGetElement", "o", "y")]
        graph = infer(graph_of(nodes, [X], ["y"])).graph
        assert isinstance(graph.values["o"].type, OptionalType)
        assert shown(graph, "y") == "float32[N, 4, W]"


@pytest.mark.slow
@real_models()
def test_real_models(model: RealModel) -> None:
    """Every value has a type, and sizes come out as ONNX Runtime has them."""
    graph = load_model(model.fetch()).graph
    for feed in filter(None, [model.inputs(), model.alt_inputs and model.alt_inputs()]):
        binding = {
            str(dim): size
            for name in graph.inputs
            for dim, size in zip(graph.values[name].tensor.shape, feed[name].shape, strict=True)
            if not isinstance(dim, int)
        }
        result = run_passes(graph, binding=binding)
        done = result.graph
        assert all(guard.holds(binding) for guard in result.guards)
        for inner in [done, *(b for _, n in done.walk() for b in n.bodies.values())]:
            for found in inner.values.values():
                assert found.tensor is not None, found.name
                assert found.tensor.shape is not None, found.name
        for name, wanted in zip(done.outputs, model.reference(feed), strict=True):
            kind = done.tensor(name)
            assert kind.dtype.numpy == wanted.dtype
            assert tuple(dims.evaluate(d, binding) for d in kind.shape) == wanted.shape


def test_a_constant_larger_than_memory_is_left_to_the_call() -> None:
    sizes = {"s": np.array([200000, 200000], np.int64)}
    graph = infer(graph_of([node("ConstantOfShape", "s", "y")], [], ["y"], sizes)).graph
    assert [n.op_type for n in graph.nodes] == ["ConstantOfShape"]
    assert shown(graph, "y") == "float32[200000, 200000]"
    assert graph.constant("y") is None
