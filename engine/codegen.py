"""Code generation: the elementwise nodes of a group as WGSL accessors.

Behind an anchor, the chain takes the place of the anchor's `store_<output>` and `store4_<output>`;
in front of it, of those accessors of an input that the anchor calls (`LOADS`); alone, it becomes
`chain`, which `shaders/elementwise.wgsl` calls for four neighbours at a time.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence

from engine.dims import Dim
from engine.dtypes import DType
from engine.errors import PlanError
from engine.groups import Group, Prologue
from engine.ir import Graph, Node
from engine.layout import Storage
from engine.operands import Declarations, Read, Turn, TurnText
from engine.ops import Elementwise, NodeView, definition
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


_COMMUTATIVE = frozenset({"Add", "Mul"})
_SUMS = frozenset({"Add", "Mean", "Sub", "Sum"})


@dataclass(frozen=True)
class _Term:
    """A node's expression in a chain, or the tail of the anchor's.

    Attributes:
        operands: for each input of the node, what it reads from outside; None: made in the chain.
        acc: variable that a tail starts from.
        apart: operands of a sum that compilers must not see through; see `_sharing`.
    """

    view: NodeView
    spec: Elementwise
    prefix: str
    operands: tuple[Read | None, ...]
    acc: str = ""
    apart: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Form:
    """An accessor by which kernels load.

    Attributes:
        place: its parameters, where the element is.
        wide: whether it loads four.
        index: `i`, the number of the (first) element, where that is no parameter.
        by: "plane" or "channel" where the parameters tell which one the element is of.
    """

    place: str
    wide: bool = False
    index: str = ""
    by: str = ""


_FORMS = {
    "load": _Form("i: u32"),
    "load4": _Form("i: u32", wide=True),
    "quad": _Form("q: u32", wide=True, index="q * 4u"),
    "plane_load": _Form("p: u32, i: u32", by="plane"),
    "plane_quad": _Form("p: u32, q: u32", wide=True, index="q * 4u", by="plane"),
    "channel_load": _Form("p: u32, c: u32, i: u32", by="channel"),
    "channel_quad": _Form("p: u32, c: u32, q: u32", wide=True, index="q * 4u", by="channel"),
    "lane": _Form("q: u32, k: u32", index="q * 4u + k"),
}
BEGIN = "begin"
LOADS = (*_FORMS, BEGIN)
"""Accessors by which kernels load, and what tells where the tensor begins."""


def generate(
    graph: Graph,
    group: Group,
    storages: Mapping[str, Storage],
    target: Target,
    anchor_output: str | None = None,
    forms: Sequence[bool] = (True,),
    turn_text: TurnText = TurnText.AS_FITS,
) -> Chain:
    """WGSL for the elementwise nodes of `group`.

    Args:
        graph, group, storages, target: what to generate for.
        anchor_output: the WGSL name of the anchor's output 0; None for a group without anchor.
        forms: which accessors to write: False for one element, True for four neighbours.
        turn_text: how what is stored as a Transpose is written.
    """
    start = group.anchor.outputs[0] if group.anchor is not None else None
    first = graph.tensor(group.first.outputs[0])
    if first is None or first.shape is None:
        raise PlanError(f"group {group.label} has no known shape")
    declared = Declarations(graph, storages, first.shape)
    turned = {t.node.key for t in group.turned}
    chain = [n for n in group.chain if n.key not in turned]
    terms = _terms(declared, chain, target, group.anchor)
    made = [n for node in group.chain for n in node.writes if node is not group.anchor]
    stored = [n for n in group.outputs if n in made or n == start]
    outputs = {name: f"out{i}" for i, name in enumerate(stored)}
    turns = {
        name: declared.turn(t, outputs[name], turn_text)
        for t in group.turned
        for name in t.node.outputs
    }
    bodies = []
    for wide in forms:
        entry = _declare(anchor_output, group, first.dtype, wide)
        bodies.append(_function(entry, declared, terms, start, outputs, turns, wide))
    maps = _maps(declared) + [t.mapping.text for t in turns.values() if not t.mapping.identity]
    tensors = {name: value for value, name in declared.tensors.items()}
    tensors.update({name: value for value, name in outputs.items()})
    fused = Fused(
        replaces=frozenset([anchor_output or "y"]),
        tensors=tuple(_tensor(n, storages[v], outputs.get(v) == n) for n, v in tensors.items()),
        params=tuple(declared.fields),
        functions="\n".join([*maps, *bodies]),
        includes=tuple(dict.fromkeys(declared.includes)),
    )
    return Chain(fused, tensors, declared.params)


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
        forms: which accessors to write, of `LOADS`.
        planes: whether planes of the tensor are those of what the prologue makes.
    """
    value = graph.tensor(prologue.value)
    if value is None or value.shape is None:
        raise PlanError(f"{prologue.value!r}, which is computed where it is loaded, has no shape")
    known = {_FORMS[f].by for f in forms if f != BEGIN} - {""} if planes else set()
    by = "channel" if known == {"channel"} else "plane" if known else ""
    declared = Declarations(graph, storages, value.shape, f"{tensor}_", by)
    terms = _terms(declared, prologue.nodes, target)
    kind = value.dtype.wgsl
    texts = []
    for name in forms:
        if name == BEGIN:
            texts.append(_text(f"fn begin_{tensor}() -> u32", ["return 0u;"]))
            continue
        form = _FORMS[name]
        quad = form.wide and bool(form.index)
        lines, names = _computed(declared, terms, {}, form.wide, bool(form.by), quad)
        names.update(_narrowed(declared, lines, prologue.value, names[prologue.value], form.wide))
        lines.append(f"return {names[prologue.value]};")
        if form.index and any(re.search(r"\bi\b", line) for line in lines):
            lines.insert(0, f"let i = {form.index};")
        result = f"vec4<{kind}>" if form.wide else kind
        texts.append(_text(f"fn {name}_{tensor}({form.place}) -> {result}", lines))
    tensors = {name: value for value, name in declared.tensors.items()}
    fused = Fused(
        replaces=frozenset([tensor]),
        tensors=tuple(_tensor(n, storages[v], False) for n, v in tensors.items()),
        params=tuple(declared.fields),
        functions="\n".join([*_maps(declared), *texts]),
        includes=tuple(dict.fromkeys(declared.includes)),
    )
    return Chain(fused, tensors, declared.params)


def _maps(declared: Declarations) -> list[str]:
    """The index maps of what is read from outside."""
    return [m.text for m in declared.mappings.values() if not m.identity]


def _tensor(name: str, storage: Storage, writable: bool) -> Tensor:
    return Tensor(name, storage.element, writable, storage.narrow, storage.packing)


def _terms(
    declared: Declarations, nodes: Sequence[Node], target: Target, anchor: Node | None = None
) -> list[_Term]:
    """The expressions of nodes in order, their operands and parameters declared."""
    made = {name for n in nodes for name in n.writes}
    found, sources = [], dict[str, frozenset[str]]()
    for index, node in enumerate(nodes):
        view, op = NodeView(declared.graph, node, target), definition(node)
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
            declared.read(name, walks.get(i)) if name and i in inputs and name not in made else None
            for i, name in enumerate(node.inputs)
        )
        prefix = f"{declared.prefix}n{index}"
        for name, value in spec.values(view).items():
            declared.params[f"{prefix}_{name}"] = value
            declared.fields.append((f"{prefix}_{name}", "f32"))
        declared.includes.extend(spec.includes)
        apart = _sharing(view, sources)
        if apart:
            declared.params[f"{prefix}_zero"] = 0.0
            declared.fields.append((f"{prefix}_zero", "f32"))
        found.append(_Term(view, spec, prefix, operands, acc, apart))
        read = (sources.get(name, frozenset([name])) for name in node.inputs)
        sources[node.outputs[0]] = frozenset().union(*read)
    return found


def _sharing(view: NodeView, sources: Mapping[str, frozenset[str]]) -> tuple[int, ...]:
    """The operands of a sum or difference of floats that share a source with one behind them.

    WGSL lets compilers take `(x + m) - m` for x, and `x - x` for 0. Models round so, carry on the
    errors of sums, or look for NaN and infinity. Mesa's compiler does it.

    Args:
        sources: for each value of the chain, what from outside it is computed from.
    """
    if view.node.op_type not in _SUMS or view.out().dtype.wgsl != "f32":
        return ()
    read = [sources.get(name, frozenset([name])) for name in view.node.inputs]
    return tuple(i for i, mine in enumerate(read) if any(mine & other for other in read[i + 1 :]))


def _declare(anchor_output: str | None, group: Group, dtype: DType, wide: bool) -> str:
    if anchor_output is None or group.anchor is None:
        return "fn chain(i: u32)"
    op = definition(group.anchor)
    element = op.tail.acc if op is not None and op.tail is not None else dtype.wgsl
    kind = f"vec4<{element}>" if wide else element
    return f"fn store{'4' if wide else ''}_{anchor_output}(i: u32, start: {kind})"


def _function(
    entry: str,
    declared: Declarations,
    terms: Sequence[_Term],
    start: str | None,
    outputs: Mapping[str, str],
    turns: Mapping[str, Turn],
    wide: bool,
) -> str:
    lines, names = _computed(declared, terms, {} if start is None else {start: "start"}, wide)
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
    declared: Declarations,
    terms: Sequence[_Term],
    names: dict[str, str],
    wide: bool,
    in_plane: bool = False,
    quad: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """Statements that compute terms, and the variables of values; `names` has those given."""
    lines = [f"let {r.variable} = {r.load(wide, in_plane, quad)};" for r in declared.reads.values()]
    read = {n for t in terms if not t.acc for n in t.view.node.inputs}
    if not any(t.acc for t in terms):
        for start in read.intersection(names):
            names = names | _narrowed(declared, lines, start, names[start], wide)
    for index, term in enumerate(terms):
        lines.append(f"// {term.view.node.op_type}")
        operands = _operands(term, names)
        for i in term.apart:
            lines.append(_kept(operands[i], f"v{index}_{i}", term.prefix, wide))
            operands[i] = f"v{index}_{i}"
        lines.append(f"let v{index} = {_expression(declared, term, operands, wide)};")
        output = term.view.node.outputs[0]
        names = names | {output: f"v{index}"}
        if output in read:
            names = names | _narrowed(declared, lines, output, f"v{index}", wide)
    return lines, names


def _kept(value: str, variable: str, prefix: str, wide: bool) -> str:
    """A float whose bits are those of another one, which no compiler knows."""
    kind, bits = ("vec4<f32>", "vec4<u32>") if wide else ("f32", "u32")
    zero = f"{bits}(bitcast<u32>(params.{prefix}_zero))"
    return f"let {variable} = bitcast<{kind}>(bitcast<{bits}>({value}) ^ {zero});"


def _narrowed(
    declared: Declarations, lines: list[str], value: str, variable: str, wide: bool
) -> dict[str, str]:
    """The variable of a value that is read on: rounded or wrapped as if it had been stored."""
    tensor = declared.graph.tensor(value)
    form = tensor.dtype.narrow if tensor is not None else ""
    if not form:
        return {}
    declared.includes.append(f"lib/narrow_{form}.wgsl")
    lines.append(f"let {variable}_{form} = narrow{'4' if wide else ''}_{form}({variable});")
    return {value: f"{variable}_{form}"}


def _operands(term: _Term, names: Mapping[str, str]) -> list[str]:
    """The variables of a term's inputs, in their order."""
    return [
        read.variable if read is not None else names.get(name, "")
        for name, read in zip(term.view.node.inputs, term.operands, strict=True)
    ]


def _expression(declared: Declarations, term: _Term, operands: Sequence[str], wide: bool) -> str:
    node, spec = term.view.node, term.spec
    template = spec.text(term.view)
    if node.op_type in _COMMUTATIVE and term.operands[0] and not term.operands[1]:
        operands = operands[::-1]  # what is made in the chain comes first: fewer kernels differ
    first = declared.graph.tensor(node.inputs[0])
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
