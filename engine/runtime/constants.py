"""ConstantStore: the weights of a session on its device, each uploaded once for all plans."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from engine.ir import Array
from engine.layout import Storage
from engine.runtime.device import Device


class ConstantStore:
    """Buffers by content and storage.

    Attributes:
        nbytes: bytes that they take on the device.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.nbytes = 0
        self._buffers: dict[tuple[str, Storage], Any] = {}
        self._digests: dict[tuple[int, str], tuple[Array, str]] = {}
        self._names: dict[int, tuple[Array, str]] = {}

    def buffer(
        self,
        array: Array,
        storage: Storage,
        recipe: str = "",
        make: Callable[[Array], Array] | None = None,
    ) -> Any:
        """The buffer that holds `array`, or what `make` (named by `recipe`) makes of it.

        Raises: DeviceError if it does not fit; RangeError if int64 content does not fit int32.
        """
        key = (self._digest(array, recipe), storage)
        if key not in self._buffers:
            made = array if make is None else make(array)
            words = storage.to_device(made)
            nbytes = storage.nbytes((made.size,))
            assert isinstance(nbytes, int)
            buffer = self.device.buffer("constant", nbytes)
            self.device.write(buffer, words)
            self._buffers[key] = buffer
            self.nbytes += nbytes
        return self._buffers[key]

    def names(self, names: Iterable[tuple[Array, str]]) -> None:
        """Says what tells the contents of arrays apart, so that they need not be read for that."""
        self._names.update((id(array), (array, name)) for array, name in names)

    def _digest(self, array: Array, recipe: str) -> str:
        known = self._digests.get((id(array), recipe))
        if known is not None:
            return known[1]
        if id(array) in self._names:
            return f"{self._names[id(array)][1]} {recipe}"
        hasher = hashlib.blake2b(f"{array.dtype}{array.shape}{recipe}".encode(), digest_size=16)
        flat = np.ascontiguousarray(array).reshape(-1)
        hasher.update(flat.view(np.uint8).data if array.size else b"")
        digest = hasher.hexdigest()
        self._digests[id(array), recipe] = (array, digest)
        return digest
