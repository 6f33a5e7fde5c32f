"""Operators of ai.onnx.ml as standard ones, where these compute the same.

ArrayFeatureExtractor => [Reshape +] Gather [+ Reshape]
Binarizer             => Greater + Cast
Imputer               => IsNaN or Equal, + Where
LinearRegressor       => Gemm
Scaler                => [Cast +] Sub + Mul [+ Cast]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.dtypes import FLOAT32, INT64, DType
from engine.ir import Array, Graph, Node
from engine.passes.base import PassResult
from engine.passes.build import Builder, Rule, replace_nodes

DOMAIN = "ai.onnx.ml"


def lower_ml(graph: Graph) -> PassResult:
    """Writes operators of ai.onnx.ml out in standard ones. Source: ai.onnx.ml-5."""
    return replace_nodes(graph, _rule_of)


def _rule_of(node: Node) -> Rule | None:
    return _RULES.get(node.op_type) if node.domain == DOMAIN else None


def _extractor(b: Builder) -> str:
    x, y = b.node.inputs
    lead = b.shape(0)[:-1]
    if not b.shape(0):
        return "its data is a scalar"
    if len(b.shape(1)) != 1:
        y = b.op("Reshape", y, b.int_constant(-1))
    if lead:
        b.op("Gather", x, y, output=b.output(0), axis=-1)
    else:
        b.op("Reshape", b.op("Gather", x, y, axis=-1), b.int_constant(1, -1), output=b.output(0))
    return ""


def _binarizer(b: Builder) -> str:
    dtype, threshold = b.dtype(0), float(b.attr("threshold", 0.0))
    if dtype.is_integer:
        # x > t is x > floor(t) for whole x
        info = np.iinfo(dtype.numpy)
        if not info.min <= np.floor(threshold) <= info.max:
            return f"its threshold is below or above all {dtype}"
        threshold = int(np.floor(threshold))
    limit = np.array(threshold, dtype.numpy)
    above = b.op("Greater", b.node.inputs[0], b.constant(limit))
    b.op("Cast", above, output=b.output(0), to=dtype.code)
    return ""


def _row(b: Builder, values: Sequence[float], dtype: DType) -> Array | None:
    """Numbers for the columns of a matrix: one for each, or one for all; None if neither."""
    row = np.array(values, np.float64).astype(dtype.numpy)
    return row if len(values) == 1 or len(values) == b.shape(0)[-1] else None


def _imputer(b: Builder) -> str:
    dtype, x = b.dtype(0), b.node.inputs[0]
    kind = "float" if dtype.is_float else "int64"
    if dtype not in (FLOAT32, INT64) or len(b.shape(0)) != 2:
        return f"it is not of a matrix of float32 or int64, but of {b.type(0)}"
    row = _row(b, b.attr(f"imputed_value_{kind}s") or (), dtype)
    replaced = b.attr(f"replaced_value_{kind}", 0)
    if row is None:
        return f"it has no {kind} value for each column"
    if dtype.is_float and np.isnan(replaced):
        missing = b.op("IsNaN", x)
    else:
        missing = b.op("Equal", x, b.constant(np.array(replaced, dtype.numpy)))
    b.op("Where", missing, b.constant(row), x, output=b.output(0))
    return ""


def _regressor(b: Builder) -> str:
    coefficients = np.array(b.attr("coefficients") or (), np.float32)
    targets, transform = int(b.attr("targets", 1)), b.attr("post_transform", "NONE")
    if b.dtype(0) != FLOAT32 or len(b.shape(0)) != 2:
        return f"it is not of a matrix of float32, but of {b.type(0)}"
    if transform not in ("NONE", b"NONE"):
        return f"it ends in the transform {transform!r}"
    columns = b.shape(0)[1]
    if not isinstance(columns, int) or coefficients.size != targets * columns:
        return "its coefficients do not fit its columns"
    inputs = [b.node.inputs[0], b.constant(coefficients.reshape(targets, columns))]
    if b.attr("intercepts"):
        inputs.append(b.constant(np.array(b.attr("intercepts"), np.float32)))
    b.op("Gemm", *inputs, output=b.output(0), transB=1)
    return ""


def _scaler(b: Builder) -> str:
    dtype, x = b.dtype(0), b.node.inputs[0]
    if not b.shape(0):
        return "its data is a scalar"
    if dtype.is_integer:
        dtype, x = FLOAT32, b.op("Cast", x, to=FLOAT32.code)
    rows = [_row(b, b.attr(name) or (d,), dtype) for name, d in (("offset", 0.0), ("scale", 1.0))]
    if rows[0] is None or rows[1] is None:
        return "its offsets or scales are not as many as its columns"
    moved = b.op("Sub", x, b.constant(rows[0]))
    if dtype == FLOAT32:
        b.op("Mul", moved, b.constant(rows[1]), output=b.output(0))
    else:
        b.op("Cast", b.op("Mul", moved, b.constant(rows[1])), output=b.output(0), to=FLOAT32.code)
    return ""


_RULES: dict[str, Rule] = {
    "ArrayFeatureExtractor": _extractor,
    "Binarizer": _binarizer,
    "Imputer": _imputer,
    "LinearRegressor": _regressor,
    "Scaler": _scaler,
}
