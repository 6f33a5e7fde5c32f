"""Sizes of operands that have to be the same, as guards that say so in words.

And Fits, a node of the engine's own: the operands of an operator that is written out in others,
whose checks would be those of its parts. It gives its first operand on; inference makes guards of
what the operator requires and takes it out.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine import dims
from engine.dims import Dim, Guard
from engine.errors import ShapeError
from engine.ir import Node, Shape
from engine.ops import NodeView

DOMAIN, FITS = "engine", "Fits"
OPERATOR, OUTPUTS, VERSION = "fits_operator", "fits_outputs", "fits_version"
"""Attributes of a Fits beside those of the operator that it stands in front of."""


def is_fits(node: Node) -> bool:
    """Whether a node only says what operands must fulfil."""
    return node.domain == DOMAIN and node.op_type == FITS


def node_of(fits: Node) -> Node:
    """The node that was written out."""
    attrs = dict(fits.attrs)
    outputs = tuple(f"{fits.key}/{i}" for i in range(int(attrs.pop(OUTPUTS))))
    op_type, version = str(attrs.pop(OPERATOR)), int(attrs.pop(VERSION))
    return fits.replace(
        op_type=op_type, domain="", since_version=version, outputs=outputs, attrs=attrs
    )


def same(view: NodeView, a: Dim, b: Dim) -> Iterator[Guard]:
    if a != b:
        yield dims.equal(a, b, f"sizes {a} and {b} agree in {view.describe()}")


def alike(view: NodeView, a: Shape, b: Shape) -> Iterator[Guard]:
    """Two shapes are the same. Raises: ShapeError if their ranks differ."""
    if len(a) != len(b):
        raise ShapeError(f"{view.describe()}: ranks {len(a)} and {len(b)} should be the same")
    for one, other in zip(a, b, strict=True):
        yield from same(view, one, other)


def fits(view: NodeView, shape: Shape, onto: Shape) -> Iterator[Guard]:
    """An operand of `shape` broadcasts to `onto`: each size is the same, or 1.

    Raises: ShapeError if it has more axes.
    """
    if len(shape) > len(onto):
        raise ShapeError(f"{view.describe()}: {shape} has more axes than {onto}")
    for dim, out in zip(shape[::-1], onto[::-1], strict=False):
        if dim not in (out, 1):
            why = f"sizes {dim} and {out} broadcast in {view.describe()}"
            yield Guard("zero", (dim - out) * (dim - 1), why)
