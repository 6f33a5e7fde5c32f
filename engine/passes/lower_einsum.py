"""Einsum of one or two operands as standard operators.

ab->b          => ReduceSum [+ Transpose]
ab,cb->abc     => Transpose + Unsqueeze + Mul [+ Transpose]
bij,bjk->bik   => [ReduceSum +] [Transpose + Reshape +] MatMul [+ Reshape + Transpose]

Types that each operator rounds to stay whole, unless one operator alone computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.dims import Dim
from engine.ir import Graph, Node
from engine.ops import FLOATS
from engine.passes.base import PassResult
from engine.passes.build import Builder, Rule, replace_nodes
from engine.records import dataclass

_TYPES = FLOATS | {"int32", "uint32"}
_ROUNDING = frozenset({"ReduceSum", "Mul", "MatMul"})


def lower_einsum(graph: Graph) -> PassResult:
    """Writes Einsum out in operators that have kernels. Source: ONNX Einsum-28."""
    return replace_nodes(graph, _rule_of)


def _rule_of(node: Node) -> Rule | None:
    return _einsum if node.domain == "" and node.op_type == "Einsum" else None


@dataclass(frozen=True)
class _Operand:
    """A value and the label of each of its axes."""

    name: str
    labels: str


def _einsum(b: Builder) -> str:
    if len(b.node.inputs) > 2:
        return "it has more than two operands"
    if b.dtype(0).name not in _TYPES:
        return f"it computes in {b.dtype(0)}"
    terms, output = _parsed(str(b.attr("equation")))
    reason = _problem(b, terms, output)
    if reason:
        return reason
    sizes = {
        label: size
        for index, term in enumerate(terms)
        for label, size in zip(term, b.shape(index), strict=True)
    }
    operands = []
    for index, (name, term) in enumerate(zip(b.node.inputs, terms, strict=True)):
        others = output + "".join(t for i, t in enumerate(terms) if i != index)
        operands.append(_summed(b, _Operand(name, term), others))
    if len(operands) == 1:
        found = operands[0]
    elif all(label in output for label in operands[0].labels if label in operands[1].labels):
        found = _multiplied(b, *operands)
    else:
        found = _contracted(b, operands[0], operands[1], output, sizes)
    b.op("Identity", _ordered(b, found, output).name, output=b.output(0))
    if b.dtype(0).narrow and sum(n.op_type in _ROUNDING for n in b.nodes) > 1:
        return f"each of its parts would round to {b.dtype(0)}"
    return ""


def _parsed(equation: str) -> tuple[list[str], str]:
    """The labels of each operand and of the output, which is implied if it is not given."""
    left, arrow, output = equation.replace(" ", "").partition("->")
    if not arrow:
        output = "".join(sorted(label for label in set(left) - {","} if left.count(label) == 1))
    return left.split(","), output


def _problem(b: Builder, terms: Sequence[str], output: str) -> str:
    """Why an equation is not written out."""
    if any("." in term for term in (*terms, output)):
        return "it has an ellipsis"
    if any(len(set(term)) < len(term) for term in (*terms, output)):
        return "a term repeats a label"
    if set(output) - set("".join(terms)):
        return "its output has a label that no operand has"
    if len(terms) != len(b.node.inputs):
        return "its equation has another number of operands"
    sizes: dict[str, Dim] = {}
    for index, term in enumerate(terms):
        if len(term) != len(b.shape(index)):
            return "a term has another number of labels than its operand has axes"
        for label, size in zip(term, b.shape(index), strict=True):
            if sizes.setdefault(label, size) != size:
                return f"the sizes of {label!r} may differ"
    return ""


def _summed(b: Builder, x: _Operand, kept: str) -> _Operand:
    """Without the axes whose labels stand nowhere else."""
    axes = [axis for axis, label in enumerate(x.labels) if label not in kept]
    if not axes:
        return x
    name = b.op("ReduceSum", x.name, b.int_constant(*axes), keepdims=0)
    return _Operand(name, "".join(label for label in x.labels if label in kept))


def _ordered(b: Builder, x: _Operand, labels: str) -> _Operand:
    """With its axes in the order of `labels`."""
    if x.labels == labels:
        return x
    order = [x.labels.index(label) for label in labels]
    return _Operand(b.op("Transpose", x.name, perm=order), labels)


def _multiplied(b: Builder, x: _Operand, y: _Operand) -> _Operand:
    """The product, where no label is summed."""
    labels = x.labels + "".join(label for label in y.labels if label not in x.labels)
    names = []
    for operand in (x, y):
        own = "".join(label for label in labels if label in operand.labels)
        name = _ordered(b, operand, own).name
        missing = [axis for axis, label in enumerate(labels) if label not in own]
        names.append(b.op("Unsqueeze", name, b.int_constant(*missing)) if missing else name)
    return _Operand(b.op("Mul", *names), labels)


def _contracted(
    b: Builder, x: _Operand, y: _Operand, output: str, sizes: dict[str, Dim]
) -> _Operand:
    """The product summed over the labels that both have and the output has not."""
    both = [label for label in x.labels if label in y.labels]
    batch = "".join(label for label in both if label in output)
    inner = "".join(label for label in both if label not in output)
    rows = "".join(label for label in x.labels if label not in both)
    columns = "".join(label for label in y.labels if label not in both)
    where = {label: (x.name, axis) for axis, label in enumerate(x.labels)}
    where |= {label: (y.name, axis) for axis, label in enumerate(y.labels) if label in columns}

    def length(group: str) -> str:
        """Name of the product of the sizes of the labels, [1]."""
        known = [sizes[label] for label in group]
        static = [size for size in known if isinstance(size, int)]
        if len(static) == len(known):
            return b.int_constant(math.prod(static))
        parts = [b.op("Shape", n, start=a, end=a + 1) for n, a in (where[k] for k in group)]
        found = parts[0]
        for part in parts[1:]:
            found = b.op("Mul", found, part)
        return found

    def shaped(name: str, groups: Sequence[str]) -> str:
        if all(len(group) == 1 for group in groups):
            return name
        target = b.op("Concat", *(length(group) for group in groups), axis=0)
        return b.op("Reshape", name, target, allowzero=1)

    left = shaped(_ordered(b, x, batch + rows + inner).name, [*batch, rows, inner])
    right = shaped(_ordered(b, y, batch + inner + columns).name, [*batch, inner, columns])
    product = b.op("MatMul", left, right)
    labels = batch + rows + columns
    if len(rows) != 1 or len(columns) != 1:
        if labels:
            target = b.op("Concat", *(length(label) for label in labels), axis=0)
        else:
            target = b.int_constant()
        product = b.op("Reshape", product, target, allowzero=1)
    return _Operand(product, labels)
