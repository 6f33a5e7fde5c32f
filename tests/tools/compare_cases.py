"""Models that compare is tested on, with their inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from engine.tools.compare import Comparison, Setup, compare
from tests.runtime.models import parse

RNG = np.random.default_rng(17)


def noise(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def examine(
    folder: Path, text: str, feeds: dict[str, Any], against: str = "cpu", **more: Any
) -> Comparison:
    model = folder / "model.onnx"
    onnx.save(parse(text), model)
    return compare(Setup(model, **more), feeds, against=against, folder=folder / "wrong")


NETWORK = """network (float[n,6] x, float[6,8] w, float[8] b) => (float[n,3] y, float[n,8] g) {
  p = MatMul(x, w)
  q = Add(p, b)
  r = Relu(q)
  s = Softmax <axis = -1> (r)
  e = Exp(s)
  t = Sqrt(e)
  h = Sub(t, b)
  i = Constant <value_ints = [0, 5, 2]> ()
  y = Gather <axis = 1> (h, i)
  axes = Constant <value_ints = [0]> ()
  m = ReduceMean <keepdims = 1> (h, axes)
  d = Transpose <perm = [1, 0]> (h)
  dd = Transpose <perm = [1, 0]> (d)
  g = Mul(dd, m)
}"""


def network() -> dict[str, Any]:
    return {"x": noise(9, 6), "w": noise(6, 8), "b": noise(8)}


IMAGE = """image (float[1,3,9,11] x, float[4,3,3,3] w) => (float[1,4,4,5] y) {
  c = Conv <pads = [1, 1, 1, 1]> (x, w)
  y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
}"""


def image() -> dict[str, Any]:
    return {"x": noise(1, 3, 9, 11), "w": noise(4, 3, 3, 3)}


GELU = """gelu (float[5,7] x) => (float[5,7] y) {
  half = Constant <value_float = 0.5> ()
  one = Constant <value_float = 1.0> ()
  root = Constant <value_float = 1.4142135> ()
  a = Div(x, root)
  b = Erf(a)
  c = Add(b, one)
  d = Mul(x, c)
  y = Mul(d, half)
}"""

NORMALISED = """n (float[1,2,5,5] x) => (float[1,3,3,3] y)
<float[3,2,3,3] w = {WEIGHTS}, float[3] scale = {1, 2, 3}, float[3] shift = {1, 0, 1},
 float[3] mean = {0.5, 0.25, 0}, float[3] variance = {1, 2, 1}> {
  c = Conv(x, w)
  y = BatchNormalization(c, scale, shift, mean, variance)
}""".replace("WEIGHTS", ", ".join(str(i % 7) for i in range(54)))

BODIES = """looped (float[3] x, int64 trips) => (float[3] y) {
  go = Constant <value = bool {1}> ()
  y = Loop (trips, go, x) <body = g (int64 i, bool c, float[3] a) => (bool d, float[3] b) {
    d = Identity(c)
    b = If (c) <then_branch = t () => (float[3] z) {
      e = Exp(a)
      z = Softmax <axis = -1> (e)
    }, else_branch = f () => (float[3] z) { z = Neg(a) }>
  }>
}"""


DOUBLE = """double (double[n,4] x) => (double[n,4] y) {
  a = Abs(x)
  b = Softmax(a)
  y = Sqrt(b)
}"""
