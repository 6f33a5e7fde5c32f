"""Constants without elements: sums of nothing are 0, or the bias, and results keep their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx.helper as oh
import onnx.numpy_helper as nh
import pytest

from engine.ir import Array
from engine.runtime.session import InferenceSession

DEVICES = (pytest.param("cpu"), pytest.param("gpu", marks=pytest.mark.gpu))
BIAS = np.arange(1, 5, dtype=np.float32)
Nodes = list[tuple[str, str, str, dict[str, Any]]]


def zeros(*shape: int, dtype: str = "float32") -> Array:
    return np.zeros(shape, dtype)


def run(
    device: str,
    nodes: Nodes,
    feeds: Mapping[str, Array],
    constants: Mapping[str, Array],
    sizes: Mapping[str, list[str | int]] | None = None,
) -> list[Any]:
    """Outputs of the last node, by the kernels that suit the adapter.

    nodes: operator, inputs and outputs by name, attributes.
    """
    parts = [oh.make_node(op, i.split(), o.split(), **a) for op, i, o, a in nodes]
    inputs = [
        oh.make_tensor_value_info(
            name, oh.np_dtype_to_tensor_dtype(array.dtype), (sizes or {}).get(name, array.shape)
        )
        for name, array in feeds.items()
    ]
    outputs = [oh.make_empty_tensor_value_info(name) for name in parts[-1].output]
    held = [nh.from_array(array, name) for name, array in constants.items()]
    graph = oh.make_graph(parts, "g", inputs, outputs, held)
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)], ir_version=10)
    with InferenceSession(model.SerializeToString(), device=device, target="adapter") as session:
        return list(session.run(None, dict(feeds)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("columns", [2, 32])
@pytest.mark.parametrize("bias", ["", "b"])
def test_products_over_nothing(device: str, columns: int, bias: str) -> None:
    nodes: Nodes = [("MatMul", "x w", "p", {}), ("Add", "p b", "y", {})]
    held = {"w": zeros(0, columns), "b": np.arange(columns, dtype=np.float32)}
    made = nodes if bias else nodes[:1]
    (y,) = run(device, made, {"x": zeros(3, 5, 7, 0)}, held, {"x": ["n", "m", 7, 0]})
    np.testing.assert_array_equal(y, np.broadcast_to(held["b"] if bias else 0, (3, 5, 7, columns)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", ["ConvInteger", "QLinearConv"])
@pytest.mark.parametrize("filters", [4, 0])
def test_integer_convolutions_of_no_channels(device: str, op: str, filters: int) -> None:
    held = {
        "w": zeros(filters, 0, 2, 2, dtype="uint8"),
        "s": np.asarray(0.5, np.float32),
        "z": np.asarray(3, np.uint8),
    }
    names = {"ConvInteger": "x w", "QLinearConv": "x s z w s z s z"}[op]
    feed = {"x": zeros(1, 0, 3, 3, dtype="uint8")}
    (y,) = run(device, [(op, names, "y", {})], feed, held)
    assert y.shape == (1, filters, 2, 2)
    assert (y == {"ConvInteger": 0, "QLinearConv": 3}[op]).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pads", [0, 1])
def test_maps_of_no_width(device: str, pads: int) -> None:
    """Many channels and few results, for which NumPy weighs ways to convolve."""
    held = {"w": np.ones((4, 8, 2, 1), np.float32), "b": BIAS}
    nodes: Nodes = [("Conv", "x w b", "y", {"pads": [0, pads, 0, pads]})]
    (y,) = run(device, nodes, {"x": zeros(3, 8, 2, 0)}, held, {"x": [3, 8, 2, "w"]})
    np.testing.assert_array_equal(y, np.broadcast_to(BIAS[:, None, None], (3, 4, 1, 2 * pads)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_sequences_of_nothing(device: str, op: str, gates: int) -> None:
    """The initial state is 0, and so is all that follows from it without a bias."""
    held = {"w": zeros(1, 2 * gates, 0), "r": np.ones((1, 2 * gates, 2), np.float32)}
    nodes: Nodes = [(op, "x w r", "y h", {"hidden_size": 2})]
    y, h = run(device, nodes, {"x": zeros(3, 2, 0)}, held)
    np.testing.assert_array_equal(y, zeros(3, 1, 2, 2))
    np.testing.assert_array_equal(h, zeros(1, 2, 2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", ["Mul", "Add", "BatchNormalization"])
def test_scales_of_no_channels(device: str, op: str) -> None:
    held = {"w": zeros(0, 2, 3), "c": zeros(0, 1) if op != "BatchNormalization" else zeros(0)}
    names = "a c c c c" if op == "BatchNormalization" else "a c"
    nodes: Nodes = [("Conv", "x w", "a", {}), (op, names, "y", {})]
    (y,) = run(device, nodes, {"x": zeros(1, 2, 5)}, held)
    assert y.shape == (1, 0, 3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("rows", "inner", "columns"), [(5, 4, 0), (5, 0, 3), (0, 4, 3)])
def test_rows_without_elements(device: str, rows: int, inner: int, columns: int) -> None:
    held = {
        "w": np.ones((inner, columns), np.float32),
        "b": BIAS[:columns],
        "i": np.asarray(0),
        "j": np.asarray(1),
    }
    nodes: Nodes = []
    for name in "ij":
        nodes.append(("Gather", f"x {name}", f"g{name}", {"axis": 1}))
        nodes.append(("Gemm", f"g{name} w b", f"p{name}", {}))
    nodes.append(("Sub", "pi pj", "y", {}))
    (y,) = run(device, nodes, {"x": np.ones((rows, 2, inner), np.float32)}, held)
    np.testing.assert_array_equal(y, zeros(rows, columns))
