"""Types by onnx's own shape inference, for operators without a rule on symbolic dims.

It computes with numbers, and takes a size without a number for 0 here and there. So symbols are
never shown to it: it is asked twice, with two sets of unlikely numbers in their place. What comes
out as one of these numbers both times is that size, what is the same both times is a constant, and
the rest depends on sizes in a way that cannot be told.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine import dims
from engine.dims import Dim
from engine.errors import ShapeError
from engine.exporter import onnx_types
from engine.importer.types import FreshDims, value_type
from engine.ir import Array, Node, OptionalType, SequenceType, TensorType, Value, ValueType
from engine.passes.symbols import substitute_type

Kinds = list[ValueType | None]

UNKNOWN = dims.symbol("")
"""The size of which nothing is known, in the types that these functions return."""

_DATA_SIZE = 4096
_PRIMES = (10007, 20011), (10009, 20021), (10037, 20023), (10039, 20029), (10061, 20047)
_STEPS = 97, 193


def onnx_kinds(node: Node, inputs: Mapping[str, Value], opset: Mapping[str, int]) -> Kinds:
    """What onnx infers of a node's outputs from inputs without symbols.

    Raises: ShapeError if the inputs contradict each other.
    """
    types = {n: _blank(v.type) for n, v in inputs.items() if v.type is not None}
    data: dict[str, Array] = {
        n: v.constant
        for n, v in inputs.items()
        if v.constant is not None and v.constant.size <= _DATA_SIZE
    }
    protos = onnx_types(node, types, data, opset)
    if protos is None:
        return [None] * len(node.outputs)
    kinds: Kinds = []
    for proto in protos:
        gaps = FreshDims(())
        kind = None if proto is None else value_type(proto, "", gaps, zero=True)
        kinds.append(substitute_type(kind, lambda _, d: d if isinstance(d, int) else UNKNOWN))
    return kinds


def _blank(kind: ValueType) -> ValueType:
    """`kind` with nothing said of sizes that are not numbers."""
    return substitute_type(kind, lambda _, d: d if isinstance(d, int) else UNKNOWN) or kind


def probe(node: Node, inputs: Mapping[str, Value], opset: Mapping[str, int]) -> Kinds:
    """What onnx infers of a node's outputs whatever the symbols in its inputs are."""
    sizes: dict[Dim, tuple[int, int]] = {}
    answers: list[Kinds] = []
    for turn in (0, 1):
        shown = {n: v.replace(type=_number(v.type, sizes, turn)) for n, v in inputs.items()}
        try:
            answers.append(onnx_kinds(node, shown, opset))
        except ShapeError:
            return _types_only(node, inputs, opset)
    known = {pair: dim for dim, pair in sizes.items()}
    return [_common(a, b, known) for a, b in zip(*answers, strict=True)]


def _number(
    kind: ValueType | None, sizes: dict[Dim, tuple[int, int]], turn: int
) -> ValueType | None:
    """`kind` with an unlikely number for each size that is not one; elements of a sequence may
    differ in size, so theirs are left open."""

    def size(_: int, dim: Dim) -> Dim:
        if isinstance(dim, int):
            return dim
        if dim not in sizes:
            rounds, index = divmod(len(sizes), len(_PRIMES))
            a, b = _PRIMES[index]
            sizes[dim] = a + 2 * rounds * _STEPS[0] * 100, b + 2 * rounds * _STEPS[1] * 100
        return sizes[dim][turn]

    return kind if isinstance(kind, SequenceType) else substitute_type(kind, size)


def _common(
    a: ValueType | None, b: ValueType | None, known: Mapping[tuple[int, int], Dim]
) -> ValueType | None:
    match a, b:
        case TensorType(dtype, x), TensorType(other, y) if dtype == other:
            if x is None or y is None or len(x) != len(y):
                return TensorType(dtype)
            return TensorType(dtype, tuple(_same(p, q, known) for p, q in zip(x, y, strict=True)))
        case SequenceType(element=p), SequenceType(element=q):
            element = _common(p, q, known)
            return None if element is None else SequenceType(element)
        case OptionalType(element=p), OptionalType(element=q):
            element = _common(p, q, known)
            return None if element is None else OptionalType(element)
    return None


def _same(a: Dim, b: Dim, known: Mapping[tuple[int, int], Dim]) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a if a == b else known.get((a, b), UNKNOWN)
    return UNKNOWN


def _types_only(node: Node, inputs: Mapping[str, Value], opset: Mapping[str, int]) -> Kinds:
    """Element types, and nothing of shapes."""

    def bare(kind: ValueType | None) -> ValueType | None:
        match kind:
            case TensorType():
                return TensorType(kind.dtype)
            case SequenceType() | OptionalType():
                element = bare(kind.element)
                return None if element is None else type(kind)(element)
        return None

    shown = {n: Value(n, bare(v.type)) for n, v in inputs.items()}
    try:
        return [bare(k) for k in onnx_kinds(node, shown, opset)]
    except ShapeError:
        return [None] * len(node.outputs)


def is_complete(kind: ValueType | None) -> bool:
    """Whether a type from here says all of the sizes; those in sequences vary anyway."""
    match kind:
        case TensorType(shape=shape):
            return shape is not None and UNKNOWN not in shape
        case OptionalType():
            return is_complete(kind.element)
    return kind is not None
