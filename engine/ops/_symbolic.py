"""Rules on the contents of small tensors of sizes: NumPy broadcasting over arrays of `Dim`.

Floats are covered where their values are whole numbers, so that sizes that pass through a float
(Cast, Mul by a constant, Floor, Cast back) stay known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from engine import dims
from engine.dims import Dim
from engine.ir import Array
from engine.ops import Evaluate, NodeView

MAX_ELEMENTS = 1024

Rule = Callable[..., Dim | None]
"""A result from the elements of each operand; None where it is not known exactly."""


def contents(view: NodeView, index: int) -> Array | None:
    """Input `index` as an object array of dims: also a float constant of whole numbers."""
    found = view.dims(index)
    if found is None:
        constant = view.const(index)
        if constant is None or constant.dtype.kind != "f" or constant.size > MAX_ELEMENTS:
            return None
        wide = constant.astype(np.float64)
        if not (np.isfinite(wide) & (np.floor(wide) == wide)).all():
            return None
        found = wide.astype(object)
    if found.size > MAX_ELEMENTS:
        return None
    whole = np.empty(found.shape, dtype=object)
    whole.reshape(-1)[:] = [d if isinstance(d, dims.Expr) else int(d) for d in found.reshape(-1)]
    return whole


def broadcast_apply(rule: Rule, operands: Sequence[Array]) -> Array | None:
    """`rule` on each element of the broadcast operands; None if any result is unknown."""
    try:
        together = np.broadcast_arrays(*operands)
    except ValueError:
        return None
    result = np.empty(together[0].shape, dtype=object)
    if result.size > MAX_ELEMENTS:
        return None
    flat = result.reshape(-1)
    for place, items in enumerate(zip(*(a.reshape(-1) for a in together), strict=True)):
        value = rule(*items)
        if value is None:
            return None
        flat[place] = value
    return result


def elementwise_rule(rule: Rule, operands: Sequence[int] | None = None) -> Evaluate:
    """An `evaluate` that applies `rule` to the given inputs (all, if None) with broadcasting."""

    def evaluate(view: NodeView) -> Sequence[Array | None] | None:
        indices = range(len(view.node.inputs)) if operands is None else operands
        found = [contents(view, i) for i in indices]
        known = [a for a in found if a is not None]
        if len(known) < len(found):
            return None
        result = broadcast_apply(rule, known)
        return None if result is None else (result,)

    return evaluate


def add(*items: Dim) -> Dim | None:
    return sum(items[1:], items[0])


def subtract(a: Dim, b: Dim) -> Dim | None:
    return a - b


def multiply(a: Dim, b: Dim) -> Dim | None:
    return a * b


def divide(a: Dim, b: Dim) -> Dim | None:
    """Integer division towards zero, where it is the floor or exact."""
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 else (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
    if b == 0:
        return None
    if dims.mod(a, b) == 0:
        return dims.floordiv(a, b)
    return dims.floordiv(a, b) if _at_least(a, 0) and _at_least(b, 0) else None


def divide_exactly(a: Dim, b: Dim) -> Dim | None:
    """The quotient of floats, where it is whole."""
    return dims.floordiv(a, b) if b != 0 and dims.mod(a, b) == 0 else None


def floor_modulo(a: Dim, b: Dim) -> Dim | None:
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 else a % b
    return dims.mod(a, b) if _at_least(b, 0) and b != 0 else None


def truncated_modulo(a: Dim, b: Dim) -> Dim | None:
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)
    return floor_modulo(a, b) if _at_least(a, 0) else None


def smallest(*items: Dim) -> Dim | None:
    result = items[0]
    for item in items[1:]:
        result = dims.dmin(result, item)
    return result


def largest(*items: Dim) -> Dim | None:
    result = items[0]
    for item in items[1:]:
        result = dims.dmax(result, item)
    return result


def same(a: Dim) -> Dim | None:
    return a


def negative(a: Dim) -> Dim | None:
    return 0 - a


def absolute(a: Dim) -> Dim | None:
    return dims.dmax(a, 0 - a)


def sign(a: Dim) -> Dim | None:
    return dims.dmax(dims.dmin(a, 1), -1)


def less(a: Dim, b: Dim) -> Dim | None:
    return dims.dmax(dims.dmin(b - a, 1), 0)


def less_or_equal(a: Dim, b: Dim) -> Dim | None:
    return less(a, b + 1)


def greater(a: Dim, b: Dim) -> Dim | None:
    return less(b, a)


def greater_or_equal(a: Dim, b: Dim) -> Dim | None:
    return less(b, a + 1)


def negate(a: Dim) -> Dim | None:
    return 1 - a


def either(a: Dim, b: Dim) -> Dim | None:
    return dims.dmax(a, b)


def exclusive(a: Dim, b: Dim) -> Dim | None:
    return a + b - 2 * a * b


def choose(condition: Dim, x: Dim, y: Dim) -> Dim | None:
    if isinstance(condition, int):
        return x if condition else y
    return y + condition * (x - y)


def power(a: Dim, b: Dim) -> Dim | None:
    return dims.product([a] * b) if isinstance(b, int) and 0 <= b <= 16 else None


def is_nonzero(a: Dim) -> Dim | None:
    return 1 - dims.is_equal(a, 0)


def _at_least(dim: Dim, low: int) -> bool:
    bound = dims.bounds(dim)[0]
    return bound is not None and bound >= low
