"""What generated chains read and store: buffers through index maps, and words of Params."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field

from engine import dims
from engine.dims import Dim, product
from engine.errors import PlanError
from engine.groups import Turned
from engine.indexing import (
    IndexMap,
    axes_of_plane,
    broadcast_strides,
    index_map,
    is_by_plane,
    row_major,
)
from engine.ir import Graph, Shape
from engine.layout import Storage
from engine.ops import NodeView, Walk, is_scalar_constant
from engine.records import dataclass


@dataclass(frozen=True)
class Read:
    """An operand that comes from outside: a buffer through an index map, or a word of Params.

    `plane` maps to where it is, if that is one place for a whole plane, from what `number` names:
    "p", the number of the plane, or "c", that of its channel.
    """

    variable: str
    element: str
    tensor: str = ""
    walk: Walk = ((), ())
    mapping: IndexMap | None = None
    plane: IndexMap | None = None
    number: str = "p"

    def load(self, wide: bool, in_plane: bool = False, quad: bool = False) -> str:
        """Expression of the operand at index i, or at the four from i on; `in_plane`: of plane p,
        channel c of an image, which tells where it is if it is one for the whole plane; `quad`: i
        is 4 * q."""
        if in_plane and self.plane is not None:
            one = f"load_{self.tensor}({_at(self.plane, self.number)})"
            return f"vec4<{self.element}>({one})" if wide else one
        if self.mapping is None:
            word = f"params.{self.variable}"
            return f"vec4<{self.element}>({word})" if wide else word
        if not wide:
            return f"load_{self.tensor}({self._index('i')})"
        if self.mapping.identity:
            return f"quad_{self.tensor}(q)" if quad else f"load4_{self.tensor}(i)"
        inner = 0 if self.mapping.constant else _inner_stride(*self.walk)
        if inner == 0:
            return f"vec4<{self.element}>(load_{self.tensor}({self._index('i')}))"
        if inner == 1:
            return f"load4_{self.tensor}({self._index('i')})"
        places = ("i", "i + 1u", "i + 2u", "i + 3u")
        lanes = ", ".join(f"load_{self.tensor}({self._index(place)})" for place in places)
        return f"vec4<{self.element}>({lanes})"

    def _index(self, i: str) -> str:
        assert self.mapping is not None
        return _at(self.mapping, i)


def _at(mapping: IndexMap, i: str) -> str:
    return i if mapping.identity else f"{mapping.name}({i})"


@dataclass(frozen=True)
class Turn:
    """How the elements of `source` are stored as a Transpose of it would lie.

    Attributes:
        mapping: from the index of an element of `source` to its place.
        size: the word of Params that says how many elements there are.
        step: that which says how far apart the neighbours of a group of four are put; "" where
            that is not the same for all of them.
        whole: whether groups of four neighbours stay together.
    """

    source: str
    mapping: IndexMap
    size: str
    step: str
    whole: bool

    def stores(self, name: str, variable: str, wide: bool) -> list[str]:
        """Statements that store `variable`, the element at index i or the four from i on.

        Neighbours past the last element would land anywhere, so they are left out.
        """
        here = _at(self.mapping, "i")
        if not wide:
            return [f"store_{name}({here}, {variable});"]
        if self.whole:
            return [f"store4_{name}({here}, {variable});"]
        if self.step:
            lines = [f"let {name}_at = {here};", f"store_{name}({name}_at, {variable}.x);"]
            for step, lane in enumerate("yzw", 1):
                place = f"{name}_at + {step}u * params.{self.step}"
                lines.append(f"store_{name}({place}, {variable}.{lane});")
            return lines
        lines = [f"store_{name}({here}, {variable}.x);"]
        for step, lane in enumerate("yzw", 1):
            store = f"store_{name}({_at(self.mapping, f'i + {step}u')}, {variable}.{lane});"
            lines.append(f"if (i + {step}u < params.{self.size}) {{ {store} }}")
        return lines


def _inner_stride(sizes: Shape, strides: Shape) -> int | None:
    """Stride of the last axis if groups of four never straddle it, else None."""
    if sizes and dims.mod(sizes[-1], 4) == 0 and strides[-1] in (0, 1):
        # every stride that is used with a load4 must keep the index a multiple of four
        whole = all(s == 0 or dims.mod(s, 4) == 0 for s in strides[:-1])
        if strides[-1] == 0 or whole:
            return 0 if strides[-1] == 0 else 1
    inner: Dim = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if stride != 0:
            break
        inner = inner * size
    return 0 if dims.mod(inner, 4) == 0 and inner != 1 else None


class TurnText(enum.Enum):
    """How the text is written that stores a Transpose."""

    AS_FITS = "as few operations as there can be"
    ANY_ORDER = "the same for all orders of as many axes; neighbours are as far apart in fours"
    BY_ELEMENT = "the place of each element is computed, unless fours stay together"


@dataclass(frozen=True)
class Order:
    """Where a Transpose puts elements.

    Attributes:
        mapping: from the index of one to its place. count: how many there are.
        step: how far apart the neighbours of a group of four are put, None where that differs.
        whole: whether they stay together.
    """

    mapping: IndexMap
    count: Dim
    step: Dim | None
    whole: bool


def order_of(graph: Graph, turned: Turned, name: str, text: TurnText = TurnText.AS_FITS) -> Order:
    """The places of a Transpose."""
    tensor = graph.tensor(turned.node.inputs[0])
    if tensor is None or tensor.shape is None:
        raise PlanError(f"the shape of {turned.node.inputs[0]!r} is unknown")
    shape = tensor.shape
    order = NodeView(graph, turned.node).attr("perm") or range(len(shape))[::-1]
    strides: list[Dim] = [0] * len(shape)
    for axis, stride in zip(order, row_major([shape[a] for a in order]), strict=True):
        strides[axis] = stride
    any_order = text is TurnText.ANY_ORDER
    mapping = index_map(name, shape, strides, any_strides=any_order)
    whole = mapping.identity or _inner_stride(shape, tuple(strides)) == 1
    even = bool(shape) and dims.mod(shape[-1], 4) == 0
    step = strides[-1] if even and text is not TurnText.BY_ELEMENT else None
    return Order(mapping, product(shape), step, whole and not any_order)


@dataclass
class Declarations:
    """What a chain reads and stores, collected while its nodes are walked.

    Attributes:
        graph, storages: what is generated for.
        shape: of the chain's elements.
        prefix: of the names of what is declared.
        planes: whether operands may be read by "plane", or by "channel" too; "" for neither.
        reads: operands by value and walk. mappings: index maps by walk.
        tensors: value to the name of its buffer.
        params: words of Params to their values. fields: the same words to their types, in order.
        includes: WGSL files of functions that expressions call.
    """

    graph: Graph
    storages: Mapping[str, Storage]
    shape: Shape
    prefix: str = ""
    planes: str = ""
    reads: dict[tuple[str, Walk | None], Read] = field(default_factory=dict)
    mappings: dict[Walk, IndexMap] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    params: dict[str, Dim | float] = field(default_factory=dict)
    fields: list[tuple[str, str]] = field(default_factory=list)
    includes: list[str] = field(default_factory=list)

    def read(self, value: str, walk: Walk | None) -> Read:
        """Declares an operand from outside; `walk` says where it lies if it is not broadcast."""
        if (value, walk) not in self.reads:
            make = self._word if is_scalar_constant(self.graph, value) else self._buffer
            self.reads[value, walk] = make(value, walk)
        return self.reads[value, walk]

    def turn(self, turned: Turned, name: str, text: TurnText) -> Turn:
        """Declares the places of a value that is stored as a Transpose of it; see `order_of`."""
        order = order_of(self.graph, turned, f"to_{name}", text)
        size, step = f"{name}_size", f"{name}_step"
        words = [*order.mapping.params]
        if order.step is None:
            words.append((size, order.count))
        elif not order.whole:
            words.append((step, order.step))
        for word, dim in words:
            self.params[word] = dim
            self.fields.append((word, "u32"))
        step = "" if order.step is None else step
        return Turn(turned.source, order.mapping, size, step, order.whole)

    def _word(self, value: str, walk: Walk | None) -> Read:
        array, tensor = self.graph.constant(value), self.graph.tensor(value)
        assert array is not None and tensor is not None
        kind, word = tensor.dtype.wgsl, f"{self.prefix}c{len(self.reads)}"
        number = array.reshape(-1)[0]
        self.params[word] = float(number) if kind == "f32" else int(number)
        self.fields.append((word, kind))
        return Read(word, kind)

    def _buffer(self, value: str, walk: Walk | None) -> Read:
        tensor = self.graph.tensor(value)
        if tensor is None or tensor.shape is None:
            raise PlanError(f"fused input {value!r} has no known shape")
        name = self.tensors.setdefault(value, f"{self.prefix}in{len(self.tensors)}")
        walk = walk or (self.shape, broadcast_strides(tensor.shape, self.shape))
        variable = f"x{len(self.reads)}_{name}"
        mapping = self._map(f"at_{variable}", walk)
        plane, number = None, "p"
        if self.planes and walk[0][:2] == self.shape[:2] and is_by_plane(walk[1]):
            axes = axes_of_plane(*walk, self.planes == "channel")
            plane = self._map(f"plane_{variable}", (walk[0][axes], walk[1][axes]))
            number = "p" if axes.start == 0 else "c"
        return Read(variable, self.storages[value].element, name, walk, mapping, plane, number)

    def _map(self, name: str, walk: Walk) -> IndexMap:
        """The index map of a walk, declared once."""
        if walk not in self.mappings:
            mapping = self.mappings[walk] = index_map(name, *walk)
            for word, dim in mapping.params:
                self.params[word] = dim
                self.fields.append((word, "u32"))
        return self.mappings[walk]
