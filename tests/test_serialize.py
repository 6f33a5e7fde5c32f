"""What is written of plans is read again, shared parts shared, and nothing else is."""

from __future__ import annotations

import dataclasses
import json
import math
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from engine import dims, serialize
from engine.compiler import compile_graph, optimise
from engine.costs import DeviceProfile
from engine.dtypes import BFLOAT16, FLOAT32
from engine.importer import load_model
from engine.ir import TensorType, Value
from engine.liveness import input_symbols
from engine.options import DeviceChoice, Options
from engine.serialize import DamagedError, NotSerializableError
from engine.target import Target
from tests.runtime.models import parse


def again(value: object) -> Any:
    return serialize.load(*serialize.dump(value))


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -(1 << 70), 1.5, math.inf, "", "ä\x00\ud800", b"\x00\xff", ()),
        (1, (2, [3, "four"]), {5: (6,), "seven": None, (8, "nine"): b"ten"}),
        *(frozenset({"a", "b"}), MappingProxyType({"k": 1}), FLOAT32, BFLOAT16),
        *(dims.symbol("n") * 3 + 1, dims.floordiv(dims.symbol("h") + 1, 2)),
        *(TensorType(FLOAT32, (1, dims.symbol("n"))), Target.baseline(), DeviceProfile.builtin()),
        Options("gpu", frozenset({"cse"}), refused={"y": "too large"}),
    ],
)
def test_a_value_survives(value: object) -> None:
    found = again(value)
    assert found == value and type(found) is (
        dict if isinstance(value, MappingProxyType) else type(value)
    )


def test_nan_survives() -> None:
    assert math.isnan(again((math.nan,))[0])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::2],
        np.array(3.5),
        np.zeros((2, 0, 3), np.float32),
        np.array([1, 2], FLOAT32.numpy),
        np.array([1.5, -2], BFLOAT16.numpy),
        np.array([["a", "ü"], ["", "b"]], object),
        np.array([dims.symbol("n"), 4, dims.symbol("n") + 1], object),
    ],
)
def test_an_array_survives(array: Any) -> None:
    found = again((array, array))
    assert found[0] is found[1]
    assert found[0].dtype == array.dtype and found[0].shape == array.shape
    np.testing.assert_array_equal(found[0], array)


def test_numbers_of_numpy_survive() -> None:
    number = again(np.float32(0.1))
    assert number == np.float32(0.1) and type(number) is np.float32


@pytest.mark.parametrize("value", [lambda: 1, object(), np.array(["a"]), {"k": print}, 1j])
def test_what_cannot_be_written_is_refused(value: object) -> None:
    with pytest.raises(NotSerializableError, match="not written"):
        serialize.dump((1, value))


def test_shared_parts_stay_shared() -> None:
    value = Value("v", TensorType(FLOAT32, (2,)))
    first, second = again(({"a": value}, [value]))
    assert first["a"] is second[0]


def test_a_plan_survives() -> None:
    model = parse(
        """g (float[n,3,h,w] x, int64[k] i) => (float[n,m] y, int64[a,b] z)
        <float[4,3,1,1] k = {1,2,3,4,5,6,7,8,9,10,11,12}> {
            c = Conv (x, k)
            r = Relu(c)
            y = Flatten(r)
            g = Gather <axis = 1> (y, i)
            z = NonZero(g)
        }"""
    )
    graph = load_model(model).graph
    binding = {"n": 1, "h": 5, "w": 5, "k": 2}
    passed = optimise(graph, Options("gpu"), binding)
    profile = DeviceProfile.builtin()
    plan = compile_graph(passed, Options("gpu"), Target.baseline(), profile, binding)
    portable = {k: v for k, v in vars(plan).items() if k != "derived"}
    found = again({**portable, "derived": {}})
    assert found["graph"].to_text() == plan.graph.to_text()
    assert found["kernels"] == plan.kernels
    assert found["memory"] == plan.memory and found["storages"] == plan.storages
    assert [type(s) for s in found["steps"]] == [type(s) for s in plan.steps]
    dispatches = [s for s in found["steps"] if hasattr(s, "variants")]
    assert tuple(dispatches) == plan.dispatches
    assert found["guards"] == plan.guards and found["checks"] == plan.checks


FAMILIES = {
    "matrix products": """g (float[n,4,8] a, float[n,4,8] b) => (float[n,4,4] y) {
        t = Transpose <perm = [0, 2, 1]> (b) m = MatMul(a, t) s = Softmax(m) y = Relu(s) }""",
    "convolution": """g (float[1,3,h,w] x) => (float[1,o,p,q] y)
        <float[6,3,3,3] k = {WEIGHTS}> { c = Conv (x, k) r = Clip(c) y = MaxPool
        <kernel_shape = [2,2]> (r) }""".replace("WEIGHTS", ", ".join(["1"] * 162)),
    "attention": """g (float[1,2,n,8] q, float[1,2,m,8] k, float[1,2,m,8] v) => (float[1,2,n,8] y) {
        t = Transpose <perm = [0,1,3,2]> (k) s = MatMul(q, t) w = Softmax(s) y = MatMul(w, v) }""",
    "recurrent": """g (float[n,2,4] x, float[1,32,4] w, float[1,32,8] r) => (float[n,1,2,8] y) {
        y = LSTM <hidden_size = 8> (x, w, r) }""",
    "sizes that data decide": """g (float[n] x) => (float[m] y) { i = NonZero(x) j = Squeeze(i)
        p = Gather(x, j) y = Exp(p) }""",
    "control flow": """g (bool c, float[n] x) => (float[n] y) { y = If (c) <
        then_branch = yes () => (float[n] a) { a = Exp(x) },
        else_branch = no () => (float[n] b) { b = Neg(x) }> }""",
    "resizing": """g (float[1,2,4,4] x, float[4] s) => (float[a,b,c,d] y) {
        r = Resize <mode = "linear"> (x, , s) y = Sigmoid(r) }""",
    "quantised": """g (uint8[1,8] x, float s, uint8 z, uint8[8,8] w) => (uint8[1,8] y) {
        y = QLinearMatMul(x, s, z, w, s, z, s, z) }""",
    "strings": "g (string[n] x, string[1] e) => (bool[n] y) { y = Equal(x, e) }",
}


@pytest.mark.parametrize("device", ["gpu", "auto", "cpu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_plans_of_every_kind_can_be_written(family: str, device: DeviceChoice) -> None:
    graph = load_model(parse(FAMILIES[family])).graph
    options = Options(device)
    binding = {s: 9 for s in input_symbols(graph)}
    passed = optimise(graph, options, binding)
    target = dataclasses.replace(Target.baseline(), software=True)
    plan = compile_graph(passed, options, target, DeviceProfile.builtin(), binding)
    found = again(dataclasses.replace(plan, derived={}))
    assert found.steps and repr(found.kernels) == repr(plan.kernels)


def test_only_known_classes_are_read() -> None:
    text, arrays = serialize.dump(TensorType(FLOAT32, (2,)))
    for module, name in (
        *(("os", "system"), ("engine.runtime.session", "InferenceSession")),
        *(("engine.ir", "dataclasses"), ("engine.ir", "DType"), ("engine.ir", "sort_nodes")),
    ):
        classes, entries, root = json.loads(text)
        classes[0] = [module, name, classes[0][2]]
        with pytest.raises(DamagedError, match="is not read"):
            serialize.load(json.dumps([classes, entries, root]), arrays)


def test_other_fields_are_refused() -> None:
    classes, entries, root = json.loads(serialize.dump(TensorType(FLOAT32, (2,)))[0])
    classes[0][2].append("more")
    with pytest.raises(DamagedError, match="other fields"):
        serialize.load(json.dumps([classes, entries, root]), [])


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", "[[], [], [0]]", "[[], [[7]], [0]]", '[[], [["tuple", [4]]], [0]]'),
        *('[[], [["array", 3]], [0]]', '[[], [["exec", "1"]], [0]]', '[[], [["dict", 1]], [0]]'),
        *('[[], [["dtype", "no"]], [0]]', '[[], [["bytes", 7]], [0]]', "[[1], [], 2]"),
    ],
)
def test_nonsense_is_damaged(text: str) -> None:
    with pytest.raises(DamagedError):
        serialize.load(text, [])
