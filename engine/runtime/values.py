"""DeviceValue: a tensor that stays in a GPU buffer between calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from engine.dtypes import DType
from engine.errors import InputError, PlanError
from engine.ir import Array
from engine.layout import Storage, storage_of
from engine.ops import linear
from engine.records import dataclass
from engine.runtime.device import UNIFORM, Device
from engine.shader import Fused, Kernel, Tensor, render


@dataclass
class Filled:
    """How far a growing buffer is written, shared by all values in it."""

    count: int


@dataclass(frozen=True, eq=False)
class DeviceValue:
    """A tensor on a device; accepted as an input by any session on that device.

    Attributes:
        device: where it lies.
        buffer: the wgpu buffer; its size may exceed the tensor's.
        storage: how elements are kept.
        dtype, shape: the ONNX type.
        filled: of a growing buffer: whoever is as long as this may append to it.
    """

    device: Device
    buffer: Any
    storage: Storage
    dtype: DType
    shape: tuple[int, ...]
    filled: Filled | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that the buffer takes on the device."""
        return int(self.buffer.size)

    def __repr__(self) -> str:
        return (
            f"DeviceValue({self.dtype.name}{list(self.shape)} on {self.device.info.title}; "
            "numpy() copies it to the host)"
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """What `numpy.asarray` gives: a copy on the host. Raises: ValueError if none is allowed."""
        if copy is False:
            raise ValueError("a value on a device becomes an array only by a copy")
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def numpy(self) -> Array:
        """A copy on the host. Raises: DeviceError if the device was lost."""
        with self.device.lock:
            self.device.require()
            if 0 in self.shape:
                return np.empty(self.shape, self.dtype.numpy)
            with self.device.guarded("reading a value"):
                words = self.device.queue.read_buffer(self.buffer)
            return self.storage.from_device(memoryview(words), self.dtype, self.shape)

    @classmethod
    def from_numpy(cls, device: Device, array: Array, dtype: DType) -> DeviceValue:
        """Uploads an array. Raises: InputError if kernels have no storage for its dtype."""
        try:
            storage = storage_of(dtype)
        except PlanError as error:
            raise InputError(str(error)) from error
        buffer = device.buffer("value", _nbytes(storage, array.shape))
        device.write(buffer, storage.to_device(array))
        return cls(device, buffer, storage, dtype, tuple(array.shape))

    def contiguous(self) -> DeviceValue:
        """The value without gaps: itself, or a copy on the device."""
        if not self.storage.growing:
            return self
        return self._moved(replace(self.storage, layout="row-major", axis=0, capacity=0), None)

    def packed(self, packing: int) -> DeviceValue:
        """The value without gaps and with `packing` elements a word: itself, or a copy."""
        value = self.contiguous()
        if value.storage.packing == packing or 0 in self.shape:
            return value
        storage = replace(value.storage, packing=packing)
        size = int(np.prod(self.shape, dtype=np.int64))
        buffer = self.device.buffer("value", _nbytes(storage, self.shape))
        params = self.device.buffer("params", 16, UNIFORM)
        self.device.write(params, np.array([size, 0, 0, 0], np.uint32))
        pipeline = self.device.pipeline(_repack(value.storage, storage))
        encoder = self.device.wgpu.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline.pipeline)
        buffers = [value.buffer, buffer]
        compute.set_bind_group(0, self.device.bind_group(pipeline, buffers, params, 0))
        compute.dispatch_workgroups(*map(int_of, linear(-(-size // 4))))
        compute.end()
        self.device.submit(encoder)
        return DeviceValue(self.device, buffer, storage, self.dtype, self.shape)

    def most_room(self, axis: int) -> int:
        """How long the value could become on `axis` in a buffer that a kernel can bind."""
        target = self.device.target
        shape = (*self.shape[:axis], 1, *self.shape[axis + 1 :])
        row = 4 * int(np.prod(shape, dtype=np.int64))
        most = min(target.max_storage_buffer_binding_size, target.max_buffer_size)
        return most // row if row else most

    def with_room(self, axis: int, length: int) -> DeviceValue:
        """The value in a buffer with room to be `length` long on `axis`, and not shared beyond.

        It is this buffer if that has the room and nobody appended to this value before, else a
        copy with twice the room, so that appending n times copies O(n) elements. `length` is at
        most what `most_room` says.
        """
        storage, filled = self.storage, self.filled
        if storage.packing > 1 or (storage.growing and storage.axis != axis):
            return self.packed(1).with_room(axis, length)
        fits = storage.growing and int_of(storage.capacity) >= length
        if fits and filled is not None and filled.count == self.shape[axis]:
            return self
        room = min(max(2 * length, 16), self.most_room(axis))
        grown = replace(storage, layout="growing", axis=axis, capacity=room)
        return self._moved(grown, Filled(self.shape[axis]))

    def _moved(self, storage: Storage, filled: Filled | None) -> DeviceValue:
        """A copy of the value under another storage, made on the device."""
        buffer = self.device.buffer("value", _nbytes(storage, self.shape))
        axis = storage.axis if storage.growing else self.storage.axis
        rows = int(np.prod(self.shape[:axis], dtype=np.int64))
        row = int(np.prod(self.shape[axis:], dtype=np.int64)) * 4
        source, target = (_pitch(s, self.shape, axis) * 4 for s in (self.storage, storage))
        if row:
            encoder = self.device.wgpu.create_command_encoder()
            for i in range(rows):
                encoder.copy_buffer_to_buffer(self.buffer, i * source, buffer, i * target, row)
            self.device.submit(encoder)
        return DeviceValue(self.device, buffer, storage, self.dtype, self.shape, filled)


def _repack(source: Storage, target: Storage) -> Kernel:
    """A kernel that copies elements between two packings of one type."""
    kinds = ((source, "x", False), (target, "packed", True))
    tensors = tuple(Tensor(n, s.element, w, s.narrow, s.packing) for s, n, w in kinds)
    text = "fn chain(i: u32) { store4_packed(i, load4_x(i)); }"
    fused = Fused(frozenset({"y"}), tensors, functions=text)
    return render("repack", "elementwise", {}, fused=fused)


def int_of(dim: object) -> int:
    """A dim that is a number. Raises: InputError if it is not."""
    if isinstance(dim, int):
        return dim
    raise InputError(f"the size {dim} of a value on the device is not a number")


def _nbytes(storage: Storage, shape: tuple[int, ...]) -> int:
    return int_of(storage.nbytes(shape))


def _pitch(storage: Storage, shape: tuple[int, ...], axis: int) -> int:
    if storage.growing:
        return int_of(storage.pitch(shape))
    return int(np.prod(shape[axis:], dtype=np.int64))
