"""What a node does, in the terms of a device profile: the sums that become its predicted time.

The model is a sum, not a maximum: overheads + operations / rate + bytes / bandwidth. That is a
little pessimistic where a device overlaps them, but what fusion saves (a launch, the bytes of a
value) is then exactly the part of the cost that falls away.
"""

from __future__ import annotations

from dataclasses import fields

from engine.rates import CpuRates, GpuRates
from engine.records import dataclass

NEAR_NBYTES = 512 << 10
"""A pass over so much runs at the cache's rate."""
FAR_NBYTES = 3 << 20
"""A pass over so much runs at the memory's rate; in between, in between."""

BLOCK = 1 << 15
"""Elements that a formula of several passes computes together (`cpu_fallback`)."""


@dataclass(frozen=True)
class GpuWork:
    """What a node does on the GPU; see `GpuRates` for what each counts.

    Attributes:
        launches: dispatches.
        fmas: multiply-adds in register tiles, those of tiles that stick out included.
        loads, strided, gathers: elements.
        nbytes: what is read and written besides.
        ops: arithmetic operations.
    """

    launches: int = 1
    fmas: int = 0
    loads: int = 0
    nbytes: int = 0
    strided: int = 0
    gathers: int = 0
    ops: int = 0

    def ns(self, rates: GpuRates) -> int:
        """Predicted time in nanoseconds."""
        return (
            self.launches * rates.launch_ns
            + time_ns(self.fmas, rates.fma_per_s)
            + time_ns(self.loads, rates.loads_per_s)
            + time_ns(self.nbytes, rates.bytes_per_s)
            + time_ns(self.strided, rates.strided_per_s)
            + time_ns(self.gathers, rates.gathers_per_s)
            + time_ns(self.ops, rates.ops_per_s)
        )


@dataclass(frozen=True)
class Products:
    """`count` matrix products [rows, inner] x [inner, columns] in float32.

    Attributes:
        cold: an operand is read once in a call, as weights are: no cache has it.
    """

    count: int
    rows: int
    inner: int
    columns: int
    cold: bool = False

    def ns(self, rates: CpuRates) -> int:
        """Predicted time in nanoseconds."""
        size = self.rows * self.inner * self.columns
        if min(self.rows, self.columns) == 1:
            each = time_ns(4 * size, rates.row_bytes_per_s)
        else:
            touched = self.rows * self.inner + self.inner * self.columns + self.rows * self.columns
            each = time_ns(2 * size, rates.flops_per_s)
            if self.cold:
                each += time_ns(4 * touched, rates.panel_bytes_per_s)
            else:
                # BLAS packs operands: it reads and writes them, and the result, once more
                each += _pass_ns(
                    4 * touched, -(-rates.cache_bytes_per_s // 2), rates.panel_bytes_per_s
                )
        return self.count * (rates.product_ns + each)


@dataclass(frozen=True)
class CpuWork:
    """What a node does on the CPU; see `CpuRates` for what each counts.

    Attributes:
        steps: NumPy calls.
        products: matrix products.
        near: bytes read and written in blocks that fit the cache.
        passes: bytes read and written by each pass over whole arrays.
        strided, gathers, functions: elements.
    """

    steps: int = 1
    products: tuple[Products, ...] = ()
    near: int = 0
    passes: tuple[int, ...] = ()
    strided: int = 0
    gathers: int = 0
    functions: int = 0

    def __add__(self, other: CpuWork) -> CpuWork:
        return CpuWork(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def times(self, count: int) -> CpuWork:
        """The same work `count` times."""
        return CpuWork(*(getattr(self, f.name) * count for f in fields(self)))

    def ns(self, rates: CpuRates) -> int:
        """Predicted time in nanoseconds, without what every node costs."""
        return (
            self.steps * rates.step_ns
            + sum(p.ns(rates) for p in self.products)
            + time_ns(self.near, rates.cache_bytes_per_s)
            + sum(pass_ns(nbytes, rates) for nbytes in self.passes)
            + time_ns(self.strided, rates.strided_per_s)
            + time_ns(self.gathers, rates.gathers_per_s)
            + time_ns(self.functions, rates.functions_per_s)
        )


def pass_ns(nbytes: int, rates: CpuRates) -> int:
    """A pass over arrays of `nbytes` in all: at the rate of the level of memory that holds them."""
    return _pass_ns(nbytes, rates.cache_bytes_per_s, rates.memory_bytes_per_s)


def _pass_ns(nbytes: int, near_per_s: int, far_per_s: int) -> int:
    near, far = time_ns(nbytes, near_per_s), time_ns(nbytes, far_per_s)
    inside = min(max(nbytes - NEAR_NBYTES, 0), FAR_NBYTES - NEAR_NBYTES)
    return near + (far - near) * inside // (FAR_NBYTES - NEAR_NBYTES)


def time_ns(amount: int, per_second: int) -> int:
    """Nanoseconds that `amount` takes, rounded up."""
    return -(-amount * 1_000_000_000 // per_second)
