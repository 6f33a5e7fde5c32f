"""One node run by ONNX Runtime, as a second opinion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime


def ort_node(
    op_type: str,
    inputs: Sequence[np.ndarray[Any, Any] | None],
    n_outputs: int,
    *,
    domain: str = "",
    model_opset: int = 22,
    outputs: Sequence[bool] | None = None,
    **attributes: Any,
) -> list[Any]:
    """Outputs of a single node; shapes and types of the inputs are taken from the arrays."""
    used = [True] * n_outputs if outputs is None else list(outputs)
    node = onnx.helper.make_node(
        op_type,
        ["" if value is None else f"x{i}" for i, value in enumerate(inputs)],
        [f"y{i}" if use else "" for i, use in enumerate(used)],
        domain=domain,
        **attributes,
    )
    infos = [
        onnx.helper.make_tensor_value_info(
            f"x{i}", onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for i, value in enumerate(inputs)
        if value is not None
    ]
    results = [
        onnx.helper.make_empty_tensor_value_info(f"y{i}") for i, use in enumerate(used) if use
    ]
    graph = onnx.helper.make_graph([node], "one_node", infos, results)
    opsets = [onnx.helper.make_opsetid("", model_opset)]
    if domain:
        opsets.append(onnx.helper.make_opsetid(domain, 1))
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
    return list(session.run(None, feeds))
