"""Sizes of operands that must agree: a kernel would read past a buffer, or elsewhere, unasked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engine import dims
from engine.dims import Dim, Guard
from engine.ir import Shape
from engine.ops import NodeView

Rule = Callable[[NodeView], Iterator[Guard]]


def agreements(view: NodeView, elementwise: bool) -> Iterator[Guard]:
    """What must hold of symbolic sizes so that the operands of a node fit each other.

    NumPy checks that in each call. Kernels don't, and shape inference only does for numbers.
    """
    if view.node.domain:
        return
    rule = _broadcast if elementwise else _RULES.get(view.node.op_type)
    if rule is not None:
        yield from rule(view)


def _same(view: NodeView, a: Dim, b: Dim) -> Iterator[Guard]:
    if a != b:
        yield dims.equal(a, b, f"sizes {a} and {b} agree in {view.describe()}")


def _fits(view: NodeView, shape: Shape, onto: Shape) -> Iterator[Guard]:
    """An operand of `shape` broadcasts to `onto`: each size is the same, or 1."""
    for dim, out in zip(shape[::-1], onto[::-1], strict=False):
        if dim not in (out, 1):
            why = f"sizes {dim} and {out} broadcast in {view.describe()}"
            yield Guard("zero", (dim - out) * (dim - 1), why)


def _broadcast(view: NodeView) -> Iterator[Guard]:
    onto = view.out_shape()
    for index, name in enumerate(view.node.inputs):
        if name:
            yield from _fits(view, view.shape(index), onto)


def _matmul(view: NodeView) -> Iterator[Guard]:
    a, b, out = view.shape(0), view.shape(1), view.out_shape()
    yield from _same(view, a[-1], b[-2] if len(b) > 1 else b[0])
    batch = out[: max(len(a), len(b)) - 2]
    yield from _fits(view, a[:-2], batch)
    yield from _fits(view, b[:-2], batch)


def _gemm(view: NodeView) -> Iterator[Guard]:
    a, b = view.shape(0), view.shape(1)
    inner = (a[0] if view.attr("transA", 0) else a[1], b[1] if view.attr("transB", 0) else b[0])
    yield from _same(view, *inner)
    if view.has(2):
        yield from _fits(view, view.shape(2), view.out_shape())


def _concat(view: NodeView) -> Iterator[Guard]:
    first = view.shape(0)
    axis = view.axis(len(first))
    for index in range(1, len(view.node.inputs)):
        for place, (a, b) in enumerate(zip(first, view.shape(index), strict=True)):
            if place != axis:
                yield from _same(view, a, b)


def _conv(view: NodeView) -> Iterator[Guard]:
    group = int(view.attr("group", 1))
    yield from _same(view, view.shape(0)[1], view.shape(1)[1] * group)


def _conv_transpose(view: NodeView) -> Iterator[Guard]:
    yield from _same(view, view.shape(0)[1], view.shape(1)[0])


def _normalization(view: NodeView) -> Iterator[Guard]:
    """Scale and bias broadcast to the tensor, and do not make it larger."""
    for index in (1, 2):
        if view.has(index):
            yield from _fits(view, view.shape(index), view.shape(0))


def _per_channel(view: NodeView) -> Iterator[Guard]:
    """One number for each channel, in all inputs but the first."""
    for index in range(1, len(view.node.inputs)):
        yield from _same(view, view.shape(index)[0], view.shape(0)[1])


_RULES: dict[str, Rule] = {
    "BatchNormalization": _per_channel,
    "Concat": _concat,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "InstanceNormalization": _per_channel,
    "LayerNormalization": _normalization,
    "MatMul": _matmul,
    "RMSNormalization": _normalization,
}
