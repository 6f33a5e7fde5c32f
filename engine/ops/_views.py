"""Views: a node as the rules of its operator see it, with what is known of its operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from engine import dims
from engine.dims import Dim, Guard, evaluate, symbols_of
from engine.dtypes import DType
from engine.errors import ShapeError
from engine.ir import Array, Graph, Node, Shape, TensorType
from engine.target import Target

MAX_DIMS = 4096
"""Constants with more elements hold data, not sizes."""


class NodeView:
    """A node with what is known of its operands. Rules read nodes through this class only."""

    def __init__(self, graph: Graph, node: Node, target: Target | None = None) -> None:
        self.graph = graph
        self.node = node
        self.target = target or Target.baseline()

    def has(self, index: int) -> bool:
        """Whether input `index` is given."""
        return bool(self.node.input(index))

    def wants(self, index: int) -> bool:
        """Whether output `index` is used."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def type(self, index: int) -> TensorType:
        """Type of input `index`. Raises: ShapeError if it is not a tensor of known type."""
        return self._tensor(self.node.input(index), f"input {index}")

    def out(self, index: int = 0) -> TensorType:
        """Type of output `index`. Raises: ShapeError if it is not a tensor of known type."""
        return self._tensor(self.node.outputs[index], f"output {index}")

    def _tensor(self, name: str, what: str) -> TensorType:
        tensor = self.graph.tensor(name)
        if tensor is None:
            raise ShapeError(f"{self.describe()}: {what} ({name!r}) is not a tensor of known type")
        return tensor

    def shape(self, index: int) -> Shape:
        """Shape of input `index`. Raises: ShapeError if its rank is unknown."""
        shape = self.type(index).shape
        if shape is None:
            raise ShapeError(f"{self.describe()}: the rank of input {index} is unknown")
        return shape

    def out_shape(self, index: int = 0) -> Shape:
        """Shape of output `index`. Raises: ShapeError if its rank is unknown."""
        shape = self.out(index).shape
        if shape is None:
            raise ShapeError(f"{self.describe()}: the rank of output {index} is unknown")
        return shape

    def dtype(self, index: int) -> DType:
        """Element type of input `index`."""
        return self.type(index).dtype

    def const(self, index: int) -> Array | None:
        """Array of input `index` if it is a constant, else None (also if omitted)."""
        return self.graph.constant(self.node.input(index))

    def dims(self, index: int) -> Array | None:
        """Content of small integer input `index` as an object array of `Dim`; None if unknown."""
        name = self.node.input(index)
        if name not in self.graph.values:
            return None
        value = self.graph.values[name]
        if value.dims is not None:
            return value.dims
        array = value.constant
        if array is not None and array.dtype.kind in "iub" and array.size <= MAX_DIMS:
            return array.astype(object)
        return None

    def dim_list(self, index: int) -> list[Dim] | None:
        """Content of a 1-D (or 0-D) integer input as a flat list of dims; None if unknown."""
        found = self.dims(index)
        return None if found is None else list(found.reshape(-1))

    def ints(self, index: int) -> list[int] | None:
        """Content of an integer input if every element is a known integer; None otherwise."""
        found = self.dim_list(index)
        if found is None or not dims.is_static(found):
            return None
        return [int(d) for d in found]  # type: ignore[arg-type]

    def attr(self, name: str, default: Any = None) -> Any:
        """Attribute `name`, or `default` where it is not given."""
        return self.node.attrs.get(name, default)

    def axis(self, rank: int, default: int = 0, name: str = "axis") -> int:
        """Attribute `name` as an axis in [0, rank). Raises: ShapeError if it is outside."""
        return self.normal_axis(int(self.attr(name, default)), rank)

    def normal_axis(self, axis: int, rank: int) -> int:
        """`axis` counted from the front. Raises: ShapeError if it is outside [-rank, rank)."""
        if not -rank <= axis < max(rank, 1):
            raise ShapeError(f"{self.describe()}: axis {axis} is outside [-{rank}, {rank})")
        return axis % rank if rank else 0

    def normal_axes(self, axes: Iterable[int], rank: int) -> list[int]:
        """Axes counted from the front. Raises: ShapeError if one is outside or given twice."""
        given = list(axes)
        found = [self.normal_axis(int(a), rank) for a in given]
        if len(set(found)) < len(found):
            raise ShapeError(f"{self.describe()}: axes {given} name one axis twice")
        return found

    def describe(self) -> str:
        """The node for messages: operator, name, and what its inputs look like."""
        types = ", ".join(str(self.graph.values[n].type) if n else "-" for n in self.node.inputs)
        return f"{self.node.op_type} {self.node.name or self.node.key!r} ({types})"

    def named(self, error: ShapeError) -> ShapeError:
        """The error with the node in front, if it does not say which one it is of."""
        if str(error).startswith(f"{self.node.op_type} "):
            return error
        return ShapeError(f"{self.describe()}: {error}")


class InferView(NodeView):
    """What `infer` rules get: also makes fresh symbols for sizes that data decide.

    Attributes:
        guards: conditions on sizes under which what a rule says is right; rules add them.
        same: what two sizes are taken for that have to be equal unless one is 1: one of the two if
            they are equal in the call that is planned for, None if that is not so or not known.
    """

    def __init__(
        self,
        graph: Graph,
        node: Node,
        fresh: Callable[[str], Dim],
        same: Callable[[Dim, Dim], Dim | None] = lambda a, b: None,
    ) -> None:
        super().__init__(graph, node)
        self.fresh = fresh
        self.same = same
        self.guards: list[Guard] = []

    def require(self, guards: Iterable[Guard]) -> None:
        """Adds conditions without which the node means nothing.

        Raises: ShapeError for one that can't hold.
        """
        for guard in guards:
            if guard.known is False:
                node = self.node
                where = f"{node.op_type} {node.name or node.key!r}"
                raise ShapeError(f"{where}: it can't be that {guard}")
            self.guards.append(guard)


class Lowering(NodeView):
    """What `lower` rules get: also makes scratch buffers and derived constants."""

    def __init__(
        self,
        graph: Graph,
        node: Node,
        target: Target,
        scratch: Callable[[TensorType], str],
        derived: Callable[[str, str, Callable[[Array], Array], DType | None], str],
        style: str = "",
        binding: Mapping[str, int] | None = None,
        front: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(graph, node, target)
        self.style = style
        self._binding = binding or {}
        self._front = front or {}
        self._scratch = scratch
        self._derived = derived

    def likely(self, dim: Dim) -> int | None:
        """A size in the call that the plan is made for, to choose by: other calls differ."""
        return evaluate(dim, self._binding) if symbols_of(dim) <= self._binding.keys() else None

    def front(self, index: int) -> int:
        """How many operators are computed for each element of an input that is loaded."""
        return self._front.get(self.node.inputs[index], 0)

    def scratch(self, dtype: DType, shape: Sequence[Dim]) -> str:
        """Name of a new buffer that lives for this node's stages only."""
        return self._scratch(TensorType(dtype, tuple(shape)))

    def derived(
        self,
        index: int,
        recipe: str,
        make: Callable[[Array], Array],
        dtype: DType | None = None,
    ) -> str:
        """Name of a constant computed from constant input `index`; equal recipes are shared.

        It has the type of the input, unless `dtype` says another.
        """
        return self._derived(self.node.inputs[index], recipe, make, dtype)
