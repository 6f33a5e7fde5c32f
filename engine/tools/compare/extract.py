"""Extract: a node or a group as a model of its own, with its inputs, as ONNX's test folders are.

Layout: `model.onnx`, `test_data_set_0/input_<i>.pb` and `output_<i>.pb` (what is right), and
`got_<i>.npy` beside them (what came instead). Source: ONNX backend tests, onnx/backend/test.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from engine.dtypes import from_numpy
from engine.errors import InputError
from engine.exporter import tensor_proto, to_model
from engine.ir import Graph, Node, SequenceType, TensorType, Value, ValueType
from engine.runtime.session import InferenceSession

log = logging.getLogger(__name__)

DATA = "test_data_set_0"


def subgraph(
    graph: Graph,
    nodes: Sequence[Node],
    inputs: Mapping[str, Any],
    outputs: Iterable[str],
    dynamic: bool = False,
    sizes: Mapping[str, Any] | None = None,
) -> Graph:
    """Nodes of a graph as a graph of their own.

    Args:
        graph: gives opset and constants.
        nodes: in topological order.
        inputs: what they read from outside that is no constant of the graph, with values.
        outputs: which of their results are outputs.
        dynamic: whether sizes of inputs are symbols, one for each size.
        sizes: further constants.
    """
    read = {n for node in nodes for n in node.reads}
    values = {n: Value(n, value_type(v, dynamic)) for n, v in inputs.items() if n in read}
    for name, array in ((n, a) for n, a in (sizes or {}).items() if n in read):
        values[name] = Value(name, value_type(array), np.asarray(array))
    for name in read - values.keys():
        found = graph.values.get(name)
        if found is not None and found.constant is not None:
            values[name] = Value(name, found.type, found.constant)
    given = tuple(n for n in inputs if n in read)
    for node in nodes:
        for name in node.writes:
            kind = graph.values[name].type if name in graph.values else None
            if isinstance(kind, TensorType):
                kind = TensorType(kind.dtype)
            values[name] = Value(name, kind)
    return Graph(tuple(nodes), values, given, tuple(outputs), opset=graph.opset, name="extracted")


def value_type(value: Any, dynamic: bool = False) -> ValueType | None:
    """The type of a value; None for an optional without content."""
    if value is None:
        return None
    if isinstance(value, list):
        first = value_type(value[0]) if value else None
        if isinstance(first, TensorType):
            first = TensorType(first.dtype)
        return SequenceType(first or TensorType(from_numpy(np.dtype(np.float32))))
    array = np.asarray(value)
    if not dynamic:
        return TensorType(from_numpy(array.dtype), tuple(array.shape))
    from engine.dims import symbol

    return TensorType(from_numpy(array.dtype), tuple(symbol(f"size_{s}") for s in array.shape))


def write_case(
    folder: Path, graph: Graph, inputs: Mapping[str, Any], want: Sequence[Any], got: Sequence[Any]
) -> Path:
    """Writes a test folder; returns the path of its model. `want` and `got` as the outputs are."""
    data = folder / DATA
    data.mkdir(parents=True, exist_ok=True)
    model = folder / "model.onnx"
    onnx.save(to_model(graph), model)
    for kind, values in (("input", [inputs[n] for n in graph.inputs]), ("output", want)):
        names = graph.inputs if kind == "input" else graph.outputs
        for index, (name, value) in enumerate(zip(names, values, strict=True)):
            (data / f"{kind}_{index}.pb").write_bytes(_proto(name, value).SerializeToString())
    for index, value in enumerate(got):
        if isinstance(value, np.ndarray):
            np.save(data / f"got_{index}.npy", value, allow_pickle=value.dtype.kind == "O")
    return model


def reference_outputs(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """What onnx.reference makes of a graph; None where it knows no answer."""
    reference = import_module("onnx.reference")
    try:
        evaluator = reference.ReferenceEvaluator(to_model(graph))
        results = evaluator.run(None, {n: inputs[n] for n in graph.inputs})
    except Exception as error:
        log.info("onnx.reference does not run the group: %s", error)
        return None
    return dict(zip(graph.outputs, results, strict=True))


def _proto(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return numpy_helper.from_list([np.asarray(v) for v in value], name)
    if value is None:
        return onnx.OptionalProto(name=name)
    return tensor_proto(np.asarray(value), name)


def load_inputs(folder: Path, session: InferenceSession) -> dict[str, Any]:
    """The inputs in a test folder, in the order of the model's.

    Raises: InputError if there are none, or a file is damaged.
    """
    feeds: dict[str, Any] = {}
    for index, arg in enumerate(session.get_inputs()):
        path = folder / f"input_{index}.pb"
        try:
            feeds[arg.name] = _load(path.read_bytes(), arg.type)
        except OSError as error:
            raise InputError(f"input {arg.name!r}: cannot read {path}: {error.strerror}") from error
        except Exception as error:
            raise InputError(f"input {arg.name!r}: {path} is damaged: {error}") from error
    return feeds


def _load(data: bytes, kind: str) -> Any:
    if kind.startswith("seq("):
        return list(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
    if kind.startswith("optional("):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))
