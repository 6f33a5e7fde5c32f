"""Inference through control flow: If, Loop, Scan and SequenceMap.

A body's symbols mean something new at each execution, so what leaves a body keeps only those sizes
that are known outside; the others become symbols of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from engine import dims
from engine.dims import Dim
from engine.dtypes import BOOL, INT64
from engine.errors import ModelError, ShapeError, in_words
from engine.importer.opsets import PINNED, since_version
from engine.ir import Graph, Node, OptionalType, SequenceType, TensorType, Value, ValueType, label
from engine.passes.symbols import is_typed, substitute_type

if TYPE_CHECKING:
    from engine.passes.infer import Inference

Kinds = list[ValueType | None]
Rule = Callable[["Inference", Node, Mapping[str, Value]], tuple[Node, Kinds]]


def has_rule(node: Node) -> bool:
    """Whether `infer_bodies` knows the operator."""
    return not node.domain and node.op_type in _RULES


def infer_bodies(
    state: Inference, node: Node, values: dict[str, Value]
) -> tuple[Node, list[Node] | None]:
    """Types a node with bodies.

    Returns: `node` with typed bodies, its outputs' types set in `values`; or also the nodes to put
        in its place, if it is an If with a constant condition.
    """
    rule = _RULES[node.op_type]
    if rule is _if:
        taken = _condition(state, node, values[node.inputs[0]])
        if taken is not None:
            return node, _inline(node, taken, values)
    with in_words(lambda: label(node)):
        new, kinds = rule(state, node, values)
    for name, kind in zip(node.outputs, kinds, strict=False):
        old = values.get(name, Value(name))
        if name and not is_typed(old):
            values[name] = old.replace(type=kind)
    captures = dict.fromkeys(n for b in new.bodies.values() for n in b.captures)
    return new.replace(captures=tuple(captures)), None


def _condition(state: Inference, node: Node, value: Value) -> bool | None:
    """The condition of an If, where it is constant, or follows from sizes (under a guard)."""
    known = value.constant if value.constant is not None else value.dims
    if known is None:
        return None
    if known.size != 1:
        raise ShapeError(f"{label(node)}: the condition has {known.size} elements")
    if value.constant is not None:
        return bool(known.reshape(-1)[0])
    dim: Dim = known.reshape(-1)[0]
    if not dims.symbols_of(dim) <= state.binding.keys():
        return None
    taken = dims.evaluate(dim, state.binding)
    why = f"{dim} {'does not hold' if not taken else 'holds'}: {label(node)} depends on it"
    state.guards.append(dims.equal(dim, taken, why))
    return bool(taken)


def _inline(node: Node, taken: bool, values: dict[str, Value]) -> list[Node]:
    """The nodes of the branch, and Identities to the names that the If had."""
    body: Graph = node.attrs["then_branch" if taken else "else_branch"]
    values.update((n, v) for n, v in body.values.items() if n not in body.captures)
    since = since_version("Identity", "", PINNED) or 1
    exits = [
        Node(
            "Identity",
            (inner,),
            (outer,),
            since_version=since,
            name=node.name,
            origin=node.origin,
        )
        for inner, outer in zip(body.outputs, node.outputs, strict=False)
        if outer
    ]
    return [*body.nodes, *exits]


class _Border:
    """Between a body and the outside: symbols that the body makes don't cross it."""

    def __init__(self, state: Inference) -> None:
        self._state = state
        self._first = len(state.minted)
        self._inner: frozenset[str] | None = None

    def leave(self, kind: ValueType | None, name: str) -> ValueType | None:
        """A type as it is seen outside, once all bodies are done."""
        if self._inner is None:
            self._inner = frozenset(self._state.minted[self._first :])
        inner = self._inner

        def size(axis: int, dim: Dim) -> Dim:
            known = not dims.symbols_of(dim) & inner
            return dim if known else self._state.fresh(f"{name}_{axis}")

        return substitute_type(kind, size)


def _run(
    state: Inference,
    node: Node,
    body: Graph,
    kinds: Sequence[ValueType | None],
    values: Mapping[str, Value],
) -> tuple[Graph, Kinds]:
    """A node's body inferred for inputs of the given types, and the types of its outputs.

    Raises: ModelError if the body takes more or fewer.
    """
    if len(body.inputs) != len(kinds):
        raise ModelError(
            f"{label(node)}: a body takes {len(body.inputs)} inputs, {len(kinds)} are given"
        )
    typed = dict(body.values)
    for name, kind in zip(body.inputs, kinds, strict=True):
        if typed[name].type is None:
            typed[name] = typed[name].replace(type=kind)
    done = state.run(body.replace(values=typed), values)
    return done, [done.values[n].type for n in done.outputs]


def _if(state: Inference, node: Node, values: Mapping[str, Value]) -> tuple[Node, Kinds]:
    border, attrs, branches = _Border(state), dict(node.attrs), []
    for key in ("then_branch", "else_branch"):
        attrs[key], kinds = _run(state, node, attrs[key], (), values)
        if len(kinds) != len(node.outputs):
            raise ModelError(
                f"{label(node)}: {key} gives {len(kinds)} outputs, {len(node.outputs)} are due"
            )
        branches.append(kinds)
    outputs: Kinds = []
    for name, *both in zip(node.outputs, *branches, strict=True):
        a, b = (border.leave(kind, name) for kind in both)
        outputs.append(join(state, a, b, name))
    return node.replace(attrs=attrs), outputs


def join(
    state: Inference,
    a: ValueType | None,
    b: ValueType | None,
    name: str,
    settled: frozenset[Dim] = frozenset(),
) -> ValueType | None:
    """The narrowest type that holds values of both.

    Sizes that differ become new symbols, but for those of `a` in `settled`, which stay.

    Raises: ModelError if one is a tensor and the other a sequence, or the element types differ.
    """
    if a == b or a is None or b is None:
        return a if a == b else None
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):
        x = a.element if isinstance(a, OptionalType) else a
        y = b.element if isinstance(b, OptionalType) else b
        element = join(state, x, y, name, settled)
        return None if element is None else OptionalType(element)
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        element = join(state, a.element, b.element, name, settled)
        return None if element is None else SequenceType(element)
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype == b.dtype:
        if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            return TensorType(a.dtype)
        pairs = enumerate(zip(a.shape, b.shape, strict=True))
        keep = settled
        shape = (x if x == y or x in keep else state.fresh(f"{name}_{i}") for i, (x, y) in pairs)
        return TensorType(a.dtype, tuple(shape))
    raise ModelError(f"value {name!r} is {a} on one path and {b} on another")


def _carry(
    state: Inference,
    node: Node,
    values: Mapping[str, Value],
    carried: Kinds,
    inputs: Callable[[Kinds], Kinds],
    places: tuple[slice, slice],
) -> tuple[Graph, Kinds, Kinds]:
    """Infers a loop body for types of the carried values that hold at every turn.

    Args:
        carried: types at the first turn.
        inputs: types of all inputs of the body, from the carried ones.
        places: where the carried values are among the body's inputs, and among its outputs.

    Returns: the body, the carried types, the types of its outputs.
    """
    body: Graph = node.attrs["body"]
    if len(inputs(carried)) != len(body.inputs):
        raise ModelError(
            f"{label(node)}: the body takes {len(body.inputs)} inputs, {len(inputs(carried))} "
            "are given"
        )
    names = body.inputs[places[0]]
    known = [body.values[n].type for n in names]
    if all(k is not None for k in known):
        carried = known
    settled: set[Dim] = set()
    notes = len(state.applied), len(state.guards), len(state.near_misses)
    while True:
        done, kinds = _run(state, node, body, inputs(carried), values)
        after = kinds[places[1]]
        if len(after) != len(carried):
            raise ModelError(f"{label(node)}: the body has too few outputs ({len(kinds)})")
        first = len(state.minted)
        wider: Kinds = [
            a and (join(state, a, b, n, frozenset(settled)) if b is not None else a)
            for a, b, n in zip(carried, after, names, strict=True)
        ]
        if wider == carried:
            return done, carried, kinds
        settled.update(dims.symbol(s) for s in state.minted[first:])
        carried = wider
        del state.applied[notes[0] :], state.guards[notes[1] :], state.near_misses[notes[2] :]


def _loop(state: Inference, node: Node, values: Mapping[str, Value]) -> tuple[Node, Kinds]:
    border, body = _Border(state), node.attrs["body"]
    start: Kinds = [values[n].type if n else None for n in node.inputs[2:]]
    count = len(start)
    places = slice(2, None), slice(1, 1 + count)
    fixed: Kinds = [TensorType(INT64, ()), TensorType(BOOL, ())]
    done, carried, kinds = _carry(state, node, values, start, lambda kinds: fixed + kinds, places)
    outputs = [border.leave(k, n) for k, n in zip(carried, node.outputs, strict=False)]
    trips = _trips(node, done, body, values)
    for name, kind in zip(node.outputs[count:], kinds[1 + count :], strict=False):
        size = state.fresh(f"{name}_0") if trips is None else trips
        outputs.append(_stacked(border.leave(kind, name), size, 0))
    return node.replace(attrs={**node.attrs, "body": done}), outputs


def _trips(node: Node, done: Graph, body: Graph, values: Mapping[str, Value]) -> Dim | None:
    """How many turns a Loop makes, if its condition never ends it and its limit is known."""
    if node.input(1):
        condition = values[node.input(1)].constant
        if condition is None:
            return None
        if not condition.all():
            return 0
    last = done.outputs[0]
    while last in done.producer and done.producer[last].op_type == "Identity":
        last = done.producer[last].inputs[0]
    constant = done.values[last].constant
    if last != body.inputs[1] and (constant is None or not constant.all()):
        return None
    limit = values[node.input(0)] if node.input(0) else Value("")
    if limit.constant is not None:
        return max(0, int(limit.constant.reshape(-1)[0]))
    return None if limit.dims is None else dims.dmax(limit.dims.reshape(-1)[0], 0)


def _stacked(kind: ValueType | None, size: Dim, axis: int) -> ValueType | None:
    if not isinstance(kind, TensorType) or kind.shape is None:
        return kind
    shape = list(kind.shape)
    shape.insert(axis + (len(shape) + 1 if axis < 0 else 0), size)
    return TensorType(kind.dtype, tuple(shape))


def _scan(state: Inference, node: Node, values: Mapping[str, Value]) -> tuple[Node, Kinds]:
    border = _Border(state)
    scans = int(node.attrs["num_scan_inputs"])
    count = len(node.inputs) - scans
    start: Kinds = [values[n].type for n in node.inputs[:count]]
    elements, length = _slices(node, values, count)
    places = slice(0, count), slice(0, count)
    done, carried, kinds = _carry(
        state, node, values, start, lambda kinds: kinds + elements, places
    )
    outputs = [border.leave(k, n) for k, n in zip(carried, node.outputs, strict=False)]
    axes = node.attrs.get("scan_output_axes") or [0] * (len(kinds) - count)
    for name, kind, axis in zip(node.outputs[count:], kinds[count:], axes, strict=False):
        size = state.fresh(f"{name}_0") if length is None else length
        outputs.append(_stacked(border.leave(kind, name), size, axis))
    return node.replace(attrs={**node.attrs, "body": done}), outputs


def _slices(node: Node, values: Mapping[str, Value], count: int) -> tuple[Kinds, Dim | None]:
    """What a Scan gives to each turn of its scan inputs, and how many turns there are."""
    names = node.inputs[count:]
    axes = node.attrs.get("scan_input_axes") or [0] * len(names)
    length: Dim | None = None
    elements: Kinds = []
    for name, axis in zip(names, axes, strict=True):
        kind = values[name].tensor
        if kind is None or kind.shape is None:
            elements.append(kind)
            continue
        if not -len(kind.shape) <= axis < len(kind.shape):
            raise ShapeError(f"{label(node)}: there is no axis {axis} in {kind}")
        shape = list(kind.shape)
        size = shape.pop(axis)
        if isinstance(length, int) and isinstance(size, int) and length != size:
            raise ShapeError(f"{label(node)}: scan inputs have {length} and {size} elements")
        length = size if length is None or isinstance(size, int) else length
        elements.append(TensorType(kind.dtype, tuple(shape)))
    return elements, length


def _sequence_map(state: Inference, node: Node, values: Mapping[str, Value]) -> tuple[Node, Kinds]:
    kinds: Kinds = []
    for index, name in enumerate(node.inputs):
        kind = values[name].type
        if isinstance(kind, SequenceType):
            kind = state.fresh_type(kind.element, f"{node.key}_{index}")
        kinds.append(kind)
    done, results = _run(state, node, node.attrs["body"], kinds, values)
    outputs: Kinds = [None if k is None else SequenceType(k) for k in results]
    return node.replace(attrs={**node.attrs, "body": done}), outputs


_RULES: dict[str, Rule] = {"If": _if, "Loop": _loop, "Scan": _scan, "SequenceMap": _sequence_map}
