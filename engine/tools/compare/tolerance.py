"""How far two values differ, and how far they may, by type and operator.

An error is taken relative to the largest magnitude of the value: rounding in a sum is as large as
its largest term, whatever is left of it. For floats the largest error may be

    sum over the nodes of max(10 * OpDef.tolerance, 2 * epsilon of the type)

and nothing for nodes that only move elements. `OpDef.tolerance` is what the tests of the operator
hold it to, against float64; NumPy's own error and longer sums take the rest. Integers, bools and
strings must be equal, unless a float that the same kernel computed decides about them: then one in
a thousand may differ, integers by 1. What is still beyond is compared with what the node makes of
inputs that differ in the last bit, see `groups.py`. NaN and infinities must be in the same places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.ir import Array, Graph, Node
from engine.ops import definition
from engine.records import dataclass
from engine.runtime.host import described

SAFETY = 10
"""Over `OpDef.tolerance`: that of longer sums than in tests, and NumPy's own."""

MODEL_TOLERANCE = {2: 2e-2, 4: 1e-3, 8: 1e-6}
"""For outputs of whole models, by bytes of the float type: errors of all nodes add up."""

FLIPS = 1e-3
"""The share of integers or bools that rounding may change, where it may change any."""


@dataclass(frozen=True)
class Tolerance:
    """What is allowed.

    Attributes:
        relative: largest error over the largest magnitude, for floats.
        flips: share of integers and bools that may differ, integers by 1.
    """

    relative: float
    flips: float = 0.0


@dataclass(frozen=True)
class Difference:
    """How a value differs from what it should be.

    Attributes:
        name: of the value.
        dtype, shape: what it should be.
        max_abs, max_rel, max_ulp: largest error: absolute, relative to the element, and in units
            in the last place (0 for types that have none).
        where: index of the element whose absolute error is largest.
        got, want: that element.
        beyond, size: elements that differ by more than is allowed, of how many.
        nan, inf: how many elements are NaN and infinite: (got, want).
        allowed: the absolute error that is allowed.
        problem: in words why it is beyond tolerance; "" if it is not.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: int = 0
    where: tuple[int, ...] = ()
    got: str = ""
    want: str = ""
    beyond: int = 0
    size: int = 0
    nan: tuple[int, int] = (0, 0)
    inf: tuple[int, int] = (0, 0)
    allowed: float = 0.0
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem

    @property
    def score(self) -> float:
        """Largest error over what is allowed."""
        if not self.max_abs:
            return 0.0
        return self.max_abs / self.allowed if self.allowed else float("inf")


def is_float(array: Array) -> bool:
    """Whether the elements are floats, those of `ml_dtypes` too."""
    return array.dtype.kind == "f" or (array.dtype.kind == "V" and "float" in array.dtype.name)


def model_tolerance(array: Any, tolerance: float | None) -> Tolerance:
    """For an output of a whole model, or what the user asked for."""
    while isinstance(array, list):
        array = array[0] if array else None
    if tolerance is None:
        wide = isinstance(array, np.ndarray) and is_float(array)
        tolerance = MODEL_TOLERANCE.get(array.dtype.itemsize, 5e-2) if wide else 0.0
    return Tolerance(tolerance, FLIPS)


def group_tolerance(graph: Graph, nodes: Sequence[Node]) -> Tolerance:
    """For the outputs of nodes that one kernel computes, given the same inputs."""
    relative, decides = 0.0, False
    for node in nodes:
        op = definition(node)
        own = 1e-5 if op is None else op.tolerance
        decides = decides or (relative > 0 and not _floats(graph, node.writes))
        if own and _floats(graph, (*node.reads, *node.writes)):
            relative += max(SAFETY * own, 2 * _epsilon(graph, node))
    return Tolerance(relative, FLIPS if decides else 0.0)


def _floats(graph: Graph, names: Sequence[str]) -> bool:
    tensors = [graph.tensor(n) for n in names]
    return any(t is not None and "float" in t.dtype.name for t in tensors)


def _epsilon(graph: Graph, node: Node) -> float:
    """The largest of the types that a node writes."""
    sizes = [t.dtype.name for t in map(graph.tensor, node.writes) if t is not None]
    return max((_EPSILON.get(name, 0.0) for name in sizes), default=0.0)


_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def difference(name: str, got: Any, want: Any, tolerance: Tolerance) -> Difference:
    """How `got` differs from `want`: tensors, sequences (the worst element), or nothing."""
    if want is None or got is None:
        problem = "" if got is want else f"{_kind(got)} instead of {_kind(want)}"
        return Difference(name, _kind(want), (), problem=problem)
    if isinstance(want, list) or isinstance(got, list):
        return _sequence(name, got, want, tolerance)
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype != want.dtype and not {got.dtype.kind, want.dtype.kind} <= set("OSUT"):
        problem = f"dtype {got.dtype} instead of {want.dtype}"
        return Difference(name, str(want.dtype), want.shape, problem=problem)
    if got.shape != want.shape:
        problem = f"shape {list(got.shape)} instead of {list(want.shape)}"
        return Difference(name, str(want.dtype), want.shape, problem=problem)
    if want.size == 0:
        return Difference(name, str(want.dtype), want.shape)
    if is_float(want):
        return _floating(name, got, want, tolerance)
    return _discrete(name, got, want, tolerance)


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    return f"a {described(value)}" if isinstance(value, list) else described(value)


def _sequence(name: str, got: Any, want: Any, tolerance: Tolerance) -> Difference:
    if not (isinstance(got, list) and isinstance(want, list) and len(got) == len(want)):
        return Difference(name, _kind(want), (), problem=f"{_kind(got)} instead of {_kind(want)}")
    items = [
        difference(f"{name}[{i}]", g, w, tolerance)
        for i, (g, w) in enumerate(zip(got, want, strict=True))
    ]
    empty = Difference(name, _kind(want), ())
    return max(items, key=lambda d: (not d.ok, d.score), default=empty)


def _floating(name: str, got: Array, want: Array, tolerance: Tolerance) -> Difference:
    a, b = got.astype(np.float64), want.astype(np.float64)
    nan = int(np.isnan(a).sum()), int(np.isnan(b).sum())
    inf = int(np.isinf(a).sum()), int(np.isinf(b).sum())
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(all="ignore"):
        error = np.where(same, 0.0, np.where(finite, np.abs(a - b), np.inf))
        relative = np.where(same, 0.0, error / np.abs(b))
    scale = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    allowed = tolerance.relative * scale + (_smallest(want) if tolerance.relative else 0.0)
    beyond = int((error > allowed).sum())
    place = int(error.argmax())
    problem = ""
    if beyond:
        problem = f"{beyond} of {want.size} elements differ by more than {allowed:.3g}"
        odd = int((~finite & ~same).sum())
        problem += f", {odd} of them by NaN or infinity" if odd else ""
    return Difference(
        name,
        str(want.dtype),
        want.shape,
        float(error.max()),
        float(relative[finite].max(initial=0.0)),
        _ulps(got, want, finite & ~same),
        tuple(int(i) for i in np.unravel_index(place, want.shape)),
        f"{a.reshape(-1)[place]:.9g}",
        f"{b.reshape(-1)[place]:.9g}",
        beyond,
        want.size,
        nan,
        inf,
        allowed,
        problem,
    )


def _smallest(array: Array) -> float:
    """The smallest normal number: devices may take smaller ones for zero."""
    if array.dtype.kind == "f":
        return float(np.finfo(array.dtype).tiny)
    return float(np.finfo(np.float32).tiny)


def _ulps(got: Array, want: Array, where: Array) -> int:
    """The largest distance in representable numbers."""
    nbytes = want.dtype.itemsize
    if nbytes not in (1, 2, 4, 8) or not where.any():
        return 0
    signed = np.dtype(f"i{nbytes}")
    lowest = int(np.iinfo(signed).min)
    ordered = []
    for array in (got, want):
        bits = [int(v) for v in np.ascontiguousarray(array[where][:_SAMPLE]).view(signed)]
        ordered.append([lowest - v if v < 0 else v for v in bits])
    return max(abs(a - b) for a, b in zip(ordered[0], ordered[1], strict=True))


_SAMPLE = 100_000
"""Elements that distances in representable numbers are worked out for."""


def _discrete(name: str, got: Array, want: Array, tolerance: Tolerance) -> Difference:
    wrong = got != want
    count = int(wrong.sum())
    numbers = want.dtype.kind in "iu"
    place = int(wrong.argmax())
    largest = 0
    if numbers and count:
        distance = np.abs(got.astype(object) - want.astype(object)).astype(np.float64)
        largest, place = int(distance.max()), int(distance.argmax())
    problem = ""
    if count > max(1, tolerance.flips * want.size) * bool(tolerance.flips) or largest > 1:
        problem = f"{count} of {want.size} elements differ"
    return Difference(
        name,
        str(want.dtype),
        want.shape,
        float(largest) if numbers else float(count > 0),
        0.0,
        0,
        tuple(int(i) for i in np.unravel_index(place, want.shape)),
        str(got.reshape(-1)[place]),
        str(want.reshape(-1)[place]),
        count,
        want.size,
        allowed=1.0 if tolerance.flips and numbers else 0.0,
        problem=problem,
    )
