"""Symbols in types: which there are, and replacing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine import dims
from engine.dims import Dim, Guard
from engine.ir import Graph, OptionalType, SequenceType, TensorType, Value, ValueType


def dims_of(kind: ValueType | None) -> frozenset[str]:
    """Names of the symbols in a type."""
    match kind:
        case TensorType(shape=shape) if shape is not None:
            return frozenset().union(*map(dims.symbols_of, shape))
        case SequenceType() | OptionalType():
            return dims_of(kind.element)
    return frozenset()


class SameSizes:
    """Sizes that are told to be equal by operators that join them, in the call planned for.

    An upsampled map is added to one of `2 * (n // 2)` rows, which for all that is known may not be
    `n`. Where it is, one expression for both lets kernels fuse, and find elements without division.

    Attributes:
        guards: that the sizes are equal.
    """

    def __init__(self, binding: Mapping[str, int]) -> None:
        self.guards: list[Guard] = []
        self._binding = binding
        self._taken: dict[Dim, Dim] = {}

    def same(self, a: Dim, b: Dim) -> Dim | None:
        """The simpler of two expressions of the same symbols that have one size in the binding.

        Those of other symbols may be the same by chance, and so may be sizes of 1, unless they are
        joined only where they are equal, as `min(n, 512)` and `n` are: None for these.
        """
        a, b = self._taken.get(a, a), self._taken.get(b, b)
        if a == b:
            return a
        mine, theirs = dims.symbols_of(a), dims.symbols_of(b)
        if mine != theirs or not mine or not mine <= self._binding.keys():
            return None
        size = dims.evaluate(a, self._binding)
        if size != dims.evaluate(b, self._binding):
            return None
        if size == 1 and dims.broadcast(a, b) not in (a, b):
            return None
        kept, other = sorted((a, b), key=lambda dim: (len(str(dim)), str(dim)))
        self.guards.append(dims.equal(kept, other, f"the sizes {kept} and {other} are the same"))
        self._taken = {d: kept if to == other else to for d, to in self._taken.items()}
        self._taken[other] = kept
        return kept

    def retyped(self, kind: ValueType | None) -> ValueType | None:
        """`kind` with one expression for sizes that are the same."""
        return substitute_type(kind, lambda _, dim: self._taken.get(dim, dim)) if kind else kind


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


def lone_symbol(dim: Dim) -> str:
    """The symbol that a dim is, "" if it is a number or an expression."""
    (name, *more) = dims.symbols_of(dim) or ("",)
    return name if name and not more and dim == dims.symbol(name) else ""


def rename_symbols(graph: Graph, names: Mapping[str, Dim]) -> Graph:
    """The graph, and the bodies in it, with dims in the place of symbols."""
    nodes = []
    for node in graph.nodes:
        bodies = {k: rename_symbols(body, names) for k, body in node.bodies.items()}
        nodes.append(node.replace(attrs={**node.attrs, **bodies}) if bodies else node)
    values = {k: _renamed(v, names) for k, v in graph.values.items()}
    return graph.replace(nodes=tuple(nodes), values=values)


def _renamed(value: Value, names: Mapping[str, Dim]) -> Value:
    if dims_of(value.type) & names.keys():
        kind = substitute_type(value.type, lambda _, dim: dims.substitute(dim, names))
        value = value.replace(type=kind)
    if value.dims is None or not any(dims.symbols_of(d) & names.keys() for d in value.dims.flat):
        return value
    content = value.dims.copy()
    content.reshape(-1)[:] = [dims.substitute(d, names) for d in value.dims.flat]
    return value.replace(dims=content)
