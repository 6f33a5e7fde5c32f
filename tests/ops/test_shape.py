"""Views and sizes: Reshape, Squeeze, Unsqueeze, Flatten, Identity, Shape, Size, fills, ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import engine
from engine import dims
from engine.errors import ShapeError
from engine.ir import TensorType
from engine.ops import InferView, definition, object_array
from tests.ops.contents import check_evaluate, unknown
from tests.ops.harness import (
    OpCase,
    case_id,
    check_cpu,
    check_engine_cpu,
    check_infer,
    inferred,
    ints,
    node_graph,
)
from tests.ops.standard import for_each, node_suite, on_gpu_both_ways

F = "float32"


def scalar(value: float, kind: Any = np.int64) -> np.ndarray[Any, Any]:
    return np.array(value, kind)


VIEWS = [
    OpCase("Reshape", (((2, 3, 4), F), ints(4, -1))),
    OpCase("Reshape", (((2, 3, 4), F), ints(0, 0, 2, -1))),
    OpCase("Reshape", (((2, 3, 4), "int64"), ints(-1, 0))),
    OpCase("Reshape", (((1, 1), "bool"), ints())),
    OpCase("Reshape", (((), F), ints(1, 1, 1, 1, 1, 1, 1, 1))),
    OpCase("Reshape", (((0, 3), F), ints(0, 3, 7))),
    OpCase("Reshape", (((3, 0), F), ints(5, 0)), {"allowzero": 1}),
    OpCase("Reshape", (((37, 113), F), ints(113, 37))),
    OpCase("Squeeze", (((1, 3, 1, 5), F), ints(-2))),
    OpCase("Squeeze", (((1, 3, 1, 5), F), ints(2, 0))),
    OpCase("Squeeze", (((1, 1), F), ints(0, 1))),
    OpCase("Unsqueeze", (((3, 5), F), ints(-1, 0))),
    OpCase("Unsqueeze", (((), "int32"), ints(0))),
    OpCase("Unsqueeze", (((0,), F), ints(1))),
    OpCase("Flatten", (((2, 3, 4, 5), F),), {"axis": -1}),
    OpCase("Flatten", (((2, 3, 4, 5), F),), {"axis": 0}),
    OpCase("Flatten", (((2, 3, 4, 5), F),), {"axis": 4}),
    OpCase("Flatten", (((0, 3), "uint32"),), oracle=lambda x: x.reshape(0, 3)),
    OpCase("Identity", (((37,), "bool"),)),
    OpCase("Identity", (((), F),)),
]
EYES = [
    OpCase("EyeLike", (((3, 5), F),), {"k": 1}),
    OpCase("EyeLike", (((5, 3), "int32"),), {"k": -1, "dtype": 9}),
    OpCase("EyeLike", (((11, 13), F),)),
    OpCase("EyeLike", (((2, 3), F),), {"k": 7, "dtype": 7}),
    OpCase("EyeLike", (((3, 3), "int64"),), {"dtype": 10}),
    OpCase("EyeLike", (((0, 3), F),)),
]
SIZES = [
    OpCase("Squeeze", (((1, 3, 1), F),), name="all"),
    OpCase("Shape", (((2, 3, 4), F),)),
    OpCase("Shape", (((2, 3, 4), F),), {"start": -2}),
    OpCase("Shape", (((2, 3, 4), F),), {"start": 1, "end": -1}),
    OpCase("Shape", (((2, 3, 4), F),), {"start": 5}),
    OpCase("Shape", (((), F),)),
    OpCase("Size", (((2, 0, 4), F),)),
    OpCase("Size", (((), F),)),
    *EYES,
]


def fill(shape: Sequence[int], value: Any) -> OpCase:
    tensor = onnx.numpy_helper.from_array(np.array([value]))
    return OpCase("ConstantOfShape", (ints(*shape),), {"value": tensor}, name=f"{shape}{value}")


FILLS = [
    fill((2, 3), np.float32(-1.5)),
    fill((), np.int64(7)),
    fill((0, 3), np.bool_(True)),
    OpCase("ConstantOfShape", (ints(5),)),
    OpCase("Range", (scalar(3), scalar(200), scalar(7))),
    OpCase("Range", (scalar(10), scalar(-5), scalar(-3))),
    OpCase("Range", (scalar(5), scalar(5), scalar(1))),
    OpCase("Range", (scalar(1.5, np.float32), scalar(-20, np.float32), scalar(-0.3, np.float32))),
    OpCase("Range", (scalar(1, np.int32), scalar(9, np.int32), scalar(2, np.int32))),
]


test_cpu = for_each([*VIEWS, *SIZES, *FILLS], check_cpu, check_engine_cpu)
test_infer = for_each([*VIEWS, *SIZES[1:], *FILLS], check_infer)
test_gpu = on_gpu_both_ways([*VIEWS, *EYES])


OPS = "Reshape Squeeze Unsqueeze Flatten Identity Shape Size ConstantOfShape Range EyeLike".split()


test_node_suite = node_suite(*OPS)


GENERATED = """
<ir_version: 10, opset_import: ["" : 21]>
sizes (float[n, m] x) => (float[n, m] filled, bool[n, m] flags, int64[k] steps)
{
  shape = Shape (x)
  filled = ConstantOfShape <value: tensor = float[1] {-2.5}> (shape)
  flags = ConstantOfShape <value: tensor = bool[1] {1}> (shape)
  n = Shape <start: int = 0, end: int = 1> (x)
  m = Shape <start: int = 1, end: int = 2> (x)
  axis = Constant <value: tensor = int64[1] {0}> ()
  first = Squeeze (m, axis)
  last = Squeeze (n, axis)
  delta = Constant <value: tensor = int64 {-2}> ()
  steps = Range (first, last, delta)
}
"""


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(3, 113), (1, 1), (4, 70), (2, 0)])
def test_fills_and_ranges_of_sizes_known_when_bound(shape: tuple[int, int]) -> None:
    model = onnx.parser.parse_model(GENERATED)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        got = session.run(["filled", "flags", "steps"], {"x": x})
    np.testing.assert_array_equal(got[0], np.full(shape, -2.5, np.float32))
    np.testing.assert_array_equal(got[1], np.ones(shape, bool))
    np.testing.assert_array_equal(got[2], np.arange(shape[1], shape[0], -2))


CONTENTS = [
    OpCase("Reshape", (ints(2, 3, 4, 5), ints(2, -1))),
    OpCase("Squeeze", (ints(7).reshape(1, 1), ints(0))),
    OpCase("Unsqueeze", (scalar(7), ints(0))),
    OpCase("Flatten", (ints(1, 2, 3, 4).reshape(2, 2),)),
    OpCase("Identity", (ints(1, 2),)),
    OpCase("ConstantOfShape", (ints(2, 3),), {"value": oh.make_tensor("v", 7, [1], [-1])}),
]


@pytest.mark.parametrize("case", CONTENTS, ids=case_id)
def test_contents(case: OpCase) -> None:
    check_evaluate(case, () if case.op == "ConstantOfShape" else (0,))


def test_contents_of_ranges() -> None:
    check_evaluate(OpCase("Range", (scalar(3), scalar(9), scalar(2)), constants=()), ())
    check_evaluate(OpCase("Range", (scalar(3), scalar(-9), scalar(-2)), constants=()), ())


def test_large_and_float_contents_stay_unknown() -> None:
    assert unknown(OpCase("Reshape", (((2, 3), F), ints(-1))))
    assert unknown(OpCase("Reshape", (((65,), "int64"), ints(-1)), constants=(0, 1)))
    assert unknown(OpCase("Range", (scalar(0), scalar(65), scalar(1))))


def reshaped(shape: Sequence[dims.Dim], target: Sequence[dims.Dim]) -> Any:
    """The shape that Reshape infers from symbolic sizes and contents."""
    case = OpCase("Reshape", (((1,) * len(shape), F), ints(*(1 for _ in target))))
    graph, node, _ = node_graph(case, [np.zeros((1,) * len(shape), np.float32), ints(1)])
    values = dict(graph.values)
    x = values["x0"].type
    assert isinstance(x, TensorType)
    values["x0"] = values["x0"].replace(type=TensorType(x.dtype, tuple(shape)))
    values["x1"] = values["x1"].replace(constant=None, dims=object_array(target))
    op = definition(node)
    assert op is not None and op.infer is not None
    graph = graph.replace(values=values)
    (kind,) = op.infer(InferView(graph, node, lambda hint: dims.symbol(hint)))
    assert isinstance(kind, TensorType)
    return kind.shape


def test_reshape_solves_symbolic_sizes() -> None:
    b, s = dims.symbol("b"), dims.symbol("s")
    assert reshaped((b, s, 768), (0, 0, 12, 64)) == (b, s, 12, 64)
    assert reshaped((b, s, 768), (-1, 768)) == (b * s, 768)
    assert reshaped((b * s, 768), (b, s, -1)) == (b, s, 768)
    assert reshaped((b, 4, s), (-1, s * 2)) == (b * 2, s * 2)
    rest = reshaped((b, 6), (s, -1))[1]
    assert dims.evaluate(rest, {"b": 4, "s": 8}) == 3
    assert dims.evaluate(rest, {"b": 0, "s": 0}) == 0


@pytest.mark.parametrize(
    "case",
    [
        OpCase("Reshape", (((2, 3), F), ints(4, -1))),
        OpCase("Reshape", (((2, 3), F), ints(5))),
        OpCase("Reshape", (((2, 3), F), ints(-1, -1))),
        OpCase("Reshape", (((6,), F), ints(2, 0))),
        OpCase("Squeeze", (((2, 3), F), ints(0))),
        OpCase("Squeeze", (((1, 3), F), ints(2))),
        OpCase("Unsqueeze", (((2, 3), F), ints(0, 0))),
        OpCase("Flatten", (((2, 3), F),), {"axis": 3}),
        OpCase("Range", (scalar(0), scalar(1), scalar(0))),
    ],
    ids=case_id,
)
def test_wrong_shapes_are_refused(case: OpCase) -> None:
    with pytest.raises(ShapeError, match=case.op):
        inferred(case)


def test_shapes_that_data_decide_get_symbols() -> None:
    graph, _, _ = inferred(OpCase("Reshape", (((2, 3), F), ints(3, 2)), constants=()))
    kind = graph.tensor("y0")
    assert kind is not None and kind.shape is not None
    assert len(kind.shape) == 2 and not dims.is_static(kind.shape)


def test_one_axis_holds_every_element() -> None:
    graph, _, _ = inferred(OpCase("Reshape", (((2, 3), F), ints(6)), constants=()))
    kind = graph.tensor("y0")
    assert kind is not None and kind.shape == (6,)


def test_squeeze_of_open_sizes_has_no_rank() -> None:
    graph, _, _ = inferred(OpCase("Squeeze", (((1, 3), F),)), dynamic=True)
    kind = graph.tensor("y0")
    assert kind is not None and kind.shape is None


def test_strings_and_sequences_pass() -> None:
    from cpu_fallback import registry

    words = np.array(["a", "b", "c", "d"], dtype=object)
    got = registry.run("Reshape", "", 25, {}, [words, ints(2, 2)], 1)[0]
    assert isinstance(got, np.ndarray) and got.tolist() == [["a", "b"], ["c", "d"]]
    assert registry.run("Identity", "", 25, {}, [[words]], 1)[0] == [words]


def test_reference_agrees_on_the_generated_model() -> None:
    x = np.ones((2, 5), np.float32)
    want = ReferenceEvaluator(onnx.parser.parse_model(GENERATED)).run(None, {"x": x})
    with engine.InferenceSession(onnx.parser.parse_model(GENERATED), device="cpu") as session:
        for mine, other in zip(session.run(None, {"x": x}), want, strict=True):
            np.testing.assert_array_equal(mine, other)
