"""Graphs built by hand, for the stages that need no model file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine import dtypes
from engine.dims import Dim
from engine.ir import Graph, Node, TensorType, Value


class Builder:
    """Collects values and nodes; `graph` checks what came together."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.nodes: list[Node] = []
        self.inputs: list[str] = []

    def input(self, name: str, shape: Sequence[Dim] | None, dtype: str = "float32") -> str:
        self._value(name, shape, dtype)
        self.inputs.append(name)
        return name

    def constant(self, name: str, array: Any, dtype: str = "int64") -> str:
        kind = dtypes.from_name(dtype)
        data = np.asarray(array, dtype=kind.numpy)
        self.values[name] = Value(name, TensorType(kind, data.shape), constant=data)
        return name

    def node(
        self,
        op_type: str,
        inputs: Sequence[str],
        output: str,
        shape: Sequence[Dim] | None = (4,),
        dtype: str = "float32",
        *,
        dims: Any = None,
        domain: str = "",
        since: int = 23,
        **attrs: Any,
    ) -> str:
        self.multi(op_type, inputs, {output: (shape, dtype)}, domain=domain, since=since, **attrs)
        if dims is not None:
            self.values[output] = self.values[output].replace(dims=dims)
        return output

    def multi(
        self,
        op_type: str,
        inputs: Sequence[str],
        outputs: Mapping[str, tuple[Sequence[Dim] | None, str]],
        *,
        domain: str = "",
        since: int = 23,
        **attrs: Any,
    ) -> Node:
        for name, (shape, dtype) in outputs.items():
            if name:
                self._value(name, shape, dtype)
        node = Node(
            op_type,
            tuple(inputs),
            tuple(outputs),
            attrs=attrs,
            domain=domain,
            since_version=since,
            name=f"node_{len(self.nodes)}",
        )
        self.nodes.append(node)
        return node

    def graph(self, *outputs: str) -> Graph:
        graph = Graph(tuple(self.nodes), self.values, tuple(self.inputs), outputs)
        graph.check()
        return graph

    def _value(self, name: str, shape: Sequence[Dim] | None, dtype: str) -> None:
        found = TensorType(dtypes.from_name(dtype), None if shape is None else tuple(shape))
        self.values[name] = Value(name, found)
