"""The model of a case: one node, sizes of inputs as symbols or as numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx
import onnx.helper as oh

from tests.properties.cases import Case
from tests.properties.drawing import Array, is_float

AHEAD = "ahead"


def build(
    operator: str,
    case: Case,
    constants: Sequence[int],
    values: Sequence[Array | None] | None = None,
    symbolic: bool = False,
    sized: Collection[int | tuple[int, int]] = (),
) -> onnx.ModelProto:
    """The model with inputs x0, x1, ... and outputs y0, y1, ...

    Args:
        constants: inputs that are initializers.
        values: arrays that give types and shapes instead of the case's.
        symbolic: every size of every input has a name of its own, but of those in `sized`.
    """
    values = case.inputs if values is None else values
    domain, _, op = operator.rpartition(":")
    infos, initializers = [], []
    for index, value in enumerate(values):
        if value is None:
            continue
        if index in constants:
            initializers.append(onnx.numpy_helper.from_array(value, f"x{index}"))
            continue
        shape = [
            f"d{index}_{a}" if symbolic and index not in sized and (index, a) not in sized else s
            for a, s in enumerate(value.shape)
        ]
        code = oh.np_dtype_to_tensor_dtype(value.dtype)
        infos.append(oh.make_tensor_value_info(f"x{index}", code, shape))
    names = ["" if v is None else f"x{i}" for i, v in enumerate(values)]
    nodes = []
    before = values[case.behind]
    if case.ahead and before is not None:
        nodes.append(_ahead(case, before))
        names[case.behind] = AHEAD
    outputs = [f"y{i}" if used else "" for i, used in enumerate(case.outputs)]
    nodes.append(oh.make_node(op, names, outputs, name="node", domain=domain, **case.attrs))
    results = [oh.make_empty_tensor_value_info(n) for n in outputs if n]
    graph = oh.make_graph(nodes, "one_node", infos, results, initializers)
    opsets = [oh.make_opsetid("", case.opset if not domain else min(case.opset, 22))]
    if domain:
        opsets.append(oh.make_opsetid(domain, 1))
    return oh.make_model(graph, opset_imports=opsets, ir_version=10)


def _ahead(case: Case, value: Array) -> onnx.NodeProto:
    """The node that stands before an input."""
    op_type: str = case.ahead
    if case.ahead == "flip":
        op_type = {"b": "Not", "i": "BitwiseNot", "u": "BitwiseNot"}.get(value.dtype.kind, "Neg")
    return oh.make_node(op_type, [f"x{case.behind}"], [AHEAD])


def flipped(value: Array) -> Array:
    """What "flip" makes of an array."""
    if value.dtype == np.bool_:
        return ~value
    return -value if is_float(value.dtype) else ~value


def feeds(
    case: Case, constants: Sequence[int], values: Sequence[Array | None] | None = None
) -> dict[str, Array]:
    """The arrays of the model's inputs."""
    values = case.inputs if values is None else values
    return {f"x{i}": v for i, v in enumerate(values) if v is not None and i not in constants}
