"""Einsum, where `lower_einsum` does not write it out: ellipses, diagonals, many operands."""

from __future__ import annotations

import string
from collections.abc import Sequence

from engine.dims import Dim, Guard, at_least, broadcast, is_equal, product
from engine.errors import ShapeError
from engine.indexing import IndexMap, index_map, row_major
from engine.ir import Shape, TensorType, ValueType
from engine.ops import (
    FLOATS,
    InferView,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    linear,
    no,
    register,
    yes_if,
)
from engine.ops._fit import same
from engine.ops._variants import MAX_TRIPS
from engine.ops.slice_parts import declare
from engine.records import dataclass

_ELLIPSIS = "..."


@dataclass(frozen=True)
class Equation:
    """Labels of the axes of each operand and of the output; an ellipsis has numbers for labels.

    Attributes:
        sizes: label to the size that the axes with this label broadcast to.
    """

    terms: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]
    sizes: dict[str, Dim]

    @property
    def shape(self) -> Shape:
        return tuple(self.sizes[label] for label in self.output)

    @property
    def summed(self) -> tuple[str, ...]:
        """The labels that the output lacks, in the order in which they occur."""
        labels = dict.fromkeys(label for term in self.terms for label in term)
        return tuple(label for label in labels if label not in self.output)


def equation_of(view: NodeView) -> Equation:
    """The equation of an Einsum node, with sizes. Raises: ShapeError if it is malformed."""
    text = view.attr("equation", "")
    text = (text.decode() if isinstance(text, bytes) else str(text)).replace(" ", "")
    left, arrow, right = text.partition("->")
    given = left.split(",")
    if len(given) != len(view.node.inputs):
        raise ShapeError(f"{view.describe()}: {text!r} has {len(given)} operands")
    shapes = [view.shape(index) for index in range(len(given))]
    terms = [_labels(view, term, len(shape)) for term, shape in zip(given, shapes, strict=True)]
    ellipsis = _longest(terms)
    if arrow:
        output = _labels(view, right, len(right.replace(_ELLIPSIS, "")) + len(ellipsis))
    else:
        letters = [label for term in terms for label in term if label.isalpha()]
        output = (*ellipsis, *sorted(label for label in letters if letters.count(label) == 1))
    sizes: dict[str, Dim] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, dim in zip(term, shape, strict=True):
            try:
                sizes[label] = broadcast(sizes.get(label, 1), dim)
            except ValueError as error:
                raise ShapeError(f"{view.describe()}: {label!r} in {text!r}: {error}") from error
    if len(set(output)) < len(output) or not sizes.keys() >= set(output):
        raise ShapeError(f"{view.describe()}: {text!r} has no such output")
    return Equation(tuple(terms), output, sizes)


def _labels(view: NodeView, term: str, rank: int) -> tuple[str, ...]:
    """A label for each of `rank` axes; those of an ellipsis count down to "0", the last one."""
    front, dots, back = term.partition(_ELLIPSIS)
    hidden = rank - len(front) - len(back)
    if not all(label in string.ascii_letters for label in front + back):
        raise ShapeError(f"{view.describe()}: the term {term!r} is malformed")
    if hidden < 0 or (hidden and not dots):
        raise ShapeError(f"{view.describe()}: the term {term!r} does not fit rank {rank}")
    return (*front, *(str(number) for number in reversed(range(hidden))), *back)


def _longest(terms: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The labels of the longest ellipsis."""
    return max((tuple(x for x in term if x.isdecimal()) for term in terms), key=len, default=())


def _infer(view: InferView) -> list[ValueType]:
    dtype = view.dtype(0)
    if any(view.type(index).shape is None for index in range(len(view.node.inputs))):
        return [TensorType(dtype)]
    found = equation_of(view)
    for index, term in enumerate(found.terms):
        for label, dim in zip(term, view.shape(index), strict=True):
            # a diagonal is not broadcast
            view.require(same(view, view.shape(index)[term.index(label)], dim))
    return [TensorType(dtype, found.shape)]


def _strides(shape: Shape, term: Sequence[str], labels: Sequence[str], onto: Shape) -> list[Dim]:
    """How far apart neighbours along each label lie in an operand; repeated labels add up."""
    found: list[Dim] = [0] * len(labels)
    for label, dim, stride in zip(term, shape, row_major(shape), strict=True):
        if label in labels:
            at = labels.index(label)
            found[at] = found[at] + (stride if dim == onto[at] else stride * (1 - is_equal(dim, 1)))
    return found


def _supports(view: NodeView) -> Support:
    found = equation_of(view)
    guards: list[Guard] = []
    for index, term in enumerate(found.terms):
        for label, dim in zip(term, view.shape(index), strict=True):
            size = found.sizes[label]
            if dim not in (size, 1):
                why = f"sizes {dim} and {size} of {label!r} agree in {view.describe()}"
                guards.append(Guard("zero", (dim - size) * (dim - 1), why))
    steps = product(found.sizes[label] for label in found.summed)
    guards.append(at_least(MAX_TRIPS, steps, f"at most {MAX_TRIPS} products are summed"))
    if any(guard.known is False for guard in guards):
        return no(f"it sums more than {MAX_TRIPS} products")
    return yes_if(*(guard for guard in guards if guard.known is None))


def _lower(view: Lowering) -> Sequence[Stage]:
    found, kind = equation_of(view), view.dtype(0).wgsl
    summed = found.summed
    inner = tuple(found.sizes[label] for label in summed)
    size, steps = product(found.shape), product(inner)
    operands = tuple(dict.fromkeys(view.node.inputs))
    maps: list[IndexMap] = []
    bases, factors = [], []
    for index, term in enumerate(found.terms):
        shape = view.shape(index)
        outer = _strides(shape, term, found.output, found.shape)
        maps.append(index_map(f"base{index}", found.shape, outer))
        maps.append(index_map(f"part{index}", inner, _strides(shape, term, summed, inner)))
        bases.append(f"    let at{index} = base{index}(i);")
        name = f"x{operands.index(view.node.inputs[index])}"
        factors.append(f"load_{name}(at{index} + part{index}(step))")
    names = [f"x{k}" for k in range(len(operands))]
    words: dict[str, Dim] = {name: dim for m in maps for name, dim in m.params}
    call = KernelCall(
        "misc_einsum",
        {**dict(zip(names, operands, strict=True)), "y": view.node.outputs[0]},
        {"size": size, "steps": steps, **words},
        linear(size),
        text={
            "INPUTS": declare(names, 0, "read"),
            "COUNT": str(len(names)),
            "LAST": str(len(names) + 1),
            "MAPS": "".join(m.text for m in maps),
            "BASES": "\n".join(bases),
            "FACTORS": " * ".join(factors),
            "T": kind,
        },
        extra_params=tuple((name, "u32") for name in words),
        trips=steps,
    )
    return [(call,)]


def _flops(view: NodeView) -> Dim:
    found = equation_of(view)
    return product(found.sizes.values()) * 2 * len(found.terms)


register(
    OpDef(
        "Einsum",
        12,
        infer=_infer,
        lower=_lower,
        supports=_supports,
        limits="sums of more products than a loop may have",
        dtypes=FLOATS | {"int32", "uint32"},
        epilogue=True,
        flops=_flops,
    )
)
