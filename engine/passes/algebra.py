"""Expressions as polynomials, so that a pattern matches in every order of its sums and products.

An activation such as `0.5 * x * (1 + erf(x / sqrt(2)))` is a polynomial in `x` and `t = erf(...)`,
and what `erf` gets is a polynomial in `x`: two comparisons of coefficients tell it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.ir import Node
from engine.passes.match import is_op, rank_of, scalar
from engine.passes.rewrite import Editor
from engine.records import dataclass

Powers = tuple[int, int]
"""Exponents of x and of t."""
Polynomial = dict[Powers, float]

X: Polynomial = {(1, 0): 1.0}
T: Polynomial = {(0, 1): 1.0}
MAX_DEPTH = 8
MAX_TERMS = 16
NEARLY = 1e-2
"""Relative error of constants up to which a pattern that does not match is reported."""
ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Neg", "Pow")


@dataclass(frozen=True)
class Activation:
    """A function of x that goes through one function t of a polynomial in x.

    Attributes:
        op_type, attrs: the standard operator that it is.
        inner: the operator of t, or a predicate on its node.
        argument: what t is applied to.
        result: the whole.
    """

    op_type: str
    inner: Callable[[Editor, Node], str]
    argument: Polynomial
    result: Polynomial
    attrs: Mapping[str, str | float]


@dataclass(frozen=True)
class Match:
    """Where an activation was found: its x, its last value and all of its nodes."""

    x: str
    output: str
    nodes: tuple[Node, ...]


def polynomial(
    editor: Editor, name: str, atoms: Mapping[str, Polynomial], depth: int = MAX_DEPTH
) -> tuple[Polynomial, tuple[Node, ...]] | None:
    """A value as a polynomial in `atoms`, and the nodes that compute it; None if it isn't one.

    Constants count where they are single numbers that don't change the shape of the first atom.
    """
    if name in atoms:
        return atoms[name], ()
    node = editor.producer(name)
    if node is None or depth == 0 or not is_op(node, *ARITHMETIC):
        return None
    operands: list[Polynomial] = []
    nodes: tuple[Node, ...] = (node,)
    rank = rank_of(editor, next(iter(atoms)))
    for operand in node.inputs:
        number = scalar(editor, operand, rank)
        if number is not None:
            operands.append({(0, 0): number})
            continue
        found = polynomial(editor, operand, atoms, depth - 1)
        if found is None:
            return None
        operands.append(found[0])
        nodes += tuple(n for n in found[1] if n not in nodes)
    result = _combine(node.op_type, operands)
    return None if result is None or len(result) > MAX_TERMS else (result, nodes)


def _combine(op_type: str, operands: list[Polynomial]) -> Polynomial | None:
    a, b = operands[0], operands[-1]
    constant = b.get((0, 0), 0.0) if set(b) <= {(0, 0)} else None
    match op_type:
        case "Neg":
            return _scaled(a, -1)
        case "Add":
            return _sum(a, b)
        case "Sub":
            return _sum(a, _scaled(b, -1))
        case "Mul":
            return _product(a, b)
        case "Div":
            return _scaled(a, 1 / constant) if constant else None
        case _:
            if constant not in (1, 2, 3):
                return None
            result = a
            for _ in range(int(constant) - 1):
                result = _product(result, a)
            return result


def _scaled(a: Polynomial, factor: float) -> Polynomial:
    return {powers: value * factor for powers, value in a.items()}


def _sum(a: Polynomial, b: Polynomial) -> Polynomial:
    return {p: a.get(p, 0.0) + b.get(p, 0.0) for p in {**a, **b}}


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for (i, j), u in a.items():
        for (k, m), v in b.items():
            result[i + k, j + m] = result.get((i + k, j + m), 0.0) + u * v
    return result


def is_close(a: Polynomial, b: Polynomial, tolerance: float) -> bool:
    """Whether all coefficients agree up to a relative error."""
    return all(
        abs(a.get(p, 0.0) - b.get(p, 0.0)) <= tolerance * abs(b.get(p, 0.0)) for p in {**a, **b}
    )


_TOLERANCE = {"bfloat16": 8e-3, "float16": 1e-3}


def tolerance(editor: Editor, name: str) -> float:
    """How far constants may be off: what rounding to the value's element type can explain."""
    dtype = editor.dtype(name)
    return _TOLERANCE.get("" if dtype is None else dtype.name, 1e-6)


def match(editor: Editor, node: Node, wanted: Activation) -> Match | str | None:
    """`wanted` with `node` as its t; why not, if it nearly is; None if it is something else."""
    argument = wanted.inner(editor, node)
    if not argument:
        return None
    epsilon = tolerance(editor, node.outputs[0])
    telling = wanted.argument != X
    reason: str | None = None
    for x in _candidates(editor, argument) if telling else [argument]:
        found = polynomial(editor, argument, {x: X})
        if found is None or not is_close(found[0], wanted.argument, NEARLY):
            continue
        if not is_close(found[0], wanted.argument, epsilon):
            reason = f"its argument is {_words(found[0])}, not {_words(wanted.argument)}"
            continue
        whole = _climb(editor, node, x, wanted, epsilon)
        if whole is None:
            if telling:
                reason = f"what follows is not {_words(wanted.result)} alone"
            continue
        output, after = whole
        inside = (*found[1], node, *after)
        leak = _leak(editor, inside, output)
        if leak:
            reason = leak
            continue
        return Match(x, output, inside)
    return reason


def _words(result: Polynomial) -> str:
    terms = (
        "*".join([f"{value:.7g}"] * (value != 1) + ["x"] * i + ["t"] * j)
        for (i, j), value in result.items()
    )
    return " + ".join(terms)


def _candidates(editor: Editor, name: str) -> list[str]:
    """Values that may be x: those that `name` is computed from by arithmetic, nearest first."""
    found, layer = [name], [name]
    for _ in range(MAX_DEPTH):
        following = []
        for value in layer:
            node = editor.producer(value)
            if node is not None and is_op(node, *ARITHMETIC):
                following += [n for n in node.inputs if n not in found and editor.const(n) is None]
        layer = list(dict.fromkeys(following))
        found += layer
    return found[:16]


def _climb(
    editor: Editor, node: Node, x: str, wanted: Activation, epsilon: float
) -> tuple[str, tuple[Node, ...]] | None:
    """The value, at most four steps after t, that is the wanted polynomial in x and t."""
    start = node.outputs[0]
    name = start
    for _ in range(4):
        following = editor.only_consumer(name)
        if following is None or not is_op(following, *ARITHMETIC):
            return None
        name = following.outputs[0]
        found = polynomial(editor, name, {x: X, start: T})
        if found is not None and is_close(found[0], wanted.result, epsilon):
            return name, found[1]
    return None


def _leak(editor: Editor, nodes: tuple[Node, ...], output: str) -> str:
    for node in nodes:
        name = node.outputs[0]
        others = "" if name == output else editor.uses_beyond(name, nodes)
        if others:
            return f"{name!r} inside of it is needed as it is: {others}"
    return ""
