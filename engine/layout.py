"""Layout: how a value lies in a GPU buffer, and the conversion of host arrays to and from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from engine.dims import Dim, ceildiv, product
from engine.dtypes import DType
from engine.errors import PlanError
from engine.ir import Array, Graph, Shape, TensorType

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
        packing: elements per 32-bit word.
        layout: order of the elements; "row-major" is the ONNX order.
    """

    element: str
    packing: int = 1
    layout: str = "row-major"

    def nbytes(self, shape: Shape) -> Dim:
        """Bytes of a buffer for `shape`, padded to `ALIGNMENT`, and never zero."""
        words = ceildiv(product(shape), self.packing)
        if words == 0:
            return ALIGNMENT
        return ceildiv(words, ALIGNMENT // 4) * ALIGNMENT

    def to_device(self, array: Array) -> Array:
        """The contiguous array of buffer words for a host array.

        Raises: RangeError if an integer does not fit 32 bits.
        """
        stored = _STORED[self.element]
        if array.dtype == np.int64 and array.size:
            low, high = int(array.min()), int(array.max())
            if low < -(2**31) or high >= 2**31:
                raise RangeError(f"values from {low} to {high} do not fit int32")
        return np.ascontiguousarray(array, dtype=stored)

    def from_device(self, words: memoryview, dtype: DType, shape: tuple[int, ...]) -> Array:
        """A new host array of `dtype` and `shape` from the first words of a buffer."""
        size = int(np.prod(shape, dtype=np.int64))
        flat = np.frombuffer(words, dtype=_STORED[self.element], count=size)
        return flat.astype(dtype.numpy).reshape(shape)


def storage_of(tensor: TensorType) -> Storage:
    """The storage of a value on the GPU. Raises: PlanError if kernels have none for its dtype."""
    if not tensor.dtype.wgsl:
        raise PlanError(f"{tensor} cannot be held on the GPU")
    return Storage(tensor.dtype.wgsl)


def assign_storage(graph: Graph, names: Iterable[str]) -> Mapping[str, Storage]:
    """The storage of each named value. Raises: PlanError for values kernels cannot hold."""
    found = {}
    for name in names:
        tensor = graph.tensor(name)
        if tensor is None:
            raise PlanError(
                f"value {name!r} of type {graph.values[name].type} cannot be on the GPU"
            )
        found[name] = storage_of(tensor)
    return found
