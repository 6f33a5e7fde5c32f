"""Small models as text, for the tests of the session and what is below it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

from engine.ir import Array

OPSET = 21


def parse(text: str, opset: int = OPSET) -> onnx.ModelProto:
    """A checked model from ONNX's textual syntax: `name (inputs) => (outputs) { nodes }`."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')
    onnx.checker.check_model(model)
    return model


def noise(*shape: int, seed: int = 3) -> Array:
    """Normal float32 numbers, the same for the same shape and seed."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


AFFINE = """affine (float[n,3] x, float[3] b) => (float[n,3] y, float[n,3] z) {
  sum = Add(x, b)
  y = Tanh(sum)
  z = Neg(sum)
}"""

SCALED = """scaled (float[n,4] x, float[4] scale = {1.0, 2.0, 3.0, 4.0}) => (float[n,4] y) {
  y = Mul(x, scale)
}"""

DEEP = """deep (float[n,5] x, float[n,2,4] s, float[1,1024,4] w, float[1,1024,256] r)
    => (float[n,5] y, float[n,1,2,256] h) {
  a = Softmax(x)
  y = Sigmoid(a)
  h = LSTM <hidden_size = 256> (s, w, r)
}"""
"""Kernels with and without parameters, one of which repeats."""
