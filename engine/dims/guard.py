"""Guards: conditions on sizes."""

from __future__ import annotations

from engine.dims.expr import Binding, Dim, bounds, is_equal, mod
from engine.dims.table import evaluate
from engine.records import dataclass


@dataclass(frozen=True)
class Guard:
    """A condition on sizes: `expr == 0` ("zero") or `expr >= 0` ("nonneg"); `why` in words."""

    kind: str
    expr: Dim
    why: str = ""

    def holds(self, binding: Binding) -> bool:
        """Whether it is true under `binding`. Raises: KeyError for an unbound symbol."""
        return self.accepts(evaluate(self.expr, binding))

    def accepts(self, value: int) -> bool:
        """Whether it is true where `expr` is `value`."""
        return value == 0 if self.kind == "zero" else value >= 0

    @property
    def negation(self) -> Guard:
        """The guard that holds where this one does not."""
        why = f"not ({self})"
        if self.kind == "zero":
            return Guard("zero", is_equal(self.expr, 0), why)
        return Guard("nonneg", self.expr * -1 - 1, why)

    @property
    def known(self) -> bool | None:
        """True or False where the bounds decide, else None."""
        lo, hi = bounds(self.expr)
        if self.kind == "zero":
            if lo == hi == 0:
                return True
            return False if (lo is not None and lo > 0) or (hi is not None and hi < 0) else None
        if lo is not None and lo >= 0:
            return True
        return False if hi is not None and hi < 0 else None

    def __str__(self) -> str:
        return self.why or f"{self.expr} {'== 0' if self.kind == 'zero' else '>= 0'}"


def equal(a: Dim, b: Dim, why: str = "") -> Guard:
    """The guard a == b."""
    return Guard("zero", a - b, why or f"{a} == {b}")


def at_least(a: Dim, b: Dim, why: str = "") -> Guard:
    """The guard a >= b."""
    return Guard("nonneg", a - b, why or f"{a} >= {b}")


def divisible(a: Dim, n: int, why: str = "") -> Guard:
    """The guard that n divides a."""
    return Guard("zero", mod(a, n), why or f"{n} divides {a}")
