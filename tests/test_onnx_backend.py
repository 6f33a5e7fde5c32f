"""The conformance suite of ONNX, case by case, against `onnx_backend_status.txt`."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine import backend
from engine.errors import DeviceError, InputError
from tests.backend_suite import PASSES, RANDOM, Case, load_cases, outcome, read_status

STATUS = read_status()
UPDATE = "if that is right: python -m tests.update_backend_status"


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return load_cases()


def _parameters(device: str) -> list[object]:
    """The cases with their status; slow together, as they are thousands."""
    marks = [pytest.mark.slow, *([pytest.mark.gpu] if device == "GPU" else [])]
    return [
        pytest.param(name, status[device == "GPU"], marks=marks, id=name)
        for name, status in STATUS.items()
    ]


@pytest.mark.slow
def test_every_case_is_listed(cases: dict[str, Case]) -> None:
    assert STATUS.keys() == cases.keys()


@pytest.mark.parametrize(("name", "status"), _parameters("CPU"))
def test_cpu(name: str, status: str, cases: dict[str, Case]) -> None:
    check(cases[name], "CPU", status)


@pytest.mark.parametrize(("name", "status"), _parameters("GPU"))
def test_gpu(name: str, status: str, cases: dict[str, Case]) -> None:
    check(cases[name], "GPU", status)


def check(case: Case, device: str, status: str) -> None:
    found = outcome(case, device, status.startswith(RANDOM))
    if status.startswith(RANDOM):
        assert found in PASSES, found
    elif status in PASSES:
        assert found == status, f"{found}; {UPDATE}"
    else:
        assert found.startswith("fail: "), f"it is {found!r} now; {UPDATE}"


def test_what_was_reached_is_kept() -> None:
    """Most cases pass, and most of the GPU's pass there."""
    cpu = Counter(status[0] for status in STATUS.values())
    gpu = Counter(status[1] for status in STATUS.values())
    assert cpu["pass"] >= 2024
    assert sum(gpu[status] for status in PASSES) >= 2023
    assert gpu["gpu"] >= 1300


X = np.array([[-1.5, 2.0]], np.float32)
DEVICES = ["CPU", pytest.param("GPU", marks=pytest.mark.gpu)]


def model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="twice"),
        helper.make_node("Reshape", ["r", "s"], ["y"], name="twice"),
        helper.make_node("Det", ["m"], ["d"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("s", TensorProto.INT64, [1]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2]),
            helper.make_tensor_value_info("m", TensorProto.DOUBLE, [2, 2]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("d", TensorProto.DOUBLE, []),
        ],
        [helper.make_tensor("s", TensorProto.INT64, [1], [2])],
    )
    return helper.make_model(graph)


@pytest.mark.parametrize("device", DEVICES)
def test_inputs_by_position_and_by_name(device: str) -> None:
    rep = backend.prepare(model(), device)
    square = np.array([[1, 2], [3, 4]], np.float64)
    for inputs in ([X, square], {"m": square, "x": X, "s": np.array([2])}):
        y, d = rep.run(inputs)
        np.testing.assert_array_equal(y, [0, 2])
        np.testing.assert_allclose(d, -2, rtol=1e-6)
    place = device.lower()
    assert rep.node_placement() == [
        ("Relu", "", place),
        ("Reshape", "", place),
        ("Det", "", "cpu"),
    ]


@pytest.mark.parametrize("device", DEVICES)
def test_one_node(device: str) -> None:
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    (y,) = backend.run_node(node, [X, np.float32(1)], device)
    np.testing.assert_array_equal(y, [[-1.5, 1]])
    old = helper.make_node("Softmax", ["x"], ["y"])
    (y,) = backend.run_node(old, {"x": X.reshape(1, 2, 1)}, device, opset_version=11)
    np.testing.assert_allclose(y.sum(), 1, rtol=1e-6)


def test_inputs_of_one_node() -> None:
    twice = helper.make_node("Add", ["x", "x"], ["y"])
    for inputs in (X, [X], [X, X], {"x": X}):
        np.testing.assert_array_equal(backend.run_node(twice, inputs), [X + X])


def test_the_standard_domain_has_two_names() -> None:
    """Before version 13, Softmax is taken over all axes from the second on."""
    for domain in ("", "ai.onnx"):
        node = helper.make_node("Softmax", ["x"], ["y"], domain=domain)
        (y,) = backend.run_node(node, [X.reshape(1, 2, 1)], opset_version=11)
        np.testing.assert_allclose(y.sum(), 1, rtol=1e-6)


def test_what_does_not_fit_is_said() -> None:
    rep = backend.prepare(model())
    with pytest.raises(InputError, match="3 inputs were given; the model has 2"):
        rep.run([X, X, X])
    with pytest.raises(InputError, match="fast"):
        rep.run([X, X], fast=True)
    with pytest.raises(InputError, match="'b'"):
        backend.run_node(helper.make_node("Add", ["a", "b"], ["c"]), [X])
    with pytest.raises(DeviceError, match="NPU"):
        backend.prepare(model(), "NPU")
    assert backend.supports_device("CPU")
    assert not backend.supports_device("NPU")
    assert not backend.supports_device("GPU:99")
