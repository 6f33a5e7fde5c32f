"""Symbols in types: which there are, and replacing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine import dims
from engine.dims import Dim
from engine.ir import Graph, OptionalType, SequenceType, TensorType, Value, ValueType


def dims_of(kind: ValueType | None) -> frozenset[str]:
    """Names of the symbols in a type."""
    match kind:
        case TensorType(shape=shape) if shape is not None:
            return frozenset().union(*map(dims.symbols_of, shape))
        case SequenceType() | OptionalType():
            return dims_of(kind.element)
    return frozenset()


def symbols_in(graph: Graph) -> frozenset[str]:
    """Names of the symbols in the types of a graph and its bodies."""
    found: set[str] = set()
    for value in graph.values.values():
        found.update(dims_of(value.type))
    for node in graph.nodes:
        for body in node.bodies.values():
            found.update(symbols_in(body))
    return frozenset(found)


def substitute_type(kind: ValueType | None, size: Callable[[int, Dim], Dim]) -> ValueType | None:
    """`kind` with each dim replaced by `size(axis, dim)`."""
    match kind:
        case TensorType(shape=shape) if shape is not None:
            return TensorType(kind.dtype, tuple(size(i, d) for i, d in enumerate(shape)))
        case SequenceType() | OptionalType():
            element = substitute_type(kind.element, size)
            return kind if element is None else type(kind)(element)
    return kind


def bind_type(kind: ValueType, binding: Mapping[str, int]) -> ValueType:
    """`kind` with the numbers that its sizes have under `binding`."""
    return substitute_type(kind, lambda _, dim: dims.evaluate(dim, binding)) or kind


def is_typed(value: Value) -> bool:
    """Whether the type of a value is known, with its rank if it is a tensor."""
    kind = value.type
    return kind is not None and not (isinstance(kind, TensorType) and kind.shape is None)
