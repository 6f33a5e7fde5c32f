"""Choices that hypothesis makes, and what cases are drawn from: dtypes, forms, shapes, contents."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import ops
from tests.choices import Choices

Array = NDArray[Any]
OPSET = 28
OLDEST = 6
MAX_ELEMENTS = 3000
SIZES = (2, 3, 1, 4, 5, 7, 8, 0)
LONG = (65, 33, 16, 130, 257, 1028)
RANKS = (2, 3, 1, 4, 2, 3, 0, 4, 5, 6, 8)

_integers = functools.cache(st.integers)


class Drawn(Choices):
    """Choices of hypothesis, so that a failing case is made smaller."""

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self._draw = draw

    def int(self, low: int, high: int) -> int:
        return low if low == high else self._draw(_integers(low, high))


class Form(Choices):
    """Choices that make the model: drawn once, and the same again after `again`."""

    def __init__(self, source: Choices) -> None:
        self._source = source
        self._made: list[tuple[int, int, int]] = []
        self._next = 0

    def again(self) -> None:
        self._next = 0

    def int(self, low: int, high: int) -> int:
        if self._next == len(self._made):
            self._made.append((low, high, self._source.int(low, high)))
        made = self._made[self._next]
        if made[:2] != (low, high):
            raise AssertionError("choices of the form may depend on each other only")
        self._next += 1
        return made[2]

    def rank(self, low: int = 0, high: int = 8) -> int:
        return self.one_of([r for r in RANKS if low <= r <= high])

    def axis(self, rank: int) -> int:
        """An axis, counted from either end."""
        return self.int(-rank, rank - 1)

    def opset(self, op: str, least: int = OLDEST, most: int = OPSET, domain: str = "") -> int:
        """A version in which the operator has a form of its own; mostly the newest."""
        found = [v for v in versions(op, domain) if v <= most]
        forms = [v for v in found if v >= least] or [most]
        if found and found[0] < least and least not in forms and most > least:
            forms.insert(0, least)
        return max(forms) if self.chance(0.5) else self.one_of(forms)

    def dtype(
        self, op: str, opset: int, index: int = 0, among: Iterable[str] = ops.ALL
    ) -> np.dtype[Any]:
        """An element type that both the GPU form and the standard allow for an input."""
        names = [n for n in dtypes(op, opset, index) if n in set(among)]
        if "float32" in names and self.chance(0.4):
            return np.dtype(np.float32)
        return as_dtype(self.one_of(names))


@functools.cache
def versions(op: str, domain: str = "") -> tuple[int, ...]:
    """The opset versions in which the operator changed."""
    schemas = onnx.defs.get_all_schemas_with_history()
    found = {s.since_version for s in schemas if s.name == op and s.domain == domain}
    return tuple(sorted(max(v, OLDEST) for v in found))


ORDER = "float32 int32 bool int64 float16 uint8 int8 uint32 bfloat16 int16 uint16".split()


@functools.cache
def dtypes(op: str, opset: int, index: int = 0) -> tuple[str, ...]:
    """Names of the types that input `index` may have on the GPU."""
    schema = onnx.defs.get_schema(op, opset)
    formal = schema.inputs[min(index, len(schema.inputs) - 1)]
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    texts = allowed.get(formal.type_str, [formal.type_str])
    names = {t.removeprefix("tensor(").removesuffix(")") for t in texts}
    names = {{"float": "float32", "double": "float64"}.get(n, n) for n in names}
    definition = ops.lookup(op, schema.since_version) or ops.lookup(op)
    assert definition is not None, f"{op}-{opset} has no OpDef"
    claimed = ops.ALL if definition.view else definition.dtypes
    return tuple(n for n in ORDER if n in names and n in claimed)


def as_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def rounding(dtype: np.dtype[Any], base: float, steps: float = 3) -> float:
    """A tolerance for results that are rounded to `dtype` several times on the way."""
    return base if dtype == np.float32 else base + steps * float(ml_dtypes.finfo(dtype).eps)


def is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype == ml_dtypes.bfloat16


class Data(Choices):
    """Choices that make the arrays of one call: sizes and contents."""

    def __init__(self, source: Choices) -> None:
        self._source = source

    def int(self, low: int, high: int) -> int:
        return self._source.int(low, high)

    def generator(self) -> np.random.Generator:
        """Contents come from a seed: drawing each element would take too long."""
        return np.random.default_rng(self.int(0, 2**16))

    def size(self, least: int = 0, most: int = 8) -> int:
        return self.one_of([s for s in SIZES if least <= s <= most])

    def shape(self, rank: int, least: int = 0, long: bool = True) -> tuple[int, ...]:
        """Small sizes, one of them sometimes long, or 0 unless `least` forbids it."""
        sizes = [self.size(1) for _ in range(rank)]
        if rank and long and self.chance(0.3):
            sizes[self.int(0, rank - 1)] = self.one_of(LONG)
        if rank and not least and self.chance(0.1):
            sizes[self.int(0, rank - 1)] = 0
        while math.prod(max(s, 1) for s in sizes) > MAX_ELEMENTS:
            sizes[sizes.index(max(sizes))] //= 3
        return tuple(sizes)

    def broadcast(self, shape: Sequence[int], rank: int) -> tuple[int, ...]:
        """The last `rank` sizes of a shape, some of them 1: it broadcasts to that shape."""
        tail = shape[len(shape) - rank :]
        return tuple(1 if self.chance(0.25) else s for s in tail)

    def floats(
        self,
        dtype: np.dtype[Any],
        shape: Sequence[int],
        low: float = -4,
        high: float = 4,
        edges: Sequence[float] = (),
    ) -> Array:
        """Floats in [low, high], a part of them multiples of 1/8, and some `edges` among them."""
        rng = self.generator()
        smooth = rng.uniform(low, high, tuple(shape))
        eighths = np.clip(np.round(smooth * 8) / 8, low, high)
        values = np.where(rng.random(tuple(shape)) < 0.4, eighths, smooth)
        if len(edges) and values.size and self.chance(0.5):
            places = rng.integers(0, values.size, max(1, values.size // 5))
            values.reshape(-1)[places] = rng.choice(np.asarray(edges, np.float64), places.size)
        with np.errstate(over="ignore"):
            return np.asarray(values.astype(dtype))

    def integers(
        self, dtype: np.dtype[Any], shape: Sequence[int], low: int = -9, high: int = 9
    ) -> Array:
        """Integers from low to high, as far as the type has them."""
        info = np.iinfo(dtype)
        low, high = max(low, int(info.min)), min(high, int(info.max))
        return np.asarray(
            self.generator().integers(low, high, tuple(shape), np.int64, endpoint=True)
        ).astype(dtype)

    def array(
        self,
        dtype: np.dtype[Any],
        shape: Sequence[int],
        low: float = -4,
        high: float = 4,
        edges: Sequence[float] = (),
        whole: bool = False,
    ) -> Array:
        """An array of any type. `edges` are for floats; `whole` takes all integers of the type."""
        if dtype == np.bool_:
            return np.asarray(self.generator().random(tuple(shape)) < 0.5)
        if is_float(dtype):
            return self.floats(dtype, shape, low, high, edges)
        if not whole:
            return self.integers(dtype, shape, math.ceil(low), math.floor(high))
        values = self.integers(
            dtype, shape, -(2**31), 2**32 - 1 if dtype.kind == "u" else 2**31 - 1
        )
        info = np.iinfo(np.int32 if dtype == np.int64 else dtype)
        if values.size and self.chance(0.5):
            rng = self.generator()
            places = rng.integers(0, values.size, max(1, values.size // 5))
            ends = np.asarray([info.min, info.max, 0, 1], dtype)
            values.reshape(-1)[places] = rng.choice(ends, places.size)
        return values


SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0)
EXTREMES = (*SPECIAL, 3.4e38, -3.4e38, 1e-30, -1e-30, 65504.0, 0.5, -0.5, 1.5, -2.5, 1e6, -1e6)
