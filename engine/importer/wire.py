"""Serialised models without their large weights, which are read into arrays as they come.

Protobuf holds a message whole, and gives a copy of each tensor's bytes: a model would take three
times its size in memory for a while. Here the fields of the message are walked along instead
(https://protobuf.dev/programming-guides/encoding/), and what protobuf parses is the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import BinaryIO

import numpy as np

from engine.importer.tensors import SMALL_NBYTES
from engine.ir import Array

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
"""Numbers of fields: of ModelProto, of GraphProto, and of TensorProto (onnx.proto)."""
_VARINT, _BYTES, _FIXED = 0, 2, {1: 8, 5: 4}
"""Types of fields on the wire, those of fixed length with their bytes; ONNX has no groups."""
_LONGEST = 10
"""Bytes of a varint at most."""


class WireError(ValueError):
    """The bytes are no message, or end early."""


def without_weights(file: BinaryIO) -> tuple[bytes, dict[int, Array]]:
    """A ModelProto that lacks the `raw_data` of large initializers of its graph, and these.

    Args:
        file: where the whole message is, from the begin to the end.

    Returns: the message, and read-only uint8 by the initializer's number.

    Raises: WireError.
    """
    size = file.seek(0, os.SEEK_END)
    walk = _Walk(file)
    return walk.model(size), walk.raw


class _Walk:
    """A walk along a message. Each part of it ends at a place in the file.

    Attributes:
        raw: what was taken out, by the number of the initializer.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = file.seek(0)
        self._initializers = 0
        self.raw: dict[int, Array] = {}

    def model(self, end: int) -> bytes:
        return self._message(end, {_GRAPH: self._graph})

    def _graph(self, end: int) -> bytes:
        return self._message(end, {_INITIALIZER: self._initializer})

    def _initializer(self, end: int) -> bytes:
        content = self._message(end, {_RAW_DATA: self._raw_data})
        self._initializers += 1
        return content

    def _raw_data(self, end: int) -> bytes | None:
        self.raw.pop(self._initializers, None)  # of several, the last one counts
        size = end - self._at
        if size <= SMALL_NBYTES:
            return self._read(size)
        array = np.empty(size, np.uint8)
        if self._file.readinto(array) != size:  # type: ignore[attr-defined]
            raise WireError("it ends early")
        self._at = end
        array.flags.writeable = False
        self.raw[self._initializers] = array
        return None

    def _message(self, end: int, inner: Mapping[int, Callable[[int], bytes | None]]) -> bytes:
        """What is left of a message; `inner` says so of fields by number, None for nothing."""
        parts: list[bytes] = []
        while self._at < end:
            key, number, kind = self._key()
            if kind == _BYTES:
                inside = self._varint() + self._at
                if inside > end:
                    raise WireError("a field is longer than what it is part of")
                content = (
                    inner[number](inside) if number in inner else self._read(inside - self._at)
                )
                if content is not None:
                    parts += key, _varint(len(content)), content
            elif kind == _VARINT:
                parts += key, _varint(self._varint())
            elif kind in _FIXED:
                parts += key, self._read(_FIXED[kind])
            else:
                raise WireError(f"a field is of the unknown type {kind}")
        if self._at != end:
            raise WireError("a field is longer than what it is part of")
        return b"".join(parts)

    def _key(self) -> tuple[bytes, int, int]:
        value = self._varint()
        return _varint(value), value >> 3, value & 7

    def _varint(self) -> int:
        value = 0
        for place in range(0, 7 * _LONGEST, 7):
            byte = self._read(1)[0]
            value |= (byte & 0x7F) << place
            if byte < 0x80:
                return value
        raise WireError("a number is too long")

    def _read(self, size: int) -> bytes:
        found = self._file.read(size)
        if len(found) != size:
            raise WireError("it ends early")
        self._at += size
        return found


def _varint(value: int) -> bytes:
    """A number as it is written: seven bits a byte, the lowest first."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))
