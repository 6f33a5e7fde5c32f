"""Old operator forms come out right: values worked out in NumPy from their specification."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from engine.errors import ModelError
from engine.exporter import to_model
from engine.importer import load_model
from engine.ir import Array
from engine.runtime.session import InferenceSession
from tests.test_importer import BOOL, INT64, model, value

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 4, 5)).astype(np.float32)
C = RNG.normal(size=3).astype(np.float32) + 2
HALF = X.astype(np.float16)
FLAT = X.reshape(2, 60)


def outputs(
    node: onnx.NodeProto,
    opset: int,
    *arrays: Array,
    shapes: bool = True,
    **initializers: Any,
) -> list[Array]:
    """What the node of an old opset computes after loading; arrays in order of its inputs."""
    names = [n for n in node.input if n and n not in initializers]
    infos = [
        value(n, list(a.shape) if shapes else None, helper.np_dtype_to_tensor_dtype(a.dtype))
        for n, a in zip(names, arrays, strict=True)
    ]
    proto = model([node], infos, [n for n in node.output if n], initializers, opset=opset)
    graph = load_model(proto).graph
    assert all(n.since_version >= 7 for _, n in graph.walk() if n.op_type in ("Add", "Mul"))
    feed = dict(zip(names, arrays, strict=True))
    return list(ReferenceEvaluator(to_model(graph)).run(None, feed))


def first(op_type: str, inputs: str, opset: int, *arrays: Array, **attrs: Any) -> Array:
    node = helper.make_node(op_type, inputs.split(), ["y"], **attrs)
    return outputs(node, opset, *arrays)[0]


@pytest.mark.parametrize("opset", [6, 7])
def test_add_of_a_suffix(opset: int) -> None:
    b = RNG.normal(size=(4, 5)).astype(np.float32)
    attrs = {"broadcast": 1} if opset == 6 else {}
    assert np.array_equal(first("Add", "x b", opset, X, b, **attrs), X + b)


@pytest.mark.parametrize(
    ("op_type", "function"),
    [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Div", np.divide)],
)
@pytest.mark.parametrize("axis", [1, -3])
def test_arithmetic_along_an_axis(op_type: str, function: np.ufunc, axis: int) -> None:
    found = first(op_type, "x b", 6, X, C, broadcast=1, axis=axis)
    assert np.array_equal(found, function(X, C[:, None, None]))


def test_pow_along_an_axis() -> None:
    positive = np.abs(X)
    found = first("Pow", "x b", 6, positive, C, broadcast=1, axis=1)
    np.testing.assert_allclose(found, positive ** C[:, None, None], rtol=1e-5)


@pytest.mark.parametrize(
    ("op_type", "function"), [("Greater", np.greater), ("Less", np.less), ("Equal", np.equal)]
)
def test_comparison_along_an_axis(op_type: str, function: np.ufunc) -> None:
    x = (X * 2).astype(np.int32 if op_type == "Equal" else np.float32)
    b = np.array([0, 1, -1], x.dtype)
    found = first(op_type, "x b", 6, x, b, broadcast=1, axis=1)
    assert np.array_equal(found, function(x, b[:, None, None]))


@pytest.mark.parametrize(
    ("op_type", "function"),
    [("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor)],
)
def test_logic_along_an_axis(op_type: str, function: np.ufunc) -> None:
    b = np.array([True, False, True])
    found = first(op_type, "x b", 6, X > 0, b, broadcast=1, axis=1)
    assert np.array_equal(found, function(X > 0, b[:, None, None]))


def test_broadcast_along_an_axis_of_unknown_rank() -> None:
    node = helper.make_node("Add", ["x", "b"], ["y"], broadcast=1, axis=1)
    with pytest.raises(ModelError, match="needs the ranks"):
        outputs(node, 6, X, C, shapes=False)


@pytest.mark.parametrize("size", [1, 3])
def test_prelu_slope_per_channel(size: int) -> None:
    slope = C[:size]
    expected = np.where(X < 0, X * slope[:, None, None], X)
    assert np.array_equal(first("PRelu", "x s", 6, X, slope), expected)


def test_gemm_broadcast() -> None:
    a, b, c = X[0, 0], X[0, 1].T.copy(), RNG.normal(size=4).astype(np.float32)
    found = first("Gemm", "a b c", 6, a, b, c, broadcast=1, alpha=2.0, beta=0.5)
    np.testing.assert_allclose(found, 2 * (a @ b) + c / 2, rtol=1e-5)


def test_batch_normalization_6_and_unread_outputs() -> None:
    node = helper.make_node(
        "BatchNormalization",
        ["x", "s", "b", "m", "v"],
        ["y"],
        is_test=1,
        epsilon=0.01,
        consumed_inputs=[0, 0, 0, 1, 1],
    )
    scale, bias, mean, var = C, C - 1, C - 2, np.abs(C)
    wanted = (X - mean[:, None, None]) / np.sqrt(var + 0.01)[:, None, None]
    wanted = wanted * scale[:, None, None] + bias[:, None, None]
    (found,) = outputs(node, 6, X, scale, bias, mean, var)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    node.output.extend(["m1", "v1", "m2", "v2"])
    proto = model(
        [node],
        [value(n, None) for n in node.input],
        ["y"],
        opset=6,
    )
    (single,) = load_model(proto).graph.nodes
    assert single.outputs == ("y",)
    assert set(single.attrs) == {"epsilon"}


def test_batch_normalization_per_activation() -> None:
    parameters = [np.abs(RNG.normal(size=(3, 4, 5))).astype(np.float32) for _ in range(4)]
    scale, bias, mean, var = parameters
    found = first("BatchNormalization", "x s b m v", 7, X, *parameters, spatial=0)
    expected = (X - mean) / np.sqrt(var + 1e-5) * scale + bias
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_batch_normalization_9_in_training() -> None:
    node = helper.make_node(
        "BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "m1", "v1"], momentum=0.5
    )
    y, mean, _ = outputs(node, 9, X, C, C, C, C)
    center = X.mean(axis=(0, 2, 3))
    np.testing.assert_allclose(mean, C / 2 + center / 2, rtol=1e-4)
    np.testing.assert_allclose(y.mean(axis=(0, 2, 3)), C, rtol=1e-4)
    node.output.extend(["m2", "v2"])
    with pytest.raises(ModelError, match="training step"):
        outputs(node, 9, X, C, C, C, C)


def test_dropout_6() -> None:
    assert np.array_equal(first("Dropout", "x", 6, X, is_test=1, ratio=0.3), X)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_recurrent_6(op_type: str) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    x = X[0]
    w = RNG.normal(size=(1, gates * 2, 5)).astype(np.float32)
    r = RNG.normal(size=(1, gates * 2, 2)).astype(np.float32)
    found = first(op_type, "x w r", 6, x, w, r, hidden_size=2, output_sequence=1)
    assert np.array_equal(found, first(op_type, "x w r", 22, x, w, r, hidden_size=2))


@pytest.mark.parametrize("opset", [6, 7, 9, 10])
def test_upsample_nearest_rounds_down(opset: int) -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    scales = np.array([1, 1, 2.6, 2], np.float32)
    expected = x[:, :, (np.arange(5) / 2.6).astype(int)][:, :, :, [0, 0, 1, 1, 2, 2]]
    if opset == 6:
        found = first("Upsample", "x", 6, x, height_scale=2.6, width_scale=2.0)
    elif opset == 7:
        found = first("Upsample", "x", 7, x, scales=scales.tolist())
    else:
        node = helper.make_node("Upsample" if opset == 9 else "Resize", ["x", "s"], ["y"])
        (found,) = outputs(node, opset, x, s=scales)
    assert np.array_equal(found, expected)


def test_upsample_linear_starts_at_the_edge() -> None:
    x = np.array([0, 4], np.float32).reshape(1, 1, 1, 2)
    node = helper.make_node("Upsample", ["x", "s"], ["y"], mode="linear")
    (found,) = outputs(node, 9, x, s=np.array([1, 1, 1, 4], np.float32))
    np.testing.assert_allclose(found.reshape(-1), [0, 1, 2, 3, 4, 4, 4, 4])


@pytest.mark.parametrize("axis", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_family_flattens(op_type: str, axis: int | None) -> None:
    attrs = {} if axis is None else {"axis": axis}
    at = 1 if axis is None else axis
    flat = X.reshape(int(np.prod(X.shape[:at])), -1).astype(np.float64)
    exp = np.exp(flat - flat.max(1, keepdims=True))
    expected = exp / exp.sum(1, keepdims=True)
    if op_type == "LogSoftmax":
        expected = np.log(expected)
    elif op_type == "Hardmax":
        expected = np.eye(flat.shape[1])[flat.argmax(1)]
    found = first(op_type, "x", 11, X, **attrs)
    np.testing.assert_allclose(found, expected.reshape(X.shape), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("x", [X, HALF, X.astype(np.float64)], ids=lambda a: str(a.dtype))
@pytest.mark.parametrize("bounds", [{}, {"min": -0.5}, {"max": 0.5}, {"min": -0.5, "max": 0.5}])
def test_clip_bounds(x: Array, bounds: dict[str, float]) -> None:
    found = first("Clip", "x", 6, x, **bounds)
    low, high = bounds.get("min", -np.inf), bounds.get("max", np.inf)
    assert found.dtype == x.dtype
    assert np.array_equal(found, np.clip(x, low, high))


@pytest.mark.parametrize("positive", [True, False])
def test_a_name_may_be_two_values_in_graphs_side_by_side(positive: bool) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 5, opset_import: ["" : 10]>
        g (float[3] x, bool c) => (float[n] y) {
          y = If (c) <then_branch = a () => (float[3] u) {
                        t = Cast <to = 11> (x)
                        w = Clip <min = 0.0, max = 1.0> (t)
                        u = Cast <to = 1> (w)
                      },
                      else_branch = b () => (float[3] v) {
                        t = Neg(x)
                        v = Clip <min = -1.0, max = 0.0> (t)
                      }>
        }"""
    )
    x = np.array([-3, 0.5, 3], np.float32)
    with InferenceSession(proto, device="cpu") as session:
        (y,) = session.run(None, {"x": x, "c": np.array(positive)})
    assert y.tolist() == ([0, 0.5, 1] if positive else [0, -0.5, -1])


@pytest.mark.parametrize("x", [X, HALF], ids=lambda a: str(a.dtype))
def test_pad_attributes(x: Array) -> None:
    found = first("Pad", "x", 9, x, pads=[0, 1, 0, 2, 0, 0, 1, 0], value=2.5)
    assert found.dtype == x.dtype
    expected = np.pad(x, ((0, 0), (1, 0), (0, 1), (2, 0)), constant_values=2.5)
    assert np.array_equal(found, expected)


def test_slice_attributes() -> None:
    found = first("Slice", "x", 9, X, starts=[1, -3], ends=[2, 1000], axes=[1, 3])
    assert np.array_equal(found, X[:, 1:2, :, 2:])
    assert np.array_equal(first("Slice", "x", 9, X, starts=[1], ends=[-1]), X[1:-1])


@pytest.mark.parametrize("split", [None, [1, 4]])
def test_split_attributes(split: list[int] | None) -> None:
    x = X if split else X[..., :4]
    attrs = {} if split is None else {"split": split}
    node = helper.make_node("Split", ["x"], ["a", "b"], axis=3, **attrs)
    a, b = outputs(node, 11, x)
    at = 2 if split is None else split[0]
    assert np.array_equal(a, x[..., :at]) and np.array_equal(b, x[..., at:])


@pytest.mark.parametrize("past", [0, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_attention_mask_of_one_column_is_for_all_keys(packed: bool, past: int) -> None:
    q, new = RNG.normal(size=(2, 1, 2, 4)), RNG.normal(size=(2, 1, 3, 4))
    before, mask = RNG.normal(size=(2, 1, past, 4)), np.array([[True], [False]])
    keys = np.concatenate([before, new], axis=2)
    weights = np.exp(q @ keys.swapaxes(2, 3) / 2)
    want = weights / weights.sum(-1, keepdims=True) @ keys * mask
    node = helper.make_node("Attention", ["q", "k", "v", "m"], ["y"])
    if past:
        node = helper.make_node("Attention", ["q", "k", "v", "m", "b", "c"], ["y", "nk", "nv"])
    if packed:
        node.attribute.extend(helper.make_attribute(f"{n}_num_heads", 1) for n in ("q", "kv"))
        q, new, want = q[:, 0], new[:, 0], want[:, 0]
    arrays = [a.astype(np.float32) for a in (q, new, new, *([before, before] if past else []))]
    y = outputs(node, 23, *arrays[:3], mask, *arrays[3:])[0]
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("opset", [9, 10])
def test_topk(opset: int) -> None:
    node = helper.make_node("TopK", ["x"] if opset < 10 else ["x", "k"], ["v", "i"], axis=1)
    if opset < 10:
        node.attribute.append(helper.make_attribute("k", 2))
    values, indices = outputs(node, opset, X, **({} if opset < 10 else {"k": np.array([2])}))
    order = np.argsort(-X, axis=1, kind="stable")[:, :2]
    assert np.array_equal(indices, order)
    assert np.array_equal(values, np.take_along_axis(X, order, 1))


@pytest.mark.parametrize("axes", [None, [1], [-1, 0]])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean", "ReduceMax"])
def test_reduce_axes(op_type: str, axes: list[int] | None, keepdims: int) -> None:
    function = {"ReduceSum": np.sum, "ReduceMean": np.mean, "ReduceMax": np.max}[op_type]
    attrs = {} if axes is None else {"axes": axes}
    found = first(op_type, "x", 11, X, keepdims=keepdims, **attrs)
    expected = function(X, axis=None if axes is None else tuple(axes), keepdims=bool(keepdims))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_squeeze_and_unsqueeze() -> None:
    assert first("Squeeze", "x", 9, X[:1]).shape == (3, 4, 5)
    assert first("Squeeze", "x", 9, X[:1, :, :1], axes=[2]).shape == (1, 3, 5)
    assert first("Unsqueeze", "x", 11, X, axes=[0, -1]).shape == (1, 2, 3, 4, 5, 1)


def test_scatter() -> None:
    x = np.zeros((3, 3), np.float32)
    i, u = np.array([[0, 2]]), np.array([[5, 7]], np.float32)
    found = first("Scatter", "x i u", 9, x, i, u, axis=1)
    assert found.tolist() == [[5, 0, 7], [0, 0, 0], [0, 0, 0]]


def test_group_normalization_18_has_a_scale_per_group() -> None:
    x = RNG.normal(size=(2, 4, 3)).astype(np.float32)
    scale, bias = np.array([2, 3], np.float32), np.array([-1, 5], np.float32)
    grouped = x.reshape(2, 2, 6).astype(np.float64)
    unit = (grouped - grouped.mean(2, keepdims=True)) / np.sqrt(
        grouped.var(2, keepdims=True) + 1e-5
    )
    expected = (unit * scale[:, None] + bias[:, None]).reshape(x.shape)
    found = first("GroupNormalization", "x s b", 18, x, scale, bias, num_groups=2)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_roi_align_10_has_no_half_pixel() -> None:
    node = helper.make_node("RoiAlign", ["x", "r", "b"], ["y"], output_height=1, output_width=1)
    proto = model(
        [node], [value("x", None), value("r", None), value("b", None, INT64)], ["y"], opset=10
    )
    (found,) = load_model(proto).graph.nodes
    assert found.attrs["coordinate_transformation_mode"] == "output_half_pixel"


@pytest.mark.parametrize(("old", "new"), [("bilinear", "linear"), ("bicubic", "cubic")])
def test_grid_sample_modes(old: str, new: str) -> None:
    node = helper.make_node("GridSample", ["x", "g"], ["y"], mode=old)
    proto = model([node], [value("x", None), value("g", None)], ["y"], opset=16)
    assert load_model(proto).graph.nodes[0].attrs["mode"] == new


def test_dft_axis() -> None:
    x = X[:1, :, :, :1]
    found = first("DFT", "x", 17, x, axis=2)
    expected = np.fft.fft(x[..., 0], axis=2)
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], expected, rtol=1e-3, atol=1e-4)


def test_scan_8_runs_over_a_batch() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "e"], ["s2"]),
            helper.make_node("Identity", ["s2"], ["o"]),
        ],
        "b",
        [value("s", [2]), value("e", [2])],
        [value("s2", [2]), value("o", [2])],
    )
    node = helper.make_node("Scan", ["", "s0", "x"], ["f", "y"], body=body, num_scan_inputs=1)
    state = RNG.normal(size=(3, 2)).astype(np.float32)
    x = RNG.normal(size=(3, 4, 2)).astype(np.float32)
    final, steps = outputs(node, 8, state, x)
    expected = state[:, None] + np.cumsum(x, axis=1)
    np.testing.assert_allclose(steps, expected, rtol=1e-5)
    np.testing.assert_allclose(final, expected[:, -1], rtol=1e-5)
    node.input[0] = "lengths"
    infos = [value("lengths", None, INT64), value("s0", None), value("x", None)]
    with pytest.raises(ModelError, match="sequence_lens"):
        load_model(model([node], infos, ["f", "y"], opset=8))


def test_an_operator_that_the_converter_refuses_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    convert = onnx.version_converter.convert_version

    def picky(proto: onnx.ModelProto, target: int) -> onnx.ModelProto:
        if any(n.op_type == "Unsqueeze" and n.domain == "" for n in proto.graph.node):
            raise RuntimeError("no adapter")
        return convert(proto, target)

    monkeypatch.setattr(onnx.version_converter, "convert_version", picky)
    nodes = [
        helper.make_node("Squeeze", ["x"], ["a"], axes=[0]),
        helper.make_node("Unsqueeze", ["a"], ["y"], axes=[1]),
    ]
    proto = model(nodes, [value("x", [1, 2])], ["y"], opset=8)
    squeeze, unsqueeze = load_model(proto).graph.nodes
    assert (squeeze.since_version, len(squeeze.inputs)) == (25, 2)
    assert (unsqueeze.since_version, unsqueeze.attrs) == (1, {"axes": [1]})


def test_old_nodes_of_an_unchanged_form() -> None:
    node = helper.make_node("Not", ["x"], ["y"])
    proto = model([node], [value("x", [2], BOOL)], ["y"], opset=1)
    assert load_model(proto).graph.nodes[0].op_type == "Not"


def test_functions_of_several_opsets() -> None:
    def function(name: str, opset: int, *nodes: onnx.NodeProto) -> onnx.FunctionProto:
        imports = [helper.make_opsetid("", opset)]
        return helper.make_function("f", name, ["a"], ["b"], list(nodes), imports)

    softmax = helper.make_node("Softmax", ["a"], ["b"])
    body = helper.make_graph([softmax], "t", [], [value("b", None)])
    inside = helper.make_graph(
        [helper.make_node("New", ["x"], ["n"], domain="f")], "e", [], [value("n", None)]
    )
    nodes = [
        helper.make_node("Old", ["x"], ["p"], domain="f"),
        helper.make_node("If", ["c"], ["q"], then_branch=inside, else_branch=inside),
        helper.make_node("ReduceSum", ["q"], ["r"], axes=[0], keepdims=0),
        helper.make_node("Add", ["p", "r"], ["y"]),
    ]
    proto = model(
        nodes, [value("x", [2, 3, 4]), value("c", [], BOOL)], ["y"], opset=11, domains={"f": 1}
    )
    wrapped = helper.make_node("If", ["t"], ["b"], then_branch=body, else_branch=body)
    truth = helper.make_node(
        "Constant", [], ["t"], value=helper.make_tensor("t", TensorProto.BOOL, [], [True])
    )
    proto.functions.append(function("Old", 12, truth, wrapped))
    proto.functions.append(function("New", 13, softmax))
    x = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    graph = load_model(proto).graph
    assert set(graph.opset) == {"", "f"}
    (y,) = ReferenceEvaluator(to_model(graph)).run(None, {"x": x, "c": np.array(True)})
    flat = np.exp(x.reshape(2, 12))
    old = (flat / flat.sum(1, keepdims=True)).reshape(x.shape)
    new = np.exp(x) / np.exp(x).sum(2, keepdims=True)
    np.testing.assert_allclose(y, old + new.sum(0), rtol=1e-4)
