"""Numbers from dims: tables evaluated together, and their postfix form."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.dims.expr import BUILDERS, Apply, Atom, Binding, Dim, Symbol, symbol, symbols_of
from engine.errors import ShapeError

_PYTHON = {
    "//": "({0} // {1})",
    "%": "({0} % {1})",
    "min": "min({0}, {1})",
    "max": "max({0}, {1})",
    "eq": "int({0} == {1})",
    "bcast": "({1} if {0} == 1 else {0})",
}


def evaluate(dim: Dim, binding: Binding) -> int:
    """The integer that `dim` is under `binding`. Raises: KeyError for an unbound symbol."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, factor in dim.terms:
        for atom in monomial:
            if not isinstance(atom, Symbol):
                return Table((dim,)).evaluate(binding)[0]
            factor *= binding[atom.name]
        total += factor
    return total


class Table:
    """Dims evaluated together: shared parts once, by a Python function generated at first use."""

    def __init__(self, dims: Sequence[Dim]) -> None:
        self.dims = tuple(dims)
        self.symbols = tuple(sorted(frozenset().union(*map(symbols_of, self.dims))))
        self._function: Callable[[Binding], tuple[int, ...]] | None = None

    def evaluate(self, binding: Binding) -> tuple[int, ...]:
        """The integers, in the order of `dims`.

        Raises: KeyError for an unbound symbol; ShapeError for a division by a size of 0.
        """
        if self._function is None:
            self._function = self._generate()
        try:
            return self._function(binding)
        except ZeroDivisionError:
            empty = sorted(s for s in self.symbols if not binding[s]) or list(self.symbols)
            sizes = ", ".join(f"{s}={binding[s]}" for s in empty)
            raise ShapeError(f"a size is divided by 0 at {sizes}") from None

    def _generate(self) -> Callable[[Binding], tuple[int, ...]]:
        written = _Lines(self.symbols)
        results = [written.reference(d) for d in self.dims]
        source = "\n".join(
            ["def table(b):", *written.lines, f"  return ({''.join(r + ', ' for r in results)})"]
        )
        scope: dict[str, Callable[[Binding], tuple[int, ...]]] = {}
        exec(compile(source, "<dims>", "exec"), scope)
        return scope.pop("table")


class _Lines:
    """Lines of Python that give dims names, parts before wholes."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self.lines = [f"  s{i} = b[{name!r}]" for i, name in enumerate(symbols)]
        self._names: dict[object, str] = {Symbol(n): f"s{i}" for i, n in enumerate(symbols)}

    def reference(self, dim: Dim) -> str:
        """What stands for a dim."""
        names = self._names
        if isinstance(dim, int):
            return f"({dim})"
        if dim not in names:
            terms = [
                "*".join([str(factor)] * (factor != 1 or not m) + [self._atom(a) for a in m])
                for m, factor in dim.terms
            ]
            self.lines.append(f"  e{len(names)} = {' + '.join(terms)}")
            names[dim] = f"e{len(names)}"
        return names[dim]

    def _atom(self, atom: Atom) -> str:
        names = self._names
        if isinstance(atom, Apply) and atom not in names:
            text = _PYTHON[atom.op].format(*(self.reference(a) for a in atom.args))
            self.lines.append(f"  a{len(names)} = {text}")
            names[atom] = f"a{len(names)}"
        return names[atom]


def to_postfix(dim: Dim) -> list[int | str]:
    """`dim` as postfix: integers, symbol names prefixed by "$", and operator names."""
    if isinstance(dim, int):
        return [dim]
    out: list[int | str] = []
    for index, (monomial, factor) in enumerate(dim.terms):
        out.append(factor)
        for atom in monomial:
            if isinstance(atom, Symbol):
                out.append("$" + atom.name)
            else:
                for arg in atom.args:
                    out.extend(to_postfix(arg))
                out.append(atom.op)
            out.append("*")
        if index:
            out.append("+")
    return out


def from_postfix(items: Sequence[int | str]) -> Dim:
    """The dim that `to_postfix` wrote."""
    stack: list[Dim] = []
    for item in items:
        if isinstance(item, int):
            stack.append(item)
        elif item.startswith("$"):
            stack.append(symbol(item[1:]))
        else:
            b, a = stack.pop(), stack.pop()
            if item == "+":
                stack.append(a + b)
            elif item == "*":
                stack.append(a * b)
            else:
                stack.append(BUILDERS[item](a, b))
    return stack.pop()
