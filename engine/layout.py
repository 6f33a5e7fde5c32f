"""Layout: how a value lies in a GPU buffer, and the conversion of host arrays to and from it."""

from __future__ import annotations

import math

import numpy as np

from engine.dims import Dim, ceildiv, product
from engine.dtypes import DType
from engine.errors import PlanError
from engine.ir import Array, Shape
from engine.records import dataclass

ALIGNMENT = 16
"""Bytes that buffers are padded to, so that a vec4 access of the last elements stays inside."""

_STORED = {"f32": np.float32, "i32": np.int32, "u32": np.uint32, "bool": np.uint32}


class RangeError(PlanError):
    """An int64 array holds values that int32 does not."""


@dataclass(frozen=True)
class Storage:
    """How the elements of a value are kept on the GPU.

    Attributes:
        element: what kernels compute with: "f32", "i32", "u32" or "bool".
        packing: elements per 32-bit word; 1 holds narrow types widened to `element`.
        narrow: format of the type if it is narrower than `element`; stores round or wrap to it.
        layout: order of the elements; "row-major" is the ONNX order, "growing" the same with room
            for `capacity` indices along `axis`, so that more can be appended in place.
        axis, capacity: of a growing value.
    """

    element: str
    packing: int = 1
    layout: str = "row-major"
    axis: int = 0
    capacity: Dim = 0
    narrow: str = ""

    @property
    def growing(self) -> bool:
        """Whether there may be a gap after each run of `row_size` elements."""
        return self.layout == "growing"

    def row_size(self, shape: Shape) -> Dim:
        """Elements of a growing value that lie together."""
        return product(shape[self.axis :])

    def pitch(self, shape: Shape) -> Dim:
        """Elements from the start of one row to that of the next."""
        return self.capacity * product(shape[self.axis + 1 :])

    def nbytes(self, shape: Shape) -> Dim:
        """Bytes of a buffer for `shape`, padded to `ALIGNMENT`, and never zero."""
        if self.growing:
            shape = (*shape[: self.axis], self.capacity, *shape[self.axis + 1 :])
        words = ceildiv(product(shape), self.packing)
        if words == 0:
            return ALIGNMENT
        return ceildiv(words, ALIGNMENT // 4) * ALIGNMENT

    def content_nbytes(self, size: Dim) -> Dim:
        """Bytes of so many elements, without what pads a buffer: what a transfer moves of use."""
        return ceildiv(size, self.packing) * 4

    def to_device(self, array: Array) -> Array:
        """The contiguous array of buffer words for a host array.

        Raises: RangeError if an integer does not fit 32 bits.
        """
        if self.packing > 1:
            packed = np.zeros(-(-array.size // self.packing) * self.packing, array.dtype)
            packed[: array.size] = array.reshape(-1)
            return packed.view(np.uint32)
        stored = _STORED[self.element]
        if array.dtype == np.int64 and array.size:
            low, high = int(array.min()), int(array.max())
            if low < -(2**31) or high >= 2**31:
                raise RangeError(f"values from {low} to {high} do not fit int32")
        return np.ascontiguousarray(array, dtype=stored)

    def from_device(self, words: memoryview, dtype: DType, shape: tuple[int, ...]) -> Array:
        """A new host array of `dtype` and `shape` from the first words of a buffer."""
        room = list(shape)
        if self.growing:
            if not isinstance(self.capacity, int):
                raise PlanError(f"the capacity {self.capacity} is not bound")
            room[self.axis] = self.capacity
        size = math.prod(room)
        stored = dtype.numpy if self.packing > 1 else _STORED[self.element]
        flat = np.frombuffer(words, dtype=stored, count=size).reshape(room)
        if self.growing:
            flat = np.take(flat, range(shape[self.axis]), axis=self.axis)
        return np.asarray(flat.astype(dtype.numpy).reshape(shape))


def storage_of(dtype: DType, packed: bool = True) -> Storage:
    """The storage of a value on the GPU.

    Args:
        dtype: its element type.
        packed: whether narrow elements share words: only where whole words are written.

    Raises: PlanError if kernels have none for its dtype.
    """
    if not dtype.wgsl:
        raise PlanError(f"a value of dtype {dtype.name} cannot be held on the GPU")
    return Storage(dtype.wgsl, dtype.packing if packed else 1, narrow=dtype.narrow)
