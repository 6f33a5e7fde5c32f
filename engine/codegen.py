"""Code generation: the elementwise nodes of a group as WGSL accessors.

Behind an anchor, the chain takes the place of the anchor's `store_<output>` and `store4_<output>`;
in front of it, of `load_<input>`, `load4_<input>` and `quad_<input>`; alone, it becomes `chain`,
which `shaders/elementwise.wgsl` calls for four neighbours at a time.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import field

from engine import dims
from engine.dims import Dim, product
from engine.dtypes import DType
from engine.errors import PlanError
from engine.groups import Group, Prologue, Turned
from engine.indexing import IndexMap, broadcast_strides, index_map, is_by_plane, row_major
from engine.ir import Graph, Node, Shape
from engine.layout import Storage
from engine.ops import Elementwise, NodeView, Walk, definition, is_scalar_constant
from engine.records import dataclass
from engine.shader import Fused, Tensor
from engine.target import Target


@dataclass(frozen=True)
class Chain:
    """A generated chain.

    Attributes:
        fused: what `shader.render` takes.
        tensors: WGSL name of each storage buffer of the chain to the value it holds.
        params: words of `fused.params` to their values.
    """

    fused: Fused
    tensors: Mapping[str, str]
    params: Mapping[str, Dim | float]


@dataclass(frozen=True)
class _Read:
    """An operand that comes from outside: a buffer through an index map, or a word of Params."""

    variable: str
    element: str
    tensor: str = ""
    walk: Walk = ((), ())
    mapping: IndexMap | None = None
    plane: IndexMap | None = None

    def load(self, wide: bool, in_plane: bool = False, quad: bool = False) -> str:
        """Expression of the operand at index i, or at the four from i on; `in_plane`: of plane p,
        which tells where it is if it is one for the whole plane; `quad`: i is 4 * q."""
        if in_plane and self.plane is not None:
            one = f"load_{self.tensor}({_at(self.plane, 'p')})"
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
class _Turn:
    """How the elements of `source` are stored as a Transpose of it would lie.

    Attributes:
        mapping: from the index of an element of `source` to its place.
        size: the word of Params that says how many elements there are.
        whole: whether groups of four neighbours stay together.
    """

    source: str
    mapping: IndexMap
    size: str
    whole: bool

    def stores(self, name: str, variable: str, wide: bool) -> list[str]:
        """Statements that store `variable`, the element at index i or the four from i on.

        Neighbours past the last element would land anywhere, so they are left out.
        """

        def place(i: str) -> str:
            return i if self.mapping.identity else f"{self.mapping.name}({i})"

        if not wide:
            return [f"store_{name}({place('i')}, {variable});"]
        if self.whole:
            return [f"store4_{name}({place('i')}, {variable});"]
        lines = [f"store_{name}({place('i')}, {variable}.x);"]
        for step, lane in enumerate("yzw", 1):
            store = f"store_{name}({place(f'i + {step}u')}, {variable}.{lane});"
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


@dataclass
class _Builder:
    graph: Graph
    storages: Mapping[str, Storage]
    shape: Shape
    prefix: str = ""
    planes: bool = False
    reads: dict[tuple[str, Walk | None], _Read] = field(default_factory=dict)
    mappings: dict[Walk, IndexMap] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    params: dict[str, Dim | float] = field(default_factory=dict)
    fields: list[tuple[str, str]] = field(default_factory=list)
    includes: list[str] = field(default_factory=list)

    def read(self, value: str, walk: Walk | None) -> _Read:
        """Declares an operand from outside; `walk` says where it lies if it is not broadcast."""
        if (value, walk) not in self.reads:
            make = self._word if is_scalar_constant(self.graph, value) else self._buffer
            self.reads[value, walk] = make(value, walk)
        return self.reads[value, walk]

    def turn(self, turned: Turned, name: str) -> _Turn:
        """Declares the places of a value that is stored as a Transpose of it."""
        tensor = self.graph.tensor(turned.node.inputs[0])
        if tensor is None or tensor.shape is None:
            raise PlanError(f"the shape of {turned.node.inputs[0]!r} is unknown")
        shape = tensor.shape
        order = NodeView(self.graph, turned.node).attr("perm") or range(len(shape))[::-1]
        strides: list[Dim] = [0] * len(shape)
        for axis, stride in zip(order, row_major([shape[a] for a in order]), strict=True):
            strides[axis] = stride
        mapping = index_map(f"to_{name}", shape, strides)
        size = f"{name}_size"
        words = [*mapping.params, (size, product(shape))]
        for word, dim in words:
            self.params[word] = dim
            self.fields.append((word, "u32"))
        whole = mapping.identity or _inner_stride(shape, tuple(strides)) == 1
        return _Turn(turned.source, mapping, size, whole)

    def _word(self, value: str, walk: Walk | None) -> _Read:
        array, tensor = self.graph.constant(value), self.graph.tensor(value)
        assert array is not None and tensor is not None
        kind, word = tensor.dtype.wgsl, f"{self.prefix}c{len(self.reads)}"
        number = array.reshape(-1)[0]
        self.params[word] = float(number) if kind == "f32" else int(number)
        self.fields.append((word, kind))
        return _Read(word, kind)

    def _buffer(self, value: str, walk: Walk | None) -> _Read:
        tensor = self.graph.tensor(value)
        if tensor is None or tensor.shape is None:
            raise PlanError(f"fused input {value!r} has no known shape")
        name = self.tensors.setdefault(value, f"{self.prefix}in{len(self.tensors)}")
        walk = walk or (self.shape, broadcast_strides(tensor.shape, self.shape))
        variable = f"x{len(self.reads)}_{name}"
        mapping = self._map(f"at_{variable}", walk)
        plane = None
        if self.planes and is_by_plane(walk[1]):
            plane = self._map(f"plane_{variable}", (walk[0][:2], walk[1][:2]))
        return _Read(variable, self.storages[value].element, name, walk, mapping, plane)

    def _map(self, name: str, walk: Walk) -> IndexMap:
        """The index map of a walk, declared once."""
        if walk not in self.mappings:
            mapping = self.mappings[walk] = index_map(name, *walk)
            for word, dim in mapping.params:
                self.params[word] = dim
                self.fields.append((word, "u32"))
        return self.mappings[walk]


_COMMUTATIVE = frozenset({"Add", "Mul"})


@dataclass(frozen=True)
class _Term:
    """A node's expression in a chain, or the tail of the anchor's.

    Attributes:
        operands: for each input of the node, what it reads from outside; None: made in the chain.
        acc: variable that a tail starts from.
    """

    view: NodeView
    spec: Elementwise
    prefix: str
    operands: tuple[_Read | None, ...]
    acc: str = ""


def generate(
    graph: Graph,
    group: Group,
    storages: Mapping[str, Storage],
    target: Target,
    anchor_output: str | None = None,
    forms: Sequence[bool] = (True,),
) -> Chain:
    """WGSL for the elementwise nodes of `group`.

    Args:
        graph, group, storages, target: what to generate for.
        anchor_output: the WGSL name of the anchor's output 0; None for a group without anchor.
        forms: which accessors to write: False for one element, True for four neighbours.
    """
    start = group.anchor.outputs[0] if group.anchor is not None else None
    first = graph.tensor(group.first.outputs[0])
    if first is None or first.shape is None:
        raise PlanError(f"group {group.label} has no known shape")
    build = _Builder(graph, storages, first.shape)
    turned = {t.node.key for t in group.turned}
    chain = [n for n in group.chain if n.key not in turned]
    terms = _terms(build, chain, target, group.anchor)
    made = [n for node in group.chain for n in node.writes if node is not group.anchor]
    stored = [n for n in group.outputs if n in made or n == start]
    outputs = {name: f"out{i}" for i, name in enumerate(stored)}
    turns = {t.node.outputs[0]: build.turn(t, outputs[t.node.outputs[0]]) for t in group.turned}
    bodies = []
    for wide in forms:
        entry = _declare(anchor_output, group, first.dtype, wide)
        bodies.append(_function(entry, build, terms, start, outputs, turns, wide))
    maps = _maps(build) + [t.mapping.text for t in turns.values() if not t.mapping.identity]
    tensors = {name: value for value, name in build.tensors.items()}
    tensors.update({name: value for value, name in outputs.items()})
    fused = Fused(
        replaces=frozenset([anchor_output or "y"]),
        tensors=tuple(_tensor(n, storages[v], outputs.get(v) == n) for n, v in tensors.items()),
        params=tuple(build.fields),
        functions="\n".join([*maps, *bodies]),
        includes=tuple(dict.fromkeys(build.includes)),
    )
    return Chain(fused, tensors, build.params)


def generate_loads(
    graph: Graph,
    prologue: Prologue,
    storages: Mapping[str, Storage],
    target: Target,
    tensor: str,
    forms: Sequence[str],
    planes: bool = True,
) -> Chain:
    """WGSL for the nodes of a prologue, in the place of the accessors of a tensor of the anchor.

    Args:
        tensor: the WGSL name of what the prologue makes.
        forms: which accessors to write: "load", "load4", "quad", "plane_load", "plane_quad".
        planes: whether planes of the tensor are those of what the prologue makes.
    """
    value = graph.tensor(prologue.value)
    if value is None or value.shape is None:
        raise PlanError(f"{prologue.value!r}, which is computed where it is loaded, has no shape")
    planes = planes and any(form.startswith("plane_") for form in forms)
    build = _Builder(graph, storages, value.shape, f"{tensor}_", planes)
    terms = _terms(build, prologue.nodes, target)
    kind = value.dtype.wgsl
    texts = []
    for form in forms:
        wide, in_plane = not form.endswith("load"), form.startswith("plane_")
        quad = form.endswith("quad")
        lines, names = _computed(build, terms, {}, wide, in_plane, quad)
        names.update(_narrowed(build, lines, prologue.value, names[prologue.value], wide))
        lines.append(f"return {names[prologue.value]};")
        if quad and any(re.search(r"\bi\b", line) for line in lines):
            lines.insert(0, "let i = q * 4u;")
        place = "q: u32" if quad else "i: u32"
        plane = "p: u32, " if in_plane else ""
        result = f"vec4<{kind}>" if wide else kind
        texts.append(_text(f"fn {form}_{tensor}({plane}{place}) -> {result}", lines))
    tensors = {name: value for value, name in build.tensors.items()}
    fused = Fused(
        replaces=frozenset([tensor]),
        tensors=tuple(_tensor(n, storages[v], False) for n, v in tensors.items()),
        params=tuple(build.fields),
        functions="\n".join([*_maps(build), *texts]),
        includes=tuple(dict.fromkeys(build.includes)),
    )
    return Chain(fused, tensors, build.params)


def _maps(build: _Builder) -> list[str]:
    """The index maps of what is read from outside."""
    return [m.text for m in build.mappings.values() if not m.identity]


def _tensor(name: str, storage: Storage, writable: bool) -> Tensor:
    return Tensor(name, storage.element, writable, storage.narrow, storage.packing)


def _terms(
    build: _Builder, nodes: Sequence[Node], target: Target, anchor: Node | None = None
) -> list[_Term]:
    """The expressions of nodes in order, their operands and parameters declared."""
    made = {name for n in nodes for name in n.writes}
    found = []
    for index, node in enumerate(nodes):
        view, op = NodeView(build.graph, node, target), definition(node)
        spec, inputs, acc = None, tuple(range(len(node.inputs))), ""
        if op is not None and node is anchor:
            if op.tail is None:
                continue
            spec, inputs, acc = op.tail.elementwise, op.tail.inputs, "start"
        elif op is not None:
            spec = op.elementwise
        if spec is None:
            raise PlanError(f"{view.describe()} is not elementwise")
        walks = spec.walks(view) if spec.walks is not None else {}
        operands = tuple(
            build.read(name, walks.get(i)) if name and i in inputs and name not in made else None
            for i, name in enumerate(node.inputs)
        )
        prefix = f"{build.prefix}n{index}"
        for name, value in spec.values(view).items():
            build.params[f"{prefix}_{name}"] = value
            build.fields.append((f"{prefix}_{name}", "f32"))
        build.includes.extend(spec.includes)
        found.append(_Term(view, spec, prefix, operands, acc))
    return found


def _declare(anchor_output: str | None, group: Group, dtype: DType, wide: bool) -> str:
    if anchor_output is None or group.anchor is None:
        return "fn chain(i: u32)"
    op = definition(group.anchor)
    element = op.tail.acc if op is not None and op.tail is not None else dtype.wgsl
    kind = f"vec4<{element}>" if wide else element
    return f"fn store{'4' if wide else ''}_{anchor_output}(i: u32, start: {kind})"


def _function(
    entry: str,
    build: _Builder,
    terms: Sequence[_Term],
    start: str | None,
    outputs: Mapping[str, str],
    turns: Mapping[str, _Turn],
    wide: bool,
) -> str:
    lines, names = _computed(build, terms, {} if start is None else {start: "start"}, wide)
    suffix = "4" if wide else ""
    for value, name in outputs.items():
        turn = turns.get(value)
        if turn is None:
            lines.append(f"store{suffix}_{name}(i, {names[value]});")
        else:
            lines += turn.stores(name, names[turn.source], wide)
    return _text(entry, lines)


def _text(entry: str, lines: Sequence[str]) -> str:
    return f"{entry} {{\n" + "\n".join(f"    {line}" for line in lines) + "\n}\n"


def _computed(
    build: _Builder,
    terms: Sequence[_Term],
    names: dict[str, str],
    wide: bool,
    in_plane: bool = False,
    quad: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """Statements that compute terms, and the variables of values; `names` has those given."""
    lines = [f"let {r.variable} = {r.load(wide, in_plane, quad)};" for r in build.reads.values()]
    read = {n for t in terms if not t.acc for n in t.view.node.inputs}
    if not any(t.acc for t in terms):
        for start in read.intersection(names):
            names = names | _narrowed(build, lines, start, names[start], wide)
    for index, term in enumerate(terms):
        lines.append(f"// {term.view.node.op_type}")
        lines.append(f"let v{index} = {_expression(build, term, names, wide)};")
        output = term.view.node.outputs[0]
        names = names | {output: f"v{index}"}
        if output in read:
            names = names | _narrowed(build, lines, output, f"v{index}", wide)
    return lines, names


def _narrowed(
    build: _Builder, lines: list[str], value: str, variable: str, wide: bool
) -> dict[str, str]:
    """The variable of a value that is read on: rounded or wrapped as if it had been stored."""
    tensor = build.graph.tensor(value)
    form = tensor.dtype.narrow if tensor is not None else ""
    if not form:
        return {}
    build.includes.append(f"lib/narrow_{form}.wgsl")
    lines.append(f"let {variable}_{form} = narrow{'4' if wide else ''}_{form}({variable});")
    return {value: f"{variable}_{form}"}


def _expression(build: _Builder, term: _Term, names: Mapping[str, str], wide: bool) -> str:
    node, spec = term.view.node, term.spec
    template = spec.text(term.view)
    operands = [
        read.variable if read is not None else names.get(name, "")
        for name, read in zip(node.inputs, term.operands, strict=True)
    ]
    if node.op_type in _COMMUTATIVE and term.operands[0] and not term.operands[1]:
        operands.reverse()  # what is made in the chain comes first: fewer kernels differ
    first = build.graph.tensor(node.inputs[0])
    result, kind = term.view.out().dtype.wgsl, first.dtype.wgsl if first is not None else ""
    fields = {name: f"params.{term.prefix}_{name}" for name in spec.values(term.view)}
    if not wide or not spec.scalar:
        acc = {"acc": term.acc} if term.acc else {}
        return _format(template, operands, {**_types(result, kind, wide), **acc, **fields})
    lanes = []
    for lane in "xyzw":
        acc = {"acc": f"{term.acc}.{lane}"} if term.acc else {}
        parts = [f"{o}.{lane}" if o else "" for o in operands]
        lanes.append(_format(template, parts, {**_types(result, kind, False), **acc, **fields}))
    return f"vec4<{result}>({', '.join(lanes)})"


def _types(result: str, first: str, wide: bool) -> dict[str, str]:
    kinds = {"T": result, "S": first, "U": "u32", "F": "f32", "I": "i32", "B": "bool"}
    return {k: f"vec4<{v}>" for k, v in kinds.items()} if wide else kinds


def _format(template: str, operands: Sequence[str], fields: Mapping[str, str]) -> str:
    return string.Formatter().vformat(template, operands, fields)
