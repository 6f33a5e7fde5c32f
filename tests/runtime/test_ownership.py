"""What a call returns belongs to the caller: writing to it changes nothing else."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import engine
from engine.runtime.session import InferenceSession
from tests.runtime.models import parse

DEVICES = ("cpu", pytest.param("gpu", marks=pytest.mark.gpu))
MODEL = """<ir_version: 10, opset_import: ["" : 21]>
f (float[n,2] x) => (float[m] flat, float[n,2] same, float[2,n] turned, float[3] weights,
                     float[n,2] sum, float[k] sums)
<float[3] w = {1, 2, 3}> {
  minus = Constant <value_ints = [-1]> ()
  flat = Reshape(x, minus)
  same = Identity(x)
  turned = Transpose(x)
  weights = Identity(w)
  sum = Add(x, x)
  sums = Reshape(sum, minus)
}"""


@pytest.mark.parametrize("device", DEVICES)
def test_results_share_memory_with_nothing(device: str) -> None:
    with engine.InferenceSession(onnx.parser.parse_model(MODEL), device=device) as session:
        x = np.arange(6, dtype=np.float32).reshape(3, 2)
        kept = x.copy()
        want = [r.copy() for r in session.run(None, {"x": x})]
        results = session.run(None, {"x": x})
        for index, result in enumerate(results):
            result[...] = -7
            for other in results[index + 1 :]:
                assert not np.shares_memory(result, other)
        np.testing.assert_array_equal(x, kept)
        for again, expected in zip(session.run(None, {"x": x}), want, strict=True):
            np.testing.assert_array_equal(again, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_items_of_sequences_belong_to_the_caller(device: str) -> None:
    text = """g (seq(float[2]) q, float[2] x) => (seq(float[2]) r, float[2] first)
    <float[2] w = {5, 6}, int64 zero = {0}> {
      a = SequenceInsert(q, x)
      b = SequenceInsert(a, x)
      r = SequenceInsert(b, w)
      first = SequenceAt(q, zero)
    }"""
    item, x = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    with InferenceSession(parse(text), device=device) as session:
        for _ in range(2):
            r, first = session.run(None, {"q": [item], "x": x})
            np.testing.assert_array_equal(r, [[1, 2], [3, 4], [3, 4], [5, 6]])
            np.testing.assert_array_equal(first, [1, 2])
            for result in (*r, first):
                result[...] = -7
                np.testing.assert_array_equal((item, x), ([1, 2], [3, 4]))


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_contents_worked_out_from_sizes_belong_to_the_caller(device: str) -> None:
    text = """g (float[n] x) => (int64[2] t, float[4,n] y) {
      four = Constant <value_ints = [4]> ()
      s = Shape(x)
      t = Concat <axis = 0> (four, s)
      y = Expand(x, t)
    }"""
    x = np.arange(5, dtype=np.float32)
    with InferenceSession(parse(text), device=device) as session:
        for _ in range(4):
            t, y = session.run(None, {"x": x})
            np.testing.assert_array_equal(t, [4, 5])
            np.testing.assert_array_equal(y, np.stack([x] * 4))
            t.fill(77)
