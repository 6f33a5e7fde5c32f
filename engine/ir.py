"""The graph that every stage after the importer works on: types, values, nodes, graphs.

All of it is immutable. A stage that changes something builds a new `Graph` with `Graph.replace`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Union

import numpy as np

from engine.dims import Dim, is_static, product
from engine.dtypes import DType
from engine.errors import ModelError
from engine.records import dataclass

_COUNTED = re.compile(r"(?:p2o\.)?([A-Z][A-Za-z]*)[@._-]\d+")

Shape = tuple[Dim, ...]
Array = np.ndarray[Any, Any]
ValueType = Union["TensorType", "SequenceType", "OptionalType"]
Attribute = Any
"""int, float, str, bytes, list of these, np.ndarray (a tensor), `Graph`, or list of `Graph`."""


@dataclass(frozen=True)
class TensorType:
    """A tensor: element type and shape; `shape` is None where not even the rank is known."""

    dtype: DType
    shape: Shape | None = None

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape if every dim is an integer."""
        if self.shape is None or not is_static(self.shape):
            return None
        return self.shape  # type: ignore[return-value]

    @property
    def size(self) -> Dim | None:
        """Number of elements."""
        return None if self.shape is None else product(self.shape)

    def __str__(self) -> str:
        dims = "?" if self.shape is None else ", ".join(map(str, self.shape))
        return f"{self.dtype.name}[{dims}]"


@dataclass(frozen=True)
class SequenceType:
    """An ONNX sequence: on the host a Python list."""

    element: ValueType

    def __str__(self) -> str:
        return f"sequence({self.element})"


@dataclass(frozen=True)
class OptionalType:
    """An ONNX optional: on the host the element, or None."""

    element: ValueType

    def __str__(self) -> str:
        return f"optional({self.element})"


@dataclass(frozen=True, eq=False)
class Value:
    """One SSA value.

    Attributes:
        name: unique in its graph and the bodies below it.
        type: None where nothing is known yet.
        constant: the array, if it is known when compiling (weights may be memory-mapped).
        dims: the content as an object array of `Dim`, for small integer tensors that hold sizes.
    """

    name: str
    type: ValueType | None = None
    constant: Array | None = None
    dims: Array | None = None

    @property
    def tensor(self) -> TensorType | None:
        """The type if it is a tensor's."""
        return self.type if isinstance(self.type, TensorType) else None

    def replace(self, **changes: Any) -> Value:
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, eq=False)
class Node:
    """One operator application. What its fields say of it is worked out once.

    Attributes:
        inputs, outputs: value names; "" stands for an omitted optional one.
        attrs: attribute name to value; see `Attribute`.
        captures: names from the enclosing graph that the bodies in `attrs` read.
        origin: names of the model's own nodes that this one computes (one more after each merge).
    """

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attribute] = field(default_factory=dict)
    domain: str = ""
    since_version: int = 1
    name: str = ""
    captures: tuple[str, ...] = ()
    origin: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """Its first output's name: unique in the graph, and stable through passes."""
        return next(name for name in self.outputs if name)

    @property
    def title(self) -> str:
        """How lists call it: its name or, where a converter only counted operators ("Conv@3"), its
        output's, which says more; a count of another operator ("Div@0" for a HardSwish) never."""
        counted = _COUNTED.fullmatch(self.name)
        if self.name and counted is None:
            return self.name
        says_nothing = _COUNTED.fullmatch(self.key) or self.key.replace(".", "").isdigit()
        same = counted is not None and counted[1] == self.op_type
        return self.name if says_nothing and same else self.key

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Every value it needs, each once: inputs in order, then captures."""
        return tuple(dict.fromkeys(n for n in (*self.inputs, *self.captures) if n))

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """The outputs that exist."""
        return tuple(n for n in self.outputs if n)

    @cached_property
    def bodies(self) -> dict[str, Graph]:
        """The attributes that are graphs."""
        return {k: v for k, v in self.attrs.items() if isinstance(v, Graph)}

    def input(self, index: int) -> str:
        """Name of input `index`, "" if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def replace(self, **changes: Any) -> Node:
        return dataclasses.replace(self, **changes)

    def __str__(self) -> str:
        domain = self.domain + "." if self.domain else ""
        attrs = ", ".join(f"{k}={_brief(v)}" for k, v in self.attrs.items())
        call = f"{domain}{self.op_type}({', '.join(self.inputs)})"
        return f"{', '.join(self.outputs)} = {call}" + (f" {{{attrs}}}" if attrs else "")


def label(node: Node) -> str:
    """A node in messages: operator and name (or first output)."""
    return f"{node.op_type} {node.title!r}"


def _brief(value: Attribute) -> str:
    if isinstance(value, Graph):
        return f"<graph {value.name}>"
    if isinstance(value, np.ndarray):
        return f"<{value.dtype}{list(value.shape)}>"
    return repr(value)


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in topological order, and every value they touch.

    Attributes:
        inputs: names fed by the caller, in the model's order. Those that are in `values` with a
            constant are optional (initializers listed as inputs).
        captures: names that a body reads from the enclosing graphs; empty in a top-level graph.
        opset: domain ("" is ai.onnx) to version.
        told: constants that a call has told, or that follow from these; the others are weights.
    """

    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captures: tuple[str, ...] = ()
    opset: Mapping[str, int] = field(default_factory=dict)
    name: str = ""
    told: frozenset[str] = frozenset()

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """Value name to the node that writes it."""
        return MappingProxyType({name: n for n in self.nodes for name in n.writes})

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """Value name to the nodes that read it (captures count), each once, in order."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.reads:
                found.setdefault(name, []).append(node)
        return MappingProxyType({k: tuple(v) for k, v in found.items()})

    def constant(self, name: str) -> Array | None:
        """The array of a constant value, else None ("" gives None)."""
        return self.values[name].constant if name in self.values else None

    def tensor(self, name: str) -> TensorType | None:
        """The type of a value if it is a tensor's and known."""
        return self.values[name].tensor if name in self.values else None

    def shape(self, name: str) -> Shape | None:
        """The shape of a value if it is a tensor's and its rank is known."""
        tensor = self.tensor(name)
        return None if tensor is None else tensor.shape

    def is_output(self, name: str) -> bool:
        return name in self.outputs

    def replace(self, **changes: Any) -> Graph:
        return dataclasses.replace(self, **changes)

    def rebuild(
        self,
        nodes: Iterable[Node],
        new_values: Iterable[Value] = (),
        outputs: Sequence[str] | None = None,
    ) -> Graph:
        """The graph with other nodes: sorts them, adds values, drops values nobody touches."""
        outputs = self.outputs if outputs is None else tuple(outputs)
        values = {**self.values, **{v.name: v for v in new_values}}
        ordered = sort_nodes(tuple(nodes), (*self.inputs, *self.captures, *_constants(values)))
        used = {*self.inputs, *self.captures, *outputs}
        for node in ordered:
            used.update(node.reads, node.writes)
        kept = {k: v for k, v in values.items() if k in used}
        for name in used - kept.keys():
            kept[name] = Value(name)
        return self.replace(nodes=ordered, values=kept, outputs=outputs)

    def walk(self) -> Iterator[tuple[Graph, Node]]:
        """Every node with its graph, bodies included, depth first."""
        for node in self.nodes:
            yield self, node
            for body in node.bodies.values():
                yield from body.walk()

    def check(self) -> None:
        """Raises: ModelError if a name is read before it is written, written twice or missing."""
        known = {*self.inputs, *self.captures, *_constants(self.values)}
        for node in self.nodes:
            for name in node.reads:
                if name not in known:
                    raise ModelError(
                        f"node {node.name or node.key!r} ({node.op_type}) reads {name!r}, which "
                        "no input, initializer or earlier node provides"
                    )
            for name in node.writes:
                if name in known:
                    raise ModelError(
                        f"node {node.name or node.key!r} ({node.op_type}) writes {name!r}, which "
                        "exists already: names must be unique (SSA)"
                    )
                known.add(name)
            for body in node.bodies.values():
                missing = set(body.captures) - set(node.captures)
                if missing:
                    raise ModelError(f"{node.op_type} {node.key!r} does not capture {missing}")
                body.check()
        for name in known | set(self.outputs):
            if name not in self.values:
                raise ModelError(f"value {name!r} is used but not described")
        for name in self.outputs:
            if name not in known:
                raise ModelError(f"output {name!r} is produced by no node")

    def to_text(self) -> str:
        """A readable listing, one node a line, with types."""
        lines = [f"graph {self.name}({', '.join(self.inputs)}) -> {', '.join(self.outputs)}"]
        for node in self.nodes:
            types = ", ".join(str(self.values[n].type or "?") for n in node.writes)
            lines.append(f"  {node}  : {types}")
        return "\n".join(lines)


def _constants(values: Mapping[str, Value]) -> Iterator[str]:
    return (name for name, v in values.items() if v.constant is not None)


REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
)
"""Operators that reduce along the axes in their second input."""
CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Operators of ONNX that the host drives through their bodies."""


def is_control_flow(node: Node) -> bool:
    """Whether the host drives a node through bodies of its own."""
    return node.domain == "" and node.op_type in CONTROL_FLOW


def sort_nodes(nodes: tuple[Node, ...], known: Iterable[str]) -> tuple[Node, ...]:
    """`nodes` in topological order, stable: the given order is kept where it is valid already.

    Raises: ModelError if they form a cycle.
    """
    ready = set(known)
    producer = {name: i for i, n in enumerate(nodes) for name in n.writes}
    if all(producer.get(name, -1) < i for i, n in enumerate(nodes) for name in n.reads):
        return nodes
    state = [0] * len(nodes)
    ordered: list[Node] = []
    for start in range(len(nodes)):
        stack = [start]
        while stack:
            index = stack[-1]
            if state[index] == 2:
                stack.pop()
                continue
            state[index] = 1
            wanted = [
                producer[name]
                for name in nodes[index].reads
                if name not in ready and name in producer and state[producer[name]] != 2
            ]
            if any(state[w] == 1 for w in wanted):
                raise ModelError(f"the graph has a cycle through {nodes[index].key!r}")
            if wanted:
                stack.extend(reversed(wanted))
                continue
            state[index] = 2
            stack.pop()
            ordered.append(nodes[index])
    return tuple(ordered)
