"""DeviceValue: a tensor that stays in a GPU buffer between calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.dtypes import DType
from engine.errors import InputError
from engine.ir import Array
from engine.layout import Storage
from engine.runtime.device import Device


@dataclass(frozen=True, eq=False)
class DeviceValue:
    """A tensor on a device; accepted as an input by any session on that device.

    Attributes:
        device: where it lies.
        buffer: the wgpu buffer; its size may exceed the tensor's.
        storage: how elements are kept.
        dtype, shape: the ONNX type.
    """

    device: Device
    buffer: Any
    storage: Storage
    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that the buffer takes on the device."""
        return int(self.buffer.size)

    def numpy(self) -> Array:
        """A copy on the host. Raises: DeviceError if the device was lost."""
        with self.device.lock:
            self.device.require()
            size = int(np.prod(self.shape, dtype=np.int64))
            if size == 0:
                return np.empty(self.shape, self.dtype.numpy)
            with self.device.guarded("reading a value"):
                words = self.device.queue.read_buffer(self.buffer)
            return self.storage.from_device(memoryview(words), self.dtype, self.shape)

    @classmethod
    def from_numpy(cls, device: Device, array: Array, dtype: DType) -> DeviceValue:
        """Uploads an array. Raises: InputError if kernels have no storage for its dtype."""
        if not dtype.wgsl:
            raise InputError(f"a value of dtype {dtype.name} cannot be held on the GPU")
        storage = Storage(dtype.wgsl)
        nbytes = storage.nbytes(tuple(array.shape))
        assert isinstance(nbytes, int)
        buffer = device.buffer("value", nbytes)
        device.write(buffer, storage.to_device(array))
        return cls(device, buffer, storage, dtype, tuple(array.shape))
