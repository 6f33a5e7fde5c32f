"""What the outputs of a case should be: onnx.reference in float64, or ONNX Runtime."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from tests.properties.cases import Case
from tests.properties.drawing import Array, is_float
from tests.properties.models import build, feeds

onnxruntime.set_default_logger_severity(4)


def expected(operator: str, case: Case) -> list[Array] | None:
    """The outputs that the oracle gives, or None if there is none."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if callable(case.oracle):
            found = case.oracle(*case.inputs)
            return list(found) if isinstance(found, (tuple, list)) else [found]
        if case.oracle == "reference":
            return reference(operator, case)
        if case.oracle == "runtime":
            return runtime(build(operator, case, ()), feeds(case, ()))
    return None


def reference(operator: str, case: Case) -> list[Array]:
    """onnx.reference; short floats and float32 are given to it as float64."""
    wide = [v.astype(np.float64) if v is not None and is_float(v.dtype) else v for v in case.inputs]
    model = build(operator, case, (), wide)
    return list(ReferenceEvaluator(model).run(None, feeds(case, (), wide)))


def runtime(model: onnx.ModelProto, given: Mapping[str, Array]) -> list[Any]:
    """ONNX Runtime on the CPU, without its optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, ["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(given)))
