"""Parts: values that lie within the buffers of others, so that no kernel joins or cuts them.

The operands of a Concat are stored by their kernels where they belong in its output, and what a
Split, a Slice or a Gather of one index takes is loaded from where it lies (`OpDef.in_place`). Both
may be nested: every value is at one `Place` in the outermost *whole*, whose buffer it shares. What
can't be a part is copied as ever, and said why.

A part is found by sums and, if it is not in one piece, by a division for each element. That is
cheaper than a copy for whoever touches each element about once, and not for kernels that load
elements many times; these keep other values from being parts in several pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from engine.dims import Dim, evaluate, symbols_of
from engine.errors import ShapeError
from engine.fusion_rules import bordered, is_elementwise, rule_for
from engine.indexing import Place
from engine.ir import REDUCTIONS, Graph, Node, TensorType, label
from engine.layout import storage_of
from engine.ops import InPlace, NodeView, definition, in_place, kernel_inputs
from engine.records import dataclass
from engine.target import Target

RULE = "in-place"

_TOUCH_ONCE = frozenset(
    {
        *("Concat", "DepthToSpace", "Expand", "Gather", "Pad", "Resize", "Slice", "SpaceToDepth"),
        *("Split", "Tile", "Transpose"),
        *REDUCTIONS,
    }
)
"""Operators besides elementwise ones that load an element about once, or as often as they store
one."""


@dataclass(frozen=True)
class Part:
    """A value in the buffer of another one.

    Attributes:
        whole: the value whose buffer it is, part of none itself.
        place: of its elements.
        size: how many there are.
        by: keys of the nodes that need no kernel for this.
    """

    whole: str
    place: Place
    size: Dim
    by: tuple[str, ...]


@dataclass(frozen=True)
class Parts:
    """All parts of a graph.

    Attributes:
        of: value to what it is part of.
        copied: key of each node in place to the operands, or outputs, that are still copied.
        applied, near_misses: what is in place, and what nearly is and why not.
    """

    of: Mapping[str, Part]
    copied: Mapping[str, tuple[int, ...]]
    applied: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()

    def whole(self, name: str) -> str:
        """The value whose buffer `name` lies in."""
        return self.of[name].whole if name in self.of else name

    def copied_values(self, node: Node) -> tuple[str, ...]:
        """The operands, or outputs, of a node in place that are copied."""
        form = in_place(node)
        names = node.inputs if form is not None and form.joins else node.outputs
        return tuple(names[k] for k in self.copied.get(node.key, ()))


NO_PARTS = Parts({}, {})


def find_parts(
    graph: Graph,
    on_gpu: Callable[[Node], bool],
    runs: Callable[[Node], bool],
    target: Target,
    *,
    roots: Mapping[str, str],
    symbols: Collection[str],
    binding: Mapping[str, int],
    apart: Collection[str] = (),
) -> Parts:
    """What may be a part of what.

    Args:
        graph: the placed graph.
        on_gpu: whether a node becomes (part of) a kernel; not so for views.
        runs: whether a node runs at all, on either device.
        target: whether it stores single float16 decides if these can be parts.
        roots: views to the values whose buffers they share.
        symbols: names bound from the inputs' shapes.
        binding: the sizes by which it is decided whether a part is in one piece.
        apart: values whose buffers are laid out otherwise.
    """
    finder = _Finder(graph, on_gpu, runs, target, roots, set(symbols), binding, set(apart))
    for node in graph.nodes:
        form = in_place(node)
        if form is not None and on_gpu(node):
            finder.add(node, form)
    return finder.result()


@dataclass(frozen=True)
class _Link:
    """What a value is directly a part of, and the node by which."""

    whole: str
    place: Place
    by: str


class _Finder:
    def __init__(
        self,
        graph: Graph,
        on_gpu: Callable[[Node], bool],
        runs: Callable[[Node], bool],
        target: Target,
        roots: Mapping[str, str],
        symbols: set[str],
        binding: Mapping[str, int],
        apart: set[str],
    ) -> None:
        self.graph = graph
        self.on_gpu = on_gpu
        self.native = frozenset({"f16"} if "shader-f16" in target.features else ())
        self.roots = roots
        self.symbols = symbols
        self.binding = binding
        self.apart = apart
        self.links: dict[str, _Link] = {}
        self.inner: dict[str, list[str]] = {}
        self.copied: dict[str, tuple[int, ...]] = {}
        self.applied: list[str] = []
        self.near_misses: list[str] = []
        self.readers: dict[str, list[Node]] = {}
        self.on_host = {self.root(n) for n in graph.outputs}
        for node in filter(runs, graph.nodes):
            if on_gpu(node):
                for name in kernel_inputs(node):
                    self.readers.setdefault(self.root(name), []).append(node)
            elif not (node.outputs and node.outputs[0] in roots):
                self.on_host.update(map(self.root, node.reads))

    def root(self, name: str) -> str:
        return self.roots.get(name, name)

    def add(self, node: Node, form: InPlace) -> None:
        """Makes parts of the operands of a node, or of its outputs, as far as that is possible."""
        try:
            places = form.parts(NodeView(self.graph, node))
        except ShapeError:
            return
        names = node.inputs if form.joins else node.outputs
        whole = self.root(node.outputs[0] if form.joins else node.inputs[0])
        wanted = [k for k, n in enumerate(names) if n and (form.joins or self._is_read(n))]
        wanted = [k for k in wanted if self._size(names[k]) != 0]
        before = dict(self.links)
        left, reasons = [], []
        for k in wanted:
            name = self.root(names[k])
            reason = self._obstacle(node, form, name, whole, places.get(k))
            if reason:
                left.append(k)
                reasons.append(f"{label(node)} copies {names[k]!r}: {reason}")
            else:
                self.links[name] = _Link(whole, places[k], node.key)
                self.inner.setdefault(whole, []).append(name)
        self.near_misses += reasons
        if len(left) == len(wanted) or (left and form.joins and self._is_joined(node)):
            for name in self.links.keys() - before.keys():
                self.inner[whole].remove(name)
            self.links = before
            return
        self.copied[node.key] = tuple(left)
        done = "written where they belong" if form.joins else "read where they lie"
        count = f"{len(wanted) - len(left)} of {len(wanted)} parts are {done}"
        self.applied.append(f"{RULE}: {label(node)}, {count}")

    def _is_read(self, name: str) -> bool:
        return self.graph.is_output(name) or bool(self.graph.consumers.get(name))

    def _size(self, name: str) -> Dim | None:
        tensor = self.graph.tensor(name)
        return None if tensor is None else tensor.size

    def _is_joined(self, node: Node) -> bool:
        """Whether the copying kernel of a node would compute more, if it copied everything."""
        readers = self.graph.consumers.get(node.outputs[0], ())
        return any(
            rule_for(self.graph, node, reader) is not None or reader.op_type == "Transpose"
            for reader in readers
        )

    def _obstacle(
        self, node: Node, form: InPlace, name: str, whole: str, place: Place | None
    ) -> str:
        """Why `name` can't be a part of `whole`, or ""."""
        if place is None:
            return "its elements are not at regular distances"
        if name in self.links:
            return "it is part of something else"
        if name in self.on_host:
            return "it leaves the device by itself"
        reason = self._unfit(name) or self._unfit(whole)
        if reason:
            return reason
        if form.joins:
            producer = self.graph.producer.get(name)
            if producer is None or not self.on_gpu(producer):
                return "no kernel writes it"
            if [self.root(n) for n in node.inputs].count(name) > 1:
                return "it is joined twice"
        elif not self._is_in_buffer(whole):
            return "its source is a constant"
        return self._misplaced(name, whole, place, node)

    def _is_in_buffer(self, name: str) -> bool:
        value = self.graph.values[name]
        return value.constant is None and value.dims is None

    def _unfit(self, name: str) -> str:
        tensor = self.graph.tensor(name)
        if tensor is None or tensor.shape is None or name in self.apart:
            return "it lies in memory otherwise"
        if not tensor.dtype.wgsl or self._is_packed(tensor):
            return "several of its elements share a word"
        if any(not symbols_of(d) <= self.symbols for d in tensor.shape):
            return "data decide its size"
        return ""

    def _is_packed(self, tensor: TensorType) -> bool:
        return storage_of(tensor.dtype).packing > 1 and tensor.dtype.narrow not in self.native

    def _misplaced(self, name: str, whole: str, place: Place, node: Node) -> str:
        """Why the place is none for `name` or for what is part of it already, or ""."""
        links = {**self.links, name: _Link(whole, place, node.key)}
        for member in self._within(name):
            _, found = _outermost(links, member)
            if found is None:
                return "parts of it would not be at regular distances"
            if self._in_pieces(member, found) and not self._touched_once(member):
                return "a kernel that loads its elements many times would look for each"
        return ""

    def _within(self, name: str) -> Iterator[str]:
        """The value, and all that are parts of it."""
        yield name
        for inner in self.inner.get(name, ()):
            yield from self._within(inner)

    def _in_pieces(self, name: str, place: Place) -> bool:
        size = self._size(name)
        dims: list[Dim] = [row for row, _ in place.runs]
        if not dims or size is None:
            return False
        if any(not symbols_of(d) <= self.binding.keys() for d in (size, *dims)):
            return True
        return any(evaluate(d, self.binding) < evaluate(size, self.binding) for d in dims)

    def _touched_once(self, name: str) -> bool:
        return all(
            (r.op_type in _TOUCH_ONCE and not self._is_border(r))
            or (is_elementwise(r) and not self._may_be_in_front(r))
            for r in self.readers.get(name, ())
        )

    def _is_border(self, node: Node) -> bool:
        """Whether kernels behind a Pad may load what it reads, instead of it."""
        readers = self.graph.consumers.get(node.outputs[0], ())
        return node.op_type == "Pad" and any(bordered(self.graph, node, r) for r in readers)

    def _may_be_in_front(self, node: Node) -> bool:
        """Whether an elementwise node may be computed where another kernel loads its result."""
        readers = self.readers.get(self.root(node.outputs[0]), ())
        if len(readers) != 1:
            return False
        op = definition(readers[0])
        if readers[0].op_type in _TOUCH_ONCE:
            return self._is_border(readers[0])
        in_chain = is_elementwise(readers[0]) and self._may_be_in_front(readers[0])
        return in_chain or (op is not None and bool(op.loads))

    def result(self) -> Parts:
        found = {}
        for name in self.links:
            by: list[str] = []
            whole, place = _outermost(self.links, name, by)
            size = self._size(name)
            if place is not None and size is not None:
                found[name] = Part(whole, place, size, tuple(by))
        return Parts(found, self.copied, tuple(self.applied), tuple(self.near_misses))


def _outermost(
    links: Mapping[str, _Link], name: str, by: list[str] | None = None
) -> tuple[str, Place | None]:
    """The whole that `name` is part of in the end, and where; collects the nodes on the way."""
    chain: list[_Link] = []
    while name in links:
        chain.append(links[name])
        name = links[name].whole
    place: Place | None = Place()
    for link in reversed(chain):
        place = None if place is None else link.place.within(place)
    if by is not None:
        by += [link.by for link in chain]
    return name, place
