"""The node cases of onnx's backend suite through the engine on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx.backend.test.runner import Runner

import engine
from tests.cpu_fallback.node_cases import cases_of


def gpu_failures(op_type: str, *, require_gpu: bool = False) -> dict[str, str]:
    """Names of the failing cases of an operator, with the first line of what went wrong."""
    failed: dict[str, str] = {}
    for case in cases_of(op_type):
        try:
            with engine.InferenceSession(
                case.model, device="gpu", require_gpu=require_gpu
            ) as session:
                names = [value.name for value in session.get_inputs()]
                for inputs, expected in case.data_sets:
                    got = session.run(None, dict(zip(names, map(as_array, inputs), strict=False)))
                    with np.errstate(all="ignore"):
                        Runner.assert_similar_outputs(
                            [as_array(v) for v in expected], got, case.rtol, case.atol
                        )
        except (engine.EngineError, AssertionError) as error:
            failed[case.name] = " ".join(str(error).split())[:300]
    return failed


def as_array(value: Any) -> Any:
    """A value of the suite as an array, if it is a tensor."""
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
