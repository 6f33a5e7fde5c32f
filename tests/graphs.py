"""Small typed graphs for the stages that need no model file and no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine import dtypes
from engine.dims import Dim, symbol
from engine.ir import Array, Graph, Node, TensorType, Value
from engine.ops import InferView, definition

N = symbol("n")
"""A symbolic size."""


class GraphBuilder:
    """Adds nodes one by one; types follow from the operators' own rules.

    Attributes:
        nodes, values: what was added so far.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {}
        self.inputs: list[str] = []

    def input(self, name: str, *shape: Dim, dtype: str = "float32") -> str:
        """Adds a graph input."""
        self.values[name] = Value(name, TensorType(dtypes.from_name(dtype), shape))
        self.inputs.append(name)
        return name

    def constant(self, name: str, array: Array) -> str:
        """Adds a constant."""
        array = np.asarray(array)
        kind = TensorType(dtypes.from_numpy(array.dtype), array.shape)
        self.values[name] = Value(name, kind, constant=array)
        return name

    def node(self, op_type: str, *inputs: str, out: str, since: int = 28, **attrs: object) -> str:
        """Adds a node with one output, whose type its operator infers."""
        node = Node(op_type, inputs, (out,), attrs, "", since, name=out, origin=(out,))
        self.nodes.append(node)
        op = definition(node)
        if op is None or op.infer is None:
            raise ValueError(f"{op_type} has no shape rule")
        view = InferView(self.graph([]), node, lambda hint: symbol(f"fresh_{hint}"))
        (self.values[out],) = (Value(out, t) for t in op.infer(view))
        return out

    def typed(self, op_type: str, *inputs: str, out: str, type_: TensorType) -> str:
        """Adds a node of any operator with an output of a given type."""
        self.nodes.append(Node(op_type, inputs, (out,), {}, "", 1, name=out, origin=(out,)))
        self.values[out] = Value(out, type_)
        return out

    def graph(self, outputs: Sequence[str]) -> Graph:
        """The graph so far."""
        return Graph(tuple(self.nodes), dict(self.values), tuple(self.inputs), tuple(outputs))


def evaluate(expected: Mapping[str, Array], got: Mapping[str, Array], tol: float = 1e-5) -> None:
    """Asserts equal shapes and values within `tol` of the largest magnitude."""
    for name, want in expected.items():
        assert got[name].shape == want.shape, name
        scale = float(np.abs(want).max()) if want.size else 0.0
        np.testing.assert_allclose(got[name], want, rtol=0, atol=tol * max(scale, 1e-30))
