"""Code generation: the elementwise nodes of a group as WGSL accessors.

Behind an anchor, the chain takes the place of the anchor's `store_<output>` and `store4_<output>`;
alone, it becomes `chain`, which `shaders/elementwise.wgsl` calls for four neighbours at a time.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine import dims
from engine.dims import Dim
from engine.errors import PlanError
from engine.fusion import Group
from engine.indexing import IndexMap, broadcast_strides, index_map
from engine.ir import Graph, Node, Shape
from engine.layout import Storage
from engine.ops import NodeView, definition
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


@dataclass
class _Builder:
    graph: Graph
    storages: Mapping[str, Storage]
    shape: Shape
    reads: dict[str, tuple[str, IndexMap]] = field(default_factory=dict)
    params: dict[str, Dim | float] = field(default_factory=dict)
    fields: list[tuple[str, str]] = field(default_factory=list)
    includes: list[str] = field(default_factory=list)

    def read(self, value: str) -> None:
        """Declares an input that comes from a buffer."""
        tensor = self.graph.tensor(value)
        if tensor is None or tensor.shape is None:
            raise PlanError(f"fused input {value!r} has no known shape")
        name = f"in{len(self.reads)}"
        mapping = index_map(f"at_{name}", self.shape, broadcast_strides(tensor.shape, self.shape))
        self.reads[value] = (name, mapping)
        for word, dim in mapping.params:
            self.params[word] = dim
            self.fields.append((word, "u32"))

    def load(self, value: str, wide: bool) -> str:
        """Expression that reads an input at index i, or at the four from i on."""
        name, mapping = self.reads[value]
        element = self.storages[value].element
        if not wide:
            return f"load_{name}({self._index(mapping, 'i')})"
        if mapping.identity:
            return f"load4_{name}(i)"
        if mapping.constant:
            return f"vec4<{element}>(load_{name}({self._index(mapping, 'i')}))"
        inner = self._inner_stride(value)
        if inner == 0:
            return f"vec4<{element}>(load_{name}({self._index(mapping, 'i')}))"
        if inner == 1:
            return f"load4_{name}({self._index(mapping, 'i')})"
        places = ("i", "i + 1u", "i + 2u", "i + 3u")
        lanes = ", ".join(f"load_{name}({self._index(mapping, place)})" for place in places)
        return f"vec4<{element}>({lanes})"

    def _index(self, mapping: IndexMap, i: str) -> str:
        return i if mapping.identity else f"{mapping.name}({i})"

    def _inner_stride(self, value: str) -> int | None:
        """Stride of the last axis if groups of four never straddle it, else None."""
        tensor = self.graph.tensor(value)
        assert tensor is not None and tensor.shape is not None
        strides = broadcast_strides(tensor.shape, self.shape)
        if self.shape and dims.mod(self.shape[-1], 4) == 0 and strides[-1] in (0, 1):
            # every stride that is used with a load4 must keep the index a multiple of four
            whole = all(s == 0 or dims.mod(s, 4) == 0 for s in strides[:-1])
            if strides[-1] == 0 or whole:
                return 0 if strides[-1] == 0 else 1
        inner: Dim = 1
        for size, stride in zip(reversed(self.shape), reversed(strides), strict=True):
            if stride != 0:
                break
            inner = inner * size
        return 0 if dims.mod(inner, 4) == 0 and inner != 1 else None


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
    nodes = group.nodes if group.anchor is None else group.nodes[1:]
    made = {name for n in nodes for name in n.writes}
    start = group.anchor.outputs[0] if group.anchor is not None else None
    shape = graph.tensor(nodes[0].outputs[0] if start is None else start)
    if shape is None or shape.shape is None:
        raise PlanError(f"group {group.label} has no known shape")
    build = _Builder(graph, storages, shape.shape)
    for node in nodes:
        for name in node.inputs:
            if name and name not in made and name != start and name not in build.reads:
                build.read(name)
    views = {n.key: NodeView(graph, n, target) for n in nodes}
    prefixes = {n.key: f"n{i}" for i, n in enumerate(nodes)}
    for node in nodes:
        _declare_params(build, views[node.key], prefixes[node.key])
    stored = [n for n in group.outputs if n in made or n == start]
    outputs = {name: f"out{i}" for i, name in enumerate(stored)}
    bodies = []
    for wide in forms:
        entry = _declare(anchor_output, start, storages, wide)
        bodies.append(_function(entry, build, nodes, views, prefixes, start, outputs, wide))
    maps = [m.text for _, m in build.reads.values() if not m.identity]
    tensors = {name: value for value, (name, _) in build.reads.items()}
    tensors.update({name: value for value, name in outputs.items()})
    fused = Fused(
        replaces=frozenset([anchor_output or "y"]),
        tensors=tuple(
            Tensor(n, storages[v].element, outputs.get(v) == n, storages[v].growing)
            for n, v in tensors.items()
        ),
        params=tuple(build.fields),
        functions="\n".join([*maps, *bodies]),
        includes=tuple(dict.fromkeys(build.includes)),
    )
    return Chain(fused, tensors, build.params)


def _declare(
    anchor_output: str | None, start: str | None, storages: Mapping[str, Storage], wide: bool
) -> str:
    if anchor_output is None or start is None:
        return "fn chain(i: u32)"
    element = storages[start].element
    kind = f"vec4<{element}>" if wide else element
    return f"fn store{'4' if wide else ''}_{anchor_output}(i: u32, start: {kind})"


def _declare_params(build: _Builder, view: NodeView, prefix: str) -> None:
    op = definition(view.node)
    if op is None or op.elementwise is None:
        raise PlanError(f"{view.describe()} is not elementwise")
    for name, value in op.elementwise.values(view).items():
        build.params[f"{prefix}_{name}"] = value
        build.fields.append((f"{prefix}_{name}", "f32"))
    build.includes.extend(op.elementwise.includes)


def _function(
    entry: str,
    build: _Builder,
    nodes: Sequence[Node],
    views: Mapping[str, NodeView],
    prefixes: Mapping[str, str],
    start: str | None,
    outputs: Mapping[str, str],
    wide: bool,
) -> str:
    names: dict[str, str] = {} if start is None else {start: "start"}
    lines: list[str] = []
    for value, (name, _) in build.reads.items():
        lines.append(f"let x_{name} = {build.load(value, wide)};")
        names[value] = f"x_{name}"
    for index, node in enumerate(nodes):
        prefix = prefixes[node.key]
        lines.append(f"// {node.op_type}")
        expression = _expression(views[node.key], names, prefix, build.storages, wide)
        lines.append(f"let v{index} = {expression};")
        names[node.outputs[0]] = f"v{index}"
    suffix = "4" if wide else ""
    lines += [f"store{suffix}_{name}(i, {names[value]});" for value, name in outputs.items()]
    return f"{entry} {{\n" + "\n".join(f"    {line}" for line in lines) + "\n}\n"


def _expression(
    view: NodeView,
    names: Mapping[str, str],
    prefix: str,
    storages: Mapping[str, Storage],
    wide: bool,
) -> str:
    op = definition(view.node)
    assert op is not None and op.elementwise is not None
    spec = op.elementwise
    template = spec.text(view)
    operands = [names[n] if n else "" for n in view.node.inputs]
    elements = [storages[n].element if n else "" for n in view.node.inputs]
    result = _element(view, storages)
    attributes = {name: f"params.{prefix}_{name}" for name in spec.values(view)}
    if not wide or not spec.scalar:
        fill = _types(result, elements[0], wide)
        return _format(template, operands, {**fill, **attributes})
    lanes = [
        _format(
            template,
            [f"{o}.{lane}" if o else "" for o in operands],
            {**_types(result, elements[0], False), **attributes},
        )
        for lane in "xyzw"
    ]
    return f"vec4<{result}>({', '.join(lanes)})"


def _element(view: NodeView, storages: Mapping[str, Storage]) -> str:
    name = view.node.outputs[0]
    return storages[name].element if name in storages else view.out().dtype.wgsl


def _types(result: str, first: str, wide: bool) -> dict[str, str]:
    kinds = {"T": result, "S": first, "U": "u32", "F": "f32", "I": "i32", "B": "bool"}
    return {k: f"vec4<{v}>" for k, v in kinds.items()} if wide else kinds


def _format(template: str, operands: Sequence[str], fields: Mapping[str, str]) -> str:
    return string.Formatter().vformat(template, operands, fields)
