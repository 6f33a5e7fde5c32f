"""Serialize: plans and what they consist of as JSON and arrays, and back.

Of classes, only dataclasses of the engine can be written or read, and they are made without calling
them: reading runs no code that the data name.
Objects that are shared stay shared. Arrays are kept apart, as `(dtype, shape, bytes)`, so that they
can be mapped into memory; arrays of Python objects (sizes, strings) are part of the JSON.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from engine.dtypes import DType, from_name, from_numpy
from engine.errors import PlanError
from engine.ir import Array

_PACKAGE = "engine."


class NotSerializableError(PlanError):
    """Something has a type that is not written, such as a function."""


class DamagedError(PlanError):
    """What was read is not what was written."""


def dump(value: object) -> tuple[str, list[Array]]:
    """A value as JSON, and the arrays that it refers to by number.

    Raises: NotSerializableError for a type that is not written.
    """
    writer = _Writer()
    root = writer.token(value)
    classes = [[c.__module__, c.__name__, _fields(c)] for c in writer.classes]
    return json.dumps([classes, writer.entries, root], separators=(",", ":")), writer.arrays


def load(text: str, arrays: Sequence[Array]) -> Any:
    """The value that `dump` wrote. Raises: DamagedError if it did not write that."""
    try:
        classes, entries, root = json.loads(text)
        makers = [_maker(*found) for found in classes]
        made: list[Any] = []

        def plain(token: Any) -> Any:
            return made[token[0]] if type(token) is list else token

        for entry in entries:
            kind = entry[0]
            content = [made[t[0]] if type(t) is list else t for t in entry[1:]]
            if type(kind) is int:
                made.append(makers[kind](content))
            elif kind == "array":
                made.append(arrays[content[0]])
            else:
                made.append(_READ[kind](content))
        return plain(root)
    except (ValueError, TypeError, LookupError, AttributeError, ImportError) as error:
        raise DamagedError(f"this is no serialised plan: {error}") from error


def _is_written(kind: Any) -> bool:
    """Whether objects of a class are written by their fields."""
    is_class = isinstance(kind, type) and dataclasses.is_dataclass(kind)
    return is_class and kind.__module__.startswith(_PACKAGE)


def _fields(kind: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(kind)]


def _maker(module: str, name: str, fields: list[str]) -> Callable[[list[Any]], Any]:
    """Makes an object of a class from the contents of its fields, without checks."""
    kind: Any = None
    if module.startswith(_PACKAGE):
        kind = getattr(importlib.import_module(module), name)
    if not _is_written(kind) or kind.__module__ != module:
        raise ValueError(f"{module}.{name} is not read")
    if _fields(kind) != fields:
        raise ValueError(f"{name} has other fields")

    def make(content: list[Any]) -> Any:
        made = object.__new__(kind)
        made.__dict__.update(zip(fields, content, strict=True))
        return made

    return make


def _pairs(content: list[Any]) -> dict[Any, Any]:
    return dict(zip(content[::2], content[1::2], strict=True))


def _objects(content: list[Any]) -> Array:
    array = np.empty(len(content) - 1, dtype=object)
    array[:] = content[1:]
    return array.reshape(content[0])


_READ: Mapping[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "list": list,
    "dict": _pairs,
    "set": frozenset,
    "bytes": lambda content: content[0].encode("latin-1"),
    "dtype": lambda content: from_name(content[0]),
    "number": lambda content: from_name(content[0]).numpy.type(content[1]),
    "objects": _objects,
}


class _Writer:
    """Entries for everything that is more than a number or a string, parts before wholes."""

    def __init__(self) -> None:
        self.entries: list[list[Any]] = []
        self.arrays: list[Array] = []
        self.classes: dict[type, int] = {}
        self._known: dict[int, tuple[object, list[int]]] = {}

    def token(self, value: Any) -> Any:
        """What stands for a value: itself, or the number of its entry in a list."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        known = self._known.get(id(value))
        if known is None:
            entry = self._entry(value)
            self.entries.append(entry)
            known = self._known[id(value)] = (value, [len(self.entries) - 1])
        return known[1]

    def _entry(self, value: Any) -> list[Any]:
        kind = type(value)
        if isinstance(value, DType):
            return ["dtype", value.name]
        if _is_written(kind):
            number = self.classes.setdefault(kind, len(self.classes))
            return [number, *(self.token(getattr(value, name)) for name in _fields(kind))]
        if kind in (tuple, list):
            return [kind.__name__, *map(self.token, value)]
        if isinstance(value, Mapping):
            return ["dict", *(self.token(part) for pair in value.items() for part in pair)]
        if isinstance(value, (frozenset, set)):
            return ["set", *map(self.token, sorted(value))]
        if kind is bytes:
            return ["bytes", value.decode("latin-1")]
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            return ["number", from_numpy(value.dtype).name, value.item()]
        raise NotSerializableError(f"a {kind.__module__}.{kind.__name__} is not written")

    def _array(self, array: Array) -> list[Any]:
        if array.dtype == object:
            return ["objects", self.token(array.shape), *map(self.token, array.reshape(-1))]
        if array.dtype.kind in "US":
            raise NotSerializableError(f"an array of {array.dtype} is not written")
        self.arrays.append(array)
        return ["array", len(self.arrays) - 1]
