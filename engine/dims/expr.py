"""Dims: integers, or polynomials over named symbols with floor division, modulo, min and max.

A `Dim` is an `int` or an `Expr`. Expressions are kept in one canonical form, so two that are equal
as polynomials compare equal: `2*h*w - w*h == h*w`. Symbols stand for sizes: integers >= 0. Dividing
by an expression takes it to be nonzero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Union

from engine.records import dataclass

Atom = Union["Symbol", "Apply"]
Monomial = tuple[Atom, ...]
Dim = Union[int, "Expr"]
Binding = Mapping[str, int]

remembered = lru_cache(maxsize=1 << 15)
"""For functions of dims: nodes that are alike ask the same again and again."""


@dataclass(frozen=True)
class Symbol:
    """A named size >= 0: an ONNX `dim_param`, or a fresh name for a size that data decides."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Apply:
    """A function of dims that no polynomial expresses: one of `BUILDERS`."""

    op: str
    args: tuple[Dim, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.args))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        if self.op in ("//", "%"):
            return f"({_operand(self.args[0])} {self.op} {_operand(self.args[1])})"
        return f"{self.op}({', '.join(map(str, self.args))})"


@dataclass(frozen=True)
class Expr:
    """A sum of integer multiples of products of atoms; `terms` is sorted and has no zero."""

    terms: tuple[tuple[Monomial, int], ...]

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _symbols(self) -> frozenset[str]:
        found: set[str] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                if isinstance(atom, Symbol):
                    found.add(atom.name)
                else:
                    found.update(*map(symbols_of, atom.args))
        return frozenset(found)

    def __add__(self, other: Dim) -> Dim:
        return _added(self, other)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __rsub__(self, other: Dim) -> Dim:
        return other + self * -1

    def __mul__(self, other: Dim) -> Dim:
        return _multiplied(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return mod(other, self)

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        parts = []
        for monomial, factor in self.terms:
            text = "*".join(map(str, monomial))
            if not text:
                parts.append(str(factor))
            elif factor in (1, -1):
                parts.append(text if factor == 1 else f"-{text}")
            else:
                parts.append(f"{factor}*{text}")
        return " + ".join(parts).replace("+ -", "- ")

    __repr__ = __str__


def _operand(dim: Dim) -> str:
    return f"({dim})" if isinstance(dim, Expr) and len(dim.terms) > 1 else str(dim)


def symbol(name: str) -> Expr:
    """The dim that is the symbol `name`."""
    return Expr((((Symbol(name),), 1),))


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, Expr):
        return dim.terms
    return (((), int(dim)),) if dim else ()


@remembered
def _added(a: Dim, b: Dim) -> Dim:
    return _sum(_terms(a), _terms(b))


@remembered
def _multiplied(a: Dim, b: Dim) -> Dim:
    return _sum((tuple(sorted(m + n, key=str)), f * g) for m, f in _terms(a) for n, g in _terms(b))


def _sum(*groups: Iterable[tuple[Monomial, int]]) -> Dim:
    total: dict[Monomial, int] = {}
    for group in groups:
        for monomial, factor in group:
            total[monomial] = total.get(monomial, 0) + factor
    terms = tuple(sorted(((m, f) for m, f in total.items() if f), key=_term_key))
    if not terms:
        return 0
    if terms[0][0] == () and len(terms) == 1:
        return terms[0][1]
    return Expr(terms)


def _term_key(term: tuple[Monomial, int]) -> tuple[bool, int, str]:
    monomial = term[0]
    return (not monomial, -len(monomial), "*".join(map(str, monomial)))


def _apply(op: str, *args: Dim) -> Dim:
    return Expr((((Apply(op, args),), 1),))


@remembered
def _quotient(a: Dim, b: Dim) -> Dim | None:
    """`q` with `a == q * b` as polynomials, or None."""
    top, bottom = _terms(a), _terms(b)
    if not top:
        return 0
    if len(bottom) == 1:
        terms = []
        for monomial, factor in top:
            rest = list(monomial)
            for atom in bottom[0][0]:
                if atom not in rest:
                    return None
                rest.remove(atom)
            if factor % bottom[0][1]:
                return None
            terms.append((tuple(rest), factor // bottom[0][1]))
        return _sum(terms)
    lead_a, lead_b = _sum(top[:1]), _sum(bottom[:1])
    guess = _quotient(lead_a, lead_b)
    if guess is not None and guess * b == a:
        return guess
    return None


def floordiv(a: Dim, b: Dim) -> Dim:
    """`a // b`, rounded towards minus infinity."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return _floordiv(a, b)


@remembered
def _floordiv(a: Dim, b: Dim) -> Dim:
    if b == 1:
        return a
    exact = _quotient(a, b)
    if exact is not None:
        return exact
    if isinstance(b, int) and b > 0:
        whole = _sum((m, f // b) for m, f in _terms(a) if f % b == 0 or m == ())
        rest = _sum((m, f % b if m == () else f) for m, f in _terms(a) if f % b)
        lo, hi = bounds(rest)
        if lo is not None and hi is not None and lo // b == hi // b:
            return whole + lo // b
        inner = _single_apply(rest, "//")
        if inner is not None and isinstance(inner.args[1], int) and inner.args[1] > 0:
            return whole + floordiv(inner.args[0], inner.args[1] * b)
        return whole + _apply("//", rest, b)
    return _apply("//", a, b)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """`a / b`, rounded towards plus infinity, for b > 0."""
    exact = None if isinstance(a, int) and isinstance(b, int) else _quotient(a, b)
    return exact if exact is not None else floordiv(a + b - 1, b)


def mod(a: Dim, b: Dim) -> Dim:
    """`a % b` for b > 0; the result lies in [0, b)."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return _mod(a, b)


@remembered
def _mod(a: Dim, b: Dim) -> Dim:
    if b == 1 or _quotient(a, b) is not None:
        return 0
    if isinstance(b, int):
        a = _sum((m, f % b) for m, f in _terms(a))
        if isinstance(a, int):
            return a % b
    return _apply("%", a, b)


def dmin(a: Dim, b: Dim) -> Dim:
    """The smaller of two dims."""
    return _extreme("min", a, b)


def dmax(a: Dim, b: Dim) -> Dim:
    """The larger of two dims."""
    return _extreme("max", a, b)


def _extreme(op: str, a: Dim, b: Dim) -> Dim:
    lo, hi = bounds(a - b)
    if hi is not None and hi <= 0:
        return a if op == "min" else b
    if lo is not None and lo >= 0:
        return b if op == "min" else a
    first, second = sorted((a, b), key=str)
    return _apply(op, first, second)


def is_equal(a: Dim, b: Dim) -> Dim:
    """1 where a == b, else 0."""
    lo, hi = bounds(a - b)
    if lo == hi == 0:
        return 1
    if (lo is not None and lo > 0) or (hi is not None and hi < 0):
        return 0
    return _apply("eq", a, b)


def broadcast(a: Dim, b: Dim) -> Dim:
    """The size that a and b broadcast to: the other one where one is 1, else either.

    Raises: ValueError if both are known, differ, and none is 1.
    """
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int) and isinstance(b, int):
        raise ValueError(f"sizes {a} and {b} do not broadcast")
    if isinstance(a, int) or (bounds(a)[0] or 0) > 1:
        return a
    if isinstance(b, int) or (bounds(b)[0] or 0) > 1:
        return b
    for low, high in ((a, b), (b, a)):
        if _is_capped(low, high):
            return high
    first, second = sorted((a, b), key=str)
    return _apply("bcast", first, second)


def _is_capped(low: Dim, high: Dim) -> bool:
    """Whether `low` is min(high, c) with c > 1: the two broadcast only where they are equal."""
    inner = _single_apply(low, "min")
    if inner is None or high not in inner.args:
        return False
    cap = inner.args[1] if inner.args[0] == high else inner.args[0]
    return (bounds(cap)[0] or 0) > 1


def product(dims: Iterable[Dim]) -> Dim:
    """The product of dims; 1 for none."""
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def is_static(dims: Iterable[Dim]) -> bool:
    """Whether every dim is a plain integer."""
    return all(isinstance(d, int) for d in dims)


def _single_apply(dim: Dim, op: str) -> Apply | None:
    if isinstance(dim, Expr) and len(dim.terms) == 1 and dim.terms[0][1] == 1:
        monomial = dim.terms[0][0]
        if len(monomial) == 1 and isinstance(monomial[0], Apply) and monomial[0].op == op:
            return monomial[0]
    return None


Bounds = tuple[int | None, int | None]


@remembered
def bounds(dim: Dim) -> Bounds:
    """(lowest, highest) value that `dim` can take; None where unbounded."""
    if isinstance(dim, int):
        return dim, dim
    lo: int | None = 0
    hi: int | None = 0
    for monomial, factor in dim.terms:
        a, b = _monomial_bounds(monomial)
        a, b = (_scale(a, factor), _scale(b, factor))
        if factor < 0:
            a, b = b, a
        lo = None if lo is None or a is None else lo + a
        hi = None if hi is None or b is None else hi + b
    return lo, hi


def _scale(bound: int | None, factor: int) -> int | None:
    return None if bound is None else bound * factor


def _monomial_bounds(monomial: Monomial) -> Bounds:
    lo: int | None = 1
    hi: int | None = 1
    for atom in monomial:
        a, b = _atom_bounds(atom)
        if a is None or a < 0 or lo is None or lo < 0:
            return None, None
        lo, hi = lo * a, None if hi is None or b is None else hi * b
    return lo, hi


def _atom_bounds(atom: Atom) -> Bounds:
    if isinstance(atom, Symbol):
        return 0, None
    ranges = [bounds(a) for a in atom.args]
    (a, b), (c, d) = ranges[0], ranges[1]
    match atom.op:
        case "//":
            if c is None or c <= 0:
                c = 1
            lo = None if a is None else (a // c if a < 0 else (a // d if d is not None else 0))
            return lo, None if b is None else (b // c if b >= 0 else -1)
        case "%":
            return 0, None if d is None else d - 1
        case "eq":
            return 0, 1
        case "min":
            lo = None if a is None or c is None else min(a, c)
            highs = [x for x in (b, d) if x is not None]
            return lo, min(highs) if highs else None
        case "max":
            lows = [x for x in (a, c) if x is not None]
            return max(lows) if lows else None, None if b is None or d is None else max(b, d)
        case _:
            return 0, None if b is None or d is None else max(b, d)


def symbols_of(dim: Dim) -> frozenset[str]:
    """The names of the symbols in `dim`."""
    return frozenset() if isinstance(dim, int) else dim._symbols


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """`dim` with symbols replaced by dims, simplified again."""
    if isinstance(dim, int) or not (symbols_of(dim) & values.keys()):
        return dim
    total: Dim = 0
    for monomial, factor in dim.terms:
        term: Dim = factor
        for atom in monomial:
            if isinstance(atom, Symbol):
                term = term * values.get(atom.name, symbol(atom.name))
            else:
                args = [substitute(a, values) for a in atom.args]
                term = term * BUILDERS[atom.op](*args)
        total = total + term
    return total


BUILDERS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "//": floordiv,
    "%": mod,
    "min": dmin,
    "max": dmax,
    "eq": is_equal,
    "bcast": broadcast,
}
