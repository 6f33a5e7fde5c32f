"""Rewriting node by node: an index of producers and consumers that is kept while nodes change.

`rewrite` runs a function on a graph and on every body inside it, innermost first, through an
`Editor`; bodies see what is known of the values they capture.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from engine import dims, dtypes
from engine.dims import Dim
from engine.dtypes import DType
from engine.ir import Array, Graph, Node, Shape, TensorType, Value, label
from engine.passes.base import PassResult
from engine.passes.symbols import dims_of, lone_symbol, rename_symbols


class Editor:
    """One graph while a pass changes it.

    Args:
        graph: what to start from.
        names: every value name of the whole model; names that are made up here are added.
        parent: the editor of the graph around a body.
    """

    def __init__(self, graph: Graph, names: set[str], parent: Editor | None = None) -> None:
        self.graph = graph
        self.applied: list[str] = []
        self._names = names
        self._parent = parent
        self._slots: list[Node | None] = list(graph.nodes)
        self._values = dict(graph.values)
        self._outputs = frozenset(graph.outputs)
        self._writer: dict[str, int] = {}
        self._readers: dict[str, dict[int, None]] = defaultdict(dict)
        self._near: list[tuple[int, str, str]] = []
        self._sizes: dict[str, Dim] = {}
        """Symbols of values that turned out to equal others, and what they are for these."""
        self._changed = False
        for index, node in enumerate(graph.nodes):
            self._enter(index, node)

    def nodes(self) -> Iterator[Node]:
        """The nodes in order; those that are removed meanwhile are left out."""
        for _, node in self.slots():
            yield node

    def slots(self) -> Iterator[tuple[int, Node]]:
        """The nodes as `nodes` gives them, each with its place, which stays through rewrites."""
        for index in range(len(self._slots)):
            node = self._slots[index]
            if node is not None:
                yield index, node

    def at(self, slot: int) -> Node | None:
        """The node at a place."""
        return self._slots[slot]

    def own_constants(self) -> Iterator[tuple[str, Array]]:
        """Name and array of each constant of this graph, read or not, that is no input too."""
        outside = {*self.graph.inputs, *self.graph.captures, *self._writer}
        for name, value in list(self._values.items()):
            if value.constant is not None and name not in outside:
                yield name, value.constant

    def producer(self, name: str) -> Node | None:
        """The node that writes a value, None for inputs, constants and captures."""
        return self._slots[self._writer[name]] if name in self._writer else None

    def consumers(self, name: str) -> tuple[Node, ...]:
        """The nodes that read a value, each once, in order."""
        found = (self._slots[i] for i in sorted(self._readers.get(name, ())))
        return tuple(node for node in found if node is not None)

    def only_consumer(self, name: str) -> Node | None:
        """The one node that needs a value; None if there are more, or the caller needs it too."""
        found = self.consumers(name)
        return found[0] if len(found) == 1 and not self.is_output(name) else None

    def is_output(self, name: str) -> bool:
        return name in self._outputs

    def is_used(self, name: str) -> bool:
        return bool(self._readers.get(name)) or self.is_output(name)

    def uses_beyond(self, name: str, nodes: Iterable[Node]) -> str:
        """Who needs a value besides `nodes`, in words; "" if nobody does."""
        if self.is_output(name):
            return "it is an output of the graph"
        inside = {id(node) for node in nodes}
        for node in self.consumers(name):
            if id(node) not in inside:
                return f"{label(node)} reads it too"
        return ""

    def value(self, name: str) -> Value | None:
        """What is known of a value; for a captured one, what the graph around knows."""
        if self._parent is not None and name in self.graph.captures:
            return self._parent.value(name)
        return self._values.get(name)

    def const(self, name: str) -> Array | None:
        """The array of a constant, None for "" and for what isn't one.

        An initializer that is an input too counts: the session makes a graph without its constant
        for calls that feed it.
        """
        if self._parent is not None and name in self.graph.captures:
            return self._parent.const(name)
        return self._values[name].constant if name in self._values else None

    def tensor(self, name: str) -> TensorType | None:
        value = self.value(name)
        return None if value is None else value.tensor

    def shape(self, name: str) -> Shape | None:
        tensor = self.tensor(name)
        return None if tensor is None else tensor.shape

    def dtype(self, name: str) -> DType | None:
        tensor = self.tensor(name)
        return None if tensor is None else tensor.dtype

    def constant(self, hint: str, array: Array) -> str:
        """Adds a constant and returns its name, which starts with `hint`."""
        name = self._fresh(hint)
        array.flags.writeable = False
        kind = TensorType(dtypes.from_numpy(array.dtype), array.shape)
        self._values[name] = Value(name, kind, array)
        return name

    def add_value(self, hint: str, kind: TensorType) -> str:
        """Adds a value that a new node is to write, and returns its name."""
        name = self._fresh(hint)
        self._values[name] = Value(name, kind)
        return name

    def _fresh(self, hint: str) -> str:
        name, number = hint, 1
        while name in self._names:
            number += 1
            name = f"{hint}.{number}"
        self._names.add(name)
        return name

    def near(self, node: Node, text: str) -> None:
        """Notes a near miss, which counts only if `node` is still there in the end."""
        self._near.append((self._writer[node.key], node.op_type, text))

    def swap(self, old: Node, new: Node, text: str) -> Node:
        """Puts `new` in the place of `old`; returns `new`."""
        self._set(self._writer[old.key], new)
        for name in old.reads:
            self.prune(name)
        self.note(text)
        return new

    def swap_pair(self, first: Node, second: Node, *new: Node, text: str) -> None:
        """Puts two new nodes in the places of two old ones; origins stay as they are given."""
        slots = (self._writer[first.key], self._writer[second.key])
        for slot in slots:
            self._set(slot, None)
        for slot, node in zip(slots, new, strict=True):
            self._set(slot, node)
        for name in (*first.reads, *second.reads):
            self.prune(name)
        self.note(text)

    def fuse(self, nodes: Iterable[Node], new: Node, text: str) -> Node:
        """Puts `new` where the node was that wrote `new.key`, and removes what then is dead.

        `new` gets the origins of all `nodes`, in the order of the graph. Returns it.
        """
        indices = sorted({self._writer[node.key] for node in nodes})
        merged = [self._slots[i] for i in indices]
        origin = tuple(dict.fromkeys(name for n in merged if n is not None for name in n.origin))
        new = new.replace(origin=origin)
        last = self._writer[new.key]
        reads = [name for node in merged if node is not None for name in node.reads]
        self._set(last, new)
        for name in reads:
            self.prune(name)
        self.note(text)
        return new

    def remove(self, node: Node, text: str) -> None:
        """Takes out a node that nobody needs."""
        self._set(self._writer[node.key], None)
        self.note(text)

    def prune(self, name: str) -> None:
        """Removes the producer of `name` if none of its outputs is needed, and so on upwards."""
        pending = [name]
        while pending:
            node = self.producer(pending.pop())
            if node is not None and not any(map(self.is_used, node.writes)):
                self._set(self._writer[node.key], None)
                pending.extend(node.reads)

    def forward(self, node: Node, source: str, text: str) -> bool:
        """Removes a node whose output 0 equals `source`, and lets `source` take its place.

        Returns False, and changes nothing, if both names must stay: outputs of the graph keep
        their names, and a graph's input or constant can't become its output.
        """
        name = node.outputs[0]
        if not self.can_rename(name, source):
            return False
        self._set(self._writer[name], None)
        self.rename(name, source)
        self.note(text)
        for read in node.reads:
            self.prune(read)
        return True

    def merge(self, first: Node, second: Node, text: str) -> bool:
        """Removes `second`, whose outputs equal those of `first`; False if all names must stay."""
        pairs = list(zip(first.outputs, second.outputs, strict=True))
        if not all(self.can_rename(mine, its) for its, mine in pairs if mine and its):
            return False
        slot = self._writer[first.key]
        self._set(self._writer[second.key], None)
        outputs = tuple(its or mine for its, mine in pairs)
        origin = tuple(dict.fromkeys(first.origin + second.origin))
        self._set(slot, first.replace(outputs=outputs, origin=origin))
        for its, mine in pairs:
            if its and mine:
                self.rename(mine, its)
        self.note(text)
        return True

    def can_rename(self, name: str, source: str) -> bool:
        """Whether `source` can take the place of `name`; see `forward`."""
        if not self.is_output(name):
            return True
        return self.producer(source) is not None and not self.is_output(source)

    def rename(self, name: str, source: str) -> None:
        """Lets `source` take the place of `name`, which no node writes any more."""
        if not self.is_output(name):
            self._read_instead(name, source)
            self._learn(source, name)
            return
        writer = self._slots[self._writer[source]]
        if writer is not None:
            outputs = tuple(name if n == source else n for n in writer.outputs)
            self._set(self._writer[source], writer.replace(outputs=outputs))
        self._read_instead(source, name)
        self._learn(name, source)

    def _read_instead(self, old: str, new: str) -> None:
        for index in list(self._readers.get(old, ())):
            node = self._slots[index]
            if node is not None:
                self._set(index, renamed(node, {old: new}))
        self._changed = True

    def equate(self, name: str, other: str) -> None:
        """`other` equals `name`, and stays or goes: sizes that data decide are those of `name`."""
        kept, gone = self.shape(name) or (), self.shape(other) or ()
        if kept == gone:
            return
        given = {s for n in (*self.graph.inputs, *self.graph.captures) for s in self._symbols(n)}
        for mine, its in zip(kept, gone, strict=False):
            symbol, size = lone_symbol(its), dims.substitute(mine, self._sizes)
            if symbol and symbol not in given and symbol not in dims.symbols_of(size):
                known = {k: dims.substitute(d, {symbol: size}) for k, d in self._sizes.items()}
                self._sizes = {symbol: size, **known}

    def _symbols(self, name: str) -> frozenset[str]:
        value = self._values.get(name)
        return frozenset() if value is None else dims_of(value.type)

    def _learn(self, name: str, other: str) -> None:
        """`name` and `other` are equal: keeps what is known of either, for `name`."""
        self.equate(name, other)
        mine, theirs = self._values.get(name), self._values.get(other)
        if mine is None or theirs is None:
            return
        if mine.type is None or (mine.tensor and mine.tensor.shape is None and theirs.tensor):
            mine = mine.replace(type=theirs.type)
        self._values[name] = mine if mine.dims is not None else mine.replace(dims=theirs.dims)

    def note(self, text: str) -> None:
        """Reports a change."""
        self._changed = True
        self.applied.append(text)

    def _set(self, index: int, new: Node | None) -> None:
        old = self._slots[index]
        if old is not None:
            for name in old.reads:
                self._readers[name].pop(index, None)
            for name in old.writes:
                if self._writer.get(name) == index:
                    del self._writer[name]
        self._slots[index] = new
        if new is not None:
            self._enter(index, new)

    def _enter(self, index: int, node: Node) -> None:
        """Notes what the node at a place reads and writes."""
        for name in node.reads:
            self._readers[name][index] = None
        for name in node.writes:
            self._writer[name] = index

    def edit_bodies(self, edit: Callable[[Editor], None]) -> None:
        """Runs `edit` on the bodies of all nodes, innermost first."""
        for index, node in enumerate(self._slots):
            if node is None or not node.bodies:
                continue
            attrs = dict(node.attrs)
            changed = False
            for key, body in node.bodies.items():
                inner = Editor(body, self._names, self)
                inner.edit_bodies(edit)
                edit(inner)
                result = inner.result()
                place = f"{label(node)}, {key}: "
                self.applied.extend(place + text for text in result.applied)
                self._near.extend((index, node.op_type, place + t) for t in result.near_misses)
                attrs[key] = result.graph
                changed |= result.graph is not body
            if changed:
                self._changed = True
                new = node.replace(attrs=attrs)
                self._set(index, new.replace(captures=_all_captures(new)))
                for name in node.captures:
                    self.prune(name)

    def _holds(self, index: int, op_type: str) -> bool:
        node = self._slots[index]
        return node is not None and node.op_type == op_type

    def result(self) -> PassResult:
        """The edited graph; the same object if nothing was changed."""
        near = dict.fromkeys(t for i, op_type, t in self._near if self._holds(i, op_type))
        if not self._changed:
            return PassResult(self.graph, (), tuple(near))
        read = {name for node in self.nodes() for name in node.reads} | self._outputs
        captures = tuple(name for name in self.graph.captures if name in read)
        dropped = set(self.graph.captures) - set(captures)
        values = {k: v for k, v in self._values.items() if k not in dropped}
        graph = self.graph.replace(captures=captures, values=values).rebuild(self.nodes())
        graph = rename_symbols(graph, self._sizes) if self._sizes else graph
        return PassResult(graph, tuple(self.applied), tuple(near))


def rewrite(graph: Graph, edit: Callable[[Editor], None]) -> PassResult:
    """`edit` on the graph and on all bodies inside it."""
    editor = Editor(graph, _all_names(graph))
    editor.edit_bodies(edit)
    edit(editor)
    return editor.result()


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The node with other values read, in its bodies too."""
    inputs = tuple(names.get(n, n) for n in node.inputs)
    if not any(n in names for n in node.captures):
        return node.replace(inputs=inputs)
    attrs = {
        k: _renamed_body(v, names) if isinstance(v, Graph) else v for k, v in node.attrs.items()
    }
    captures = tuple(dict.fromkeys(names.get(n, n) for n in node.captures))
    return node.replace(inputs=inputs, attrs=attrs, captures=captures)


def _renamed_body(body: Graph, names: Mapping[str, str]) -> Graph:
    if not any(n in names for n in body.captures):
        return body
    values = {names.get(k, k): v.replace(name=names.get(k, k)) for k, v in body.values.items()}
    return body.replace(
        nodes=tuple(renamed(n, names) for n in body.nodes),
        values=values,
        outputs=tuple(names.get(n, n) for n in body.outputs),
        captures=tuple(dict.fromkeys(names.get(n, n) for n in body.captures)),
    )


def _all_captures(node: Node) -> tuple[str, ...]:
    return tuple(dict.fromkeys(n for body in node.bodies.values() for n in body.captures))


def _all_names(graph: Graph) -> set[str]:
    bodies = (body for node in graph.nodes for body in node.bodies.values())
    return set(graph.values).union(*map(_all_names, bodies))
