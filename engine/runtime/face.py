"""Face: what a session needs to know of a model before it makes a plan, without its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engine.ir import Graph, OptionalType, SequenceType, TensorType, Value, ValueType
from engine.records import dataclass

if TYPE_CHECKING:
    from engine.importer import Model
    from engine.importer.types import Declared


@dataclass(frozen=True)
class NodeArg:
    """An input or output as the model declares it.

    Attributes:
        name: its name.
        type: such as "tensor(float)", as ONNX Runtime writes it.
        shape: integers, or strings for symbolic sizes; None if the rank is not declared.
    """

    name: str
    type: str
    shape: list[int | str] | None


@dataclass(frozen=True)
class ModelMetadata:
    """Producer, names, texts, version and key-value pairs of a model file."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


@dataclass(frozen=True)
class Traits:
    """What a runner asks of a graph again and again.

    Attributes:
        planning: inputs that kernels need to know when planning; see `planning_inputs`.
        growing: inputs, and outputs that append to them.
    """

    planning: tuple[str, ...]
    growing: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Face:
    """What is seen of a model.

    Attributes:
        graph: its inputs and outputs; optional inputs have an empty constant. There are no nodes.
        inputs, outputs, overridable, metadata: as the file declares them.
        traits: of the whole graph.
    """

    graph: Graph
    inputs: tuple[NodeArg, ...]
    outputs: tuple[NodeArg, ...]
    overridable: tuple[NodeArg, ...]
    metadata: ModelMetadata
    traits: Traits


def traits_of(graph: Graph) -> Traits:
    """The traits of a graph as imported."""
    from engine.appends import growing_pairs
    from engine.liveness import planning_inputs

    return Traits(planning_inputs(graph), growing_pairs(graph))


def face_of(model: Model) -> Face:
    """The face of a loaded model."""
    metadata = ModelMetadata(
        model.producer_name,
        model.graph_name,
        model.domain,
        model.description,
        model.graph_description,
        model.version,
        dict(model.metadata),
    )
    declared = (model.inputs, model.outputs, model.overridable)
    inputs, outputs, overridable = (tuple(map(_node_arg, found)) for found in declared)
    traits = traits_of(model.graph)
    return Face(_outside(model.graph), inputs, outputs, overridable, metadata, traits)


def _outside(graph: Graph) -> Graph:
    empty = np.zeros(0, np.uint8)
    values = {}
    for name in (*graph.inputs, *graph.outputs):
        value = graph.values[name]
        is_default = value.constant is not None
        values[name] = Value(name, value.type, empty if is_default else None)
    return Graph((), values, graph.inputs, graph.outputs, (), graph.opset, graph.name)


_NAMES = {"float32": "float", "float64": "double", "bool": "bool"}


def _type_text(type_: ValueType | None) -> str:
    if isinstance(type_, TensorType):
        return f"tensor({_NAMES.get(type_.dtype.name, type_.dtype.name)})"
    if isinstance(type_, SequenceType):
        return f"seq({_type_text(type_.element)})"
    if isinstance(type_, OptionalType):
        return f"optional({_type_text(type_.element)})"
    return "unknown"


def _node_arg(declared: Declared) -> NodeArg:
    type_: Any = declared.type
    shape = type_.shape if isinstance(type_, TensorType) else None
    dims = None if shape is None else [d if isinstance(d, int) else str(d) for d in shape]
    return NodeArg(declared.name, _type_text(type_), dims)
