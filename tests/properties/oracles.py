"""What the outputs of a case should be: onnx.reference in float64, or ONNX Runtime."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
from onnx.reference import ReferenceEvaluator

from tests.properties.cases import Case
from tests.properties.drawing import Array, is_float
from tests.properties.models import build, feeds, flipped

onnxruntime.set_default_logger_severity(4)


def expected(operator: str, case: Case) -> list[Array] | None:
    """The outputs that the oracle gives, or None if there is none."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if callable(case.oracle):
            inputs = list(case.inputs)
            if case.ahead == "flip" and inputs[0] is not None:
                inputs[0] = flipped(inputs[0])
            found = case.oracle(*inputs)
            every = list(found) if isinstance(found, (tuple, list)) else [found]
            return [y for y, used in zip(every, case.outputs, strict=True) if used]
        if case.oracle == "reference":
            return reference(operator, case)
        if case.oracle == "runtime":
            return runtime(operator, case)
    return None


def reference(operator: str, case: Case) -> list[Array]:
    """onnx.reference; short floats and float32 are given to it as float64."""
    wide = [v.astype(np.float64) if v is not None and is_float(v.dtype) else v for v in case.inputs]
    model = build(operator, case, (), wide)
    return list(ReferenceEvaluator(model).run(None, feeds(case, (), wide)))


def runtime(operator: str, case: Case) -> list[Any]:
    """ONNX Runtime on the CPU, without its optimisations; short floats go to it as float32.

    It has no operators of version 6; those that come here did not change in version 7.
    """
    case = dataclasses.replace(case, opset=max(case.opset, 7))
    short = (np.float16, ml_dtypes.bfloat16)
    wide = [v.astype(np.float32) if v is not None and v.dtype in short else v for v in case.inputs]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    model = build(operator, case, case.constants or (), wide).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    return list(session.run(None, feeds(case, case.constants or (), wide)))
