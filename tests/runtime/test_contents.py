"""Inputs whose content a kernel must know when it is planned: axes, targets, sizes."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from engine.runtime.runner import MAX_CONTENTS
from engine.runtime.session import InferenceSession

pytestmark = pytest.mark.gpu

REDUCE = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[4, 5, 6, 7, 8] x, int64[k] axes) => (float[a, b, c, d, e] y) {
        y = ReduceSum(x, axes) }"""
SLICE = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[n] x, int64[1] size) => (float[m] y) {
        one = Constant<value_ints = [1]>()
        end = Add(size, one)
        y = Slice(x, one, end) }"""
X = np.random.default_rng(1).normal(size=(4, 5, 6, 7, 8)).astype(np.float32)


def session(text: str) -> InferenceSession:
    return InferenceSession(onnx.parser.parse_model(text), device="gpu")


def places(made: InferenceSession) -> set[tuple[str, str]]:
    return {(node.op_type, place) for node, place in made.executed()}


def test_each_content_gets_a_plan_until_there_are_too_many() -> None:
    made = session(REDUCE)
    for axis in range(MAX_CONTENTS + 1):
        for _ in range(2):
            (y,) = made.run(None, {"x": X, "axes": np.array([axis], np.int64)})
            np.testing.assert_allclose(y, X.sum(axis, keepdims=True), rtol=1e-5, atol=1e-5)
        assert made.plans_made == axis + 1
        where = "gpu" if axis < MAX_CONTENTS else "cpu"
        assert places(made) == {("ReduceSum", where)}
    made.run(None, {"x": X, "axes": np.array([0], np.int64)})
    assert places(made) == {("ReduceSum", "gpu")}


def test_content_is_followed_through_arithmetic() -> None:
    made = session(SLICE)
    for size in (3, 5, 3):
        (y,) = made.run(None, {"x": X[0, 0, 0, 0], "size": np.array([size], np.int64)})
        np.testing.assert_array_equal(y, X[0, 0, 0, 0, 1 : size + 1])
        assert places(made) == {("Slice", "gpu")}
    assert made.plans_made == 2


def test_stand_ins_are_not_taken_for_contents() -> None:
    made = session(REDUCE)
    assert made.explain().nodes[0].device == "cpu"
    made.run(None, {"x": X, "axes": np.array([0], np.int64)})
    assert made.explain().nodes[0].device == "gpu"


FILL = """<ir_version: 10, opset_import: ["" : 18]>
    g (int64[2] s, float[n, m] x) => (float[n, m] y) {
        ones = ConstantOfShape<value = float[1] {1.0}>(s)
        y = Add(x, ones) }"""


def test_a_tensor_whose_size_a_call_tells_is_no_weight() -> None:
    with session(FILL) as made:
        for shape in ((2, 3), (4, 1)):
            x = np.full(shape, 0.5, np.float32)
            (got,) = made.run(None, {"s": np.array(shape), "x": x})
            np.testing.assert_array_equal(got, x + 1)
        assert ("ConstantOfShape", "gpu") in places(made)


COUNTED = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[a, b] x) => (float[n] y) {
        found = NonZero(x)  sizes = Shape(found)  f = Cast<to = 1>(sizes)
        quarter = Constant<value_float = 0.25>()  part = Mul(f, quarter)
        e = Exp(x)  total = ReduceSum<keepdims = 0>(e)  y = Add(part, total) }"""


def test_sizes_that_data_decide_are_numbers_once_they_are_known() -> None:
    with session(COUNTED) as made:
        for x in (np.eye(3), np.eye(5), np.zeros((2, 2))):
            (y,) = made.run(None, {"x": x.astype(np.float32)})
            sizes = np.array([2, np.count_nonzero(x)])
            np.testing.assert_allclose(y, sizes / 4 + np.exp(x).sum(), rtol=1e-5)
        assert ("Mul", "gpu") in places(made)


SIZES_ONLY = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[a, b] x, int64[k] i) => (int64[1] y) {
        found = NonZero(x)  sizes = Shape(found)  some = Gather(sizes, i)  y = Shape(some) }"""


def test_what_nobody_needs_need_not_be_known() -> None:
    with session(SIZES_ONLY) as made:
        for count in (3, 1):
            feeds = {"x": np.eye(3, dtype=np.float32), "i": np.zeros(count, np.int64)}
            np.testing.assert_array_equal(made.run(None, feeds)[0], [count])
        assert ("NonZero", "cpu") not in places(made)
