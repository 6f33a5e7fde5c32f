"""Rows of one value that meet the same constant are multiplied together, then taken out.

n x (Gather -> Gemm) => Gemm -> n x Gather

A recurrent cell that an exporter unrolled takes the input of each step out of the sequence, and
multiplies it by the same weights. Row by row a product reads all weights for each row; for all rows
together it reads them once.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.ir import Array, Graph, Node, label
from engine.ops import NodeView
from engine.passes.base import PassResult, in_every_body
from engine.passes.build import Builder
from engine.passes.match import is_op
from engine.records import dataclass


def join_products(graph: Graph) -> PassResult:
    """Joins products with the same constant whose rows one value has."""
    return in_every_body(graph, _run)


@dataclass(frozen=True)
class _Row:
    """A Gather, along `axis`, and the product that reads it.

    Attributes:
        sizes: of what it takes from, all axes but the last; -1 for one that is open.
        taken: how many of the places along `axis` it takes.
    """

    gather: Node
    product: Node
    sizes: tuple[int, ...]
    inner: int
    axis: int
    taken: int


def _run(graph: Graph) -> PassResult:
    producers = {name: node for node in graph.nodes for name in node.writes}
    groups: dict[tuple[object, ...], list[_Row]] = {}
    for node in graph.nodes:
        row = _row_of(graph, node, producers.get(node.inputs[0] if node.inputs else ""))
        if row is not None:
            attributes = tuple(sorted(node.attrs.items()))
            key = (row.gather.inputs[0], row.axis, node.op_type, node.inputs[1:], attributes)
            groups.setdefault(key, []).append(row)
    dropped: set[str] = set()
    builders, applied, near = [], [], []
    for rows in groups.values():
        if len(rows) == 1:
            continue
        names = f"{len(rows)} products such as {label(rows[0].product)}"
        taken, there = sum(row.taken for row in rows), rows[0].sizes[rows[0].axis]
        if taken < there:
            near.append(f"{names} not joined: they use {taken} of {there} rows")
            continue
        builders.append(_joined(graph, rows))
        dropped.update(row.product.key for row in rows)
        applied.append(f"{names} joined: they share {rows[0].product.inputs[1]!r}")
    if not applied:
        return PassResult(graph, (), tuple(near))
    nodes = [node for node in graph.nodes if node.key not in dropped]
    nodes += [node for builder in builders for node in builder.nodes]
    values = [value for builder in builders for value in builder.values]
    return PassResult(graph.rebuild(nodes, values), tuple(applied), tuple(near))


def _row_of(graph: Graph, node: Node, gather: Node | None) -> _Row | None:
    """`node` as a product of what `gather` takes out of a value, whole along the inner axis."""
    if not is_op(node, "Gemm", "MatMul") or gather is None or not is_op(gather, "Gather"):
        return None
    view, taken = NodeView(graph, node), NodeView(graph, gather)
    weights, index = view.const(1), taken.const(1)
    if weights is None or weights.ndim != 2 or index is None or view.attr("transA", 0):
        return None
    if not weights.size:
        return None
    if view.has(2) and not _is_row(view.const(2)):
        return None
    tensor = graph.tensor(gather.inputs[0])
    if tensor is None or tensor.shape is None:
        return None
    *outer, inner = tensor.shape
    axis = int(taken.attr("axis", 0)) % len(tensor.shape)
    sizes = tuple(d if isinstance(d, int) else -1 for d in outer)
    if axis == len(outer) or sizes[axis] < 1 or sizes.count(-1) > 1 or 0 in sizes:
        return None
    if not isinstance(inner, int):
        return None
    return _Row(gather, node, sizes, inner, axis, index.size)


def _is_row(bias: Array | None) -> bool:
    """Whether a bias is the same for all rows."""
    return bias is not None and bias.size == (bias.shape[-1] if bias.ndim else 1)


def _joined(graph: Graph, rows: Sequence[_Row]) -> Builder:
    """One product of all rows, and what each reader wants of it."""
    first = rows[0]
    origin = tuple(dict.fromkeys(name for row in rows for name in row.product.origin))
    builder = Builder(graph, first.product.replace(origin=origin))
    operands = first.product.inputs[1:]
    weights = builder.const(1)
    assert weights is not None
    columns = weights.shape[0 if builder.attr("transB", 0) else 1]
    whole = first.gather.inputs[0]
    if first.product.op_type == "MatMul":
        whole = builder.op("MatMul", whole, *operands)
    else:
        flat = builder.op("Reshape", whole, builder.int_constant(-1, first.inner))
        flat = builder.op("Gemm", flat, *operands, **first.product.attrs)
        whole = builder.op("Reshape", flat, builder.int_constant(*first.sizes, columns))
    for row in rows:
        one = Builder(graph, row.product)
        one.op("Gather", whole, row.gather.inputs[1], output=row.product.key, axis=row.axis)
        builder.nodes += one.nodes
    return builder
