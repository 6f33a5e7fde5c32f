"""What the hooks `OpDef.cpu` and `OpDef.gpu` share. They see shapes as integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from engine.dims import Dim
from engine.errors import ShapeError
from engine.ops import NodeView
from engine.work import BLOCK, CpuWork, GpuWork, Products

FLOAT_NBYTES = 4

SUM_PASSES = 3
"""A sum along an axis takes as long as so many passes of an elementwise function."""


def integers(shape: Sequence[Dim]) -> tuple[int, ...]:
    """Sizes as integers. Raises: ShapeError if one is open."""
    found = tuple(d for d in shape if isinstance(d, int))
    if len(found) != len(shape):
        raise ShapeError(f"work is counted for known sizes, not for {tuple(shape)}")
    return found


def in_shape(view: NodeView, index: int) -> tuple[int, ...]:
    """Shape of input `index`."""
    return integers(view.shape(index))


def out_shape(view: NodeView, index: int = 0) -> tuple[int, ...]:
    """Shape of output `index`."""
    return integers(view.out_shape(index))


def in_nbytes(view: NodeView, index: int) -> int:
    """Bytes of input `index` as an array."""
    return prod(in_shape(view, index)) * view.dtype(index).nbytes


def out_nbytes(view: NodeView, index: int = 0) -> int:
    """Bytes of output `index` as an array."""
    return prod(out_shape(view, index)) * view.out(index).dtype.nbytes


def ceil_to(count: int, step: int) -> int:
    """The least multiple of `step` that is at least `count`."""
    return -(-count // step) * step


def formula(view: NodeView, passes: int, functions: int = 0) -> CpuWork:
    """An elementwise formula: `passes` NumPy calls on blocks, `functions` of them slow ones."""
    count = prod(out_shape(view))
    blocks = -(-count // BLOCK) if passes > 1 else 1
    moved = out_nbytes(view) + sum(
        in_nbytes(view, i) for i in range(len(view.node.inputs)) if view.has(i)
    )
    near = (passes - 1) * count * 2 * FLOAT_NBYTES
    steps = passes * blocks + (2 if passes > 1 else 1)
    return CpuWork(steps, near=near, passes=(moved,), functions=functions * count)


def by_formula(passes: int, functions: int = 0) -> Callable[[NodeView], CpuWork]:
    """`formula` as a hook."""
    return lambda view: formula(view, passes, functions)


def whole_passes(
    view: NodeView, steps: int, reads: int, writes: int, functions: int = 0
) -> CpuWork:
    """A function that reads input 0 and writes arrays of its size so often, in `steps` calls."""
    nbytes = in_nbytes(view, 0)
    passes = (nbytes,) * reads + (nbytes,) * writes
    return CpuWork(steps, passes=passes, functions=functions * prod(in_shape(view, 0)))


def copies(view: NodeView) -> CpuWork:
    """A call that reads and writes as much as its outputs hold."""
    moved = sum(out_nbytes(view, i) for i in range(len(view.node.outputs)) if view.wants(i))
    return CpuWork(2, passes=(2 * moved,))


def in_steps(view: NodeView) -> CpuWork:
    """A call that picks elements of its input in steps."""
    return CpuWork(2, strided=prod(out_shape(view)))


def product(view: NodeView, count: int, rows: int, inner: int, columns: int) -> CpuWork:
    """Matrix products as one call of NumPy; a second operand that is constant is a weight."""
    cold = view.const(1) is not None
    return CpuWork(1, products=(Products(count, rows, inner, columns, cold),))


def tiled(
    rows: int, inner: int, columns: int, block: tuple[int, int], count: int = 1, launches: int = 1
) -> GpuWork:
    """A kernel in register tiles: whole workgroups of `block` elements of the result."""
    fmas = count * ceil_to(rows, block[0]) * ceil_to(columns, block[1]) * inner
    moved = count * (rows * columns + inner * columns) * FLOAT_NBYTES
    return GpuWork(launches, fmas=fmas, nbytes=moved)
