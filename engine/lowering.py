"""Lowering: groups to dispatches; kernels are rendered, each once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from engine import costs
from engine.checks import LimitError, misfit
from engine.codegen import LOADS, Chain, generate, generate_loads
from engine.dims import Dim, product
from engine.dtypes import DType
from engine.errors import PlanError
from engine.fusion_rules import bordered
from engine.groups import Group
from engine.indexing import Place
from engine.ir import Array, Graph, Node, Shape, TensorType
from engine.layout import Storage, storage_of
from engine.operands import TurnText
from engine.ops import KernelCall, Lowering, OpDef, definition, linear
from engine.parts import Parts
from engine.plan import Append, Derived, Dispatch, Variant
from engine.reach import Reach, reach
from engine.shader import Fused, Kernel, Placed, preprocess, render
from engine.sharing import NOTHING, Sharing, ended, floored
from engine.target import Target
from engine.tuning import DEFAULT, Tuning, tuned_as


class Lowerer:
    """Groups to dispatches: collects kernels, scratch values and derived constants."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        root: Callable[[str], str],
        appends: Mapping[str, Append],
        tuning: Tuning,
        binding: Mapping[str, int],
        parts: Parts,
        sharing: Sharing = NOTHING,
    ) -> None:
        self.graph = graph
        self.parts = parts
        self.sharing = sharing
        self.tuning = tuning
        self.binding = binding
        self.target = target
        self.root = root
        self.appends = appends
        self.growing = {n: a for a in appends.values() for n in (a.past, a.grown)}
        self.kernels: dict[str, int] = {}
        self.rendered: list[Kernel] = []
        self.scratch: dict[str, TensorType] = {}
        self.derived: dict[str, Derived] = {}
        self.storages: dict[str, Storage] = {}
        self._chains: dict[tuple[str, str | None, tuple[bool, ...]], Chain] = {}
        self.loose: set[str] = set()
        """Values that some kernel writes one element at a time, so that they can't be packed."""

    def storage(self, name: str) -> Storage:
        """How a value lies in its buffer; asked only once its writers are lowered."""
        if name not in self.storages:
            tensor = self.scratch.get(name) or self.graph.tensor(name)
            if tensor is None:
                raise PlanError(f"value {name!r} cannot be on the GPU")
            packed = self.root(name) not in self.loose or self._is_native(tensor.dtype.narrow)
            found = storage_of(tensor.dtype, packed)
            append = self.growing.get(self.root(name))
            self.storages[name] = found if append is None else append.storage(found)
        return self.storages[name]

    def _is_native(self, narrow: str) -> bool:
        """Whether kernels store single elements of a narrow type."""
        return narrow == "f16" and "shader-f16" in self.target.features

    def lower(self, group: Group) -> list[Dispatch]:
        """The dispatches of a group: elementwise nodes, an append, or its anchor's stages.

        Raises: PlanError if its anchor has no kernel, or breaks the contract of `KernelCall`;
            LimitError if no alternative fits the target.
        """
        self.loose.update(self.root(t.node.outputs[0]) for t in group.turned)
        if group.anchor is None:
            call = self._elementwise_call(group)
            return [self._dispatch(group, (call,), fuse=True)]
        if group.anchor.key in self.appends:
            call = self._append_call(self.appends[group.anchor.key])
            return [self._dispatch(group, (call,), fuse=False)]
        op = definition(group.anchor)
        if op is None or op.lower is None:
            raise PlanError(f"{group.label} has no kernel")
        known_by, style = self._style(group.anchor, op)
        reader = bordered(self.graph, group.border, group.anchor) if group.border else group.anchor
        if reader is None:
            raise PlanError(f"{group.label} can't do what its Pad does")
        view = Lowering(
            self.graph,
            reader,
            self.target,
            self._new_scratch,
            self._new_derived,
            style,
            self.binding,
            self._front(group, reader),
        )
        copied = self.parts.copied.get(group.anchor.key)
        if copied is None or op.in_place is None:
            stages = op.lower(view)
        else:
            stages = op.in_place.rest(view, copied) if copied else ()
        ends = group.key in self.sharing.ends
        chained = len(group.chain) > 1 or op.tail is not None or ends
        storing = _last_storing(stages, group.anchor.outputs[0]) if chained else -1
        self._find_loose(group, stages, storing)
        dispatches = (
            self._dispatch(group, stage, fuse=index == storing)
            for index, stage in enumerate(stages)
        )
        return [replace(d, tuned_as=known_by, style=style) for d in dispatches]

    def _style(self, anchor: Node, op: OpDef) -> tuple[str, str]:
        """What tuning knows a node by, and the style that it says."""
        if not op.styles:
            return "", DEFAULT
        known_by = tuned_as(self.graph, anchor, self.binding)
        return known_by, self.tuning.choose(known_by, op.styles) if known_by else DEFAULT

    def _find_loose(
        self, group: Group, stages: Sequence[Sequence[KernelCall]], storing: int
    ) -> None:
        """Notes the values that are stored by element: what is packed is written by word."""
        for index, stage in enumerate(stages):
            for call in stage:
                body = preprocess(call.shader, call.flags, call.text)
                stored = {v for n, v in call.tensors.items() if f"store_{n}(" in body}
                if index == storing and group.chain[0].outputs[0] in stored:
                    stored.update(group.outputs)
                self.loose.update(map(self.root, stored))

    def _elementwise_call(self, group: Group) -> KernelCall:
        tensor = self.graph.tensor(group.first.outputs[0])
        if tensor is None or tensor.size is None:
            raise PlanError(f"{group.label} has no known size")
        size = tensor.size
        return KernelCall("elementwise", {}, {"size": size}, linear(-(-size // 4)))

    def _append_call(self, append: Append) -> KernelCall:
        past, new, grown = (
            shape_of(self.graph, n) for n in (append.past, append.new, append.grown)
        )
        size, axis = product(new), append.axis
        params = {
            "size": size,
            "row": product(new[axis:]),
            "grown_row": product(grown[axis:]),
            "begin": product(past[axis:]),
        }
        tensors = {"x": append.new, "y": append.grown}
        return KernelCall("slice_append", tensors, params, linear(size))

    def _new_scratch(self, tensor: TensorType) -> str:
        name = f"scratch:{len(self.scratch)}"
        self.scratch[name] = tensor
        return name

    def _new_derived(
        self, source: str, recipe: str, make: Callable[[Array], Array], dtype: DType | None
    ) -> str:
        name = f"{source}:{recipe}"
        if name not in self.derived:
            self.derived[name] = Derived(source, recipe, make)
            constant = self.graph.constant(source)
            if constant is None:
                raise PlanError(f"{source!r} is not a constant, so nothing can be derived from it")
            tensor = self.graph.values[source].tensor
            if tensor is None:
                raise PlanError(f"{source!r} has no tensor type")
            self.scratch.setdefault(name, TensorType(dtype or tensor.dtype))
        return name

    def _dispatch(self, group: Group, stage: Sequence[KernelCall], fuse: bool) -> Dispatch:
        variants = self._variants(group, stage, fuse)
        if variants[-1].when:
            raise PlanError(f"{group.label}: the last variant must hold for all sizes")
        kernels = [self.rendered[v.kernel] for v in variants]
        written = {
            value
            for kernel, variant in zip(kernels, variants, strict=True)
            for tensor, value in zip(
                (*kernel.tensors, *kernel.riders), variant.touches, strict=True
            )
            if tensor.writable
        }
        keys = tuple(n.key for n in group.nodes)
        work = self._work(group)
        return Dispatch(group.label, group.origin, keys, variants, tuple(sorted(written)), *work)

    def _work(self, group: Group) -> tuple[Dim, Dim]:
        """Operations of a group, and bytes that it moves."""
        copied = self.parts.copied_values(group.nodes[0])
        touched = copied or (*group.inputs, *group.outputs)
        flops, nbytes = costs.dispatch_work(self.graph, group.nodes, touched)
        return flops, nbytes * 2 if copied else nbytes

    def _variants(
        self, group: Group, stage: Sequence[KernelCall], fuse: bool
    ) -> tuple[Variant, ...]:
        """The alternatives that fit the target; the last one must."""
        found = []
        for call in stage:
            try:
                found += self._alternatives(group, call, fuse)
            except LimitError:
                if call is stage[-1]:
                    raise
        return tuple(found)

    def _alternatives(self, group: Group, call: KernelCall, fuse: bool) -> list[Variant]:
        """The call with each way of reaching parts, the quicker one first."""
        tensors, params = dict(call.tensors), dict(call.params)
        fused = Fused(params=call.extra_params)
        chains = [*self._in_front(group, call), *([self._behind(group, call)] if fuse else [])]
        for chain in chains:
            fused += chain.fused
            tensors.update(chain.tensors)
            params.update(chain.params)
        tensors = {n: v for n, v in tensors.items() if n not in fused.replaces}
        quick = self._reached(group, tensors, guarded=True)
        when = tuple(dict.fromkeys(g for found in quick.values() for g in found.when))
        variants = [self._variant(group, call, fused, tensors, params, quick)]
        if not when:
            return variants
        sure = self._reached(group, tensors, guarded=False)
        guarded = replace(variants[0], when=(*call.when, *when))
        return [guarded, self._variant(group, call, fused, tensors, params, sure)]

    def _reached(self, group: Group, tensors: Mapping[str, str], guarded: bool) -> dict[str, Reach]:
        """How parts are reached, and what is written as if it were one; see `reach`."""
        parts = {n: self.parts.of[v] for n, v in self._rooted(tensors) if v in self.parts.of}
        found = {n: reach(part.place, part.size, guarded) for n, part in parts.items()}
        return found | self._at_begin(group, tensors, found)

    def _at_begin(
        self, group: Group, tensors: Mapping[str, str], reached: Mapping[str, Reach]
    ) -> dict[str, Reach]:
        """How outputs and inputs are reached that lie side by side from the start of their buffer,
        if kernels are written for one that begins elsewhere."""
        moved = self._moved(group)
        found: dict[str, Reach] = {}
        for name, root in self._rooted(tensors) if moved else ():
            known = reached.get(name)
            if root not in moved or (known is not None and known.placed is not None):
                continue
            storage = self.storage(root)
            if storage.element == "f32" and not storage.narrow and not storage.growing:
                size, when = product(shape_of(self.graph, root)), known.when if known else ()
                found[name] = Reach(Place(), size, Placed(shifted=True, fours=True), when)
        return found

    def _moved(self, group: Group) -> set[str]:
        """The values that kernels of other groups find elsewhere in their buffers."""
        if group.anchor is None:
            return set()
        found = [*self.sharing.inputs.get(group.key, ())]
        if group.anchor.op_type in self.sharing.outputs:
            found += group.outputs
        return set(map(self.root, found))

    def _rooted(self, tensors: Mapping[str, str]) -> list[tuple[str, str]]:
        return [(name, self.root(value)) for name, value in tensors.items()]

    def _variant(
        self,
        group: Group,
        call: KernelCall,
        fused: Fused,
        tensors: Mapping[str, str],
        params: Mapping[str, Dim | float],
        reached: Mapping[str, Reach],
    ) -> Variant:
        reached = {**reached, **self._growing_reach(tensors)}
        kernel = render(
            group.label.replace(" ", ""),
            call.shader,
            {n: self.storage(v).element for n, v in call.tensors.items()},
            flags=call.flags,
            text=call.text,
            overrides=call.overrides,
            features=call.features | self._features(tensors.values()),
            fused=fused,
            narrow={
                n: (s.narrow, s.packing)
                for n, v in call.tensors.items()
                if (s := self.storage(v)).narrow
            },
            placed={n: r.placed for n, r in reached.items() if r.placed is not None},
            buffers=self._buffers(tensors),
        )
        words = dict(params)
        for tensor in (*kernel.tensors, *kernel.riders):
            if tensor.placed is not None:
                words.update(reached[tensor.name].words(tensor))
        missing = {name for name, _ in kernel.params} ^ set(words)
        if missing:
            raise PlanError(f"{call.shader}.wgsl and its lowering disagree on params {missing}")
        problem = misfit(kernel, self.target)
        if problem:
            raise LimitError(problem, tuple(n.key for n in group.nodes))
        if not kernel.repeats and call.repeat != 1:
            raise PlanError(f"{call.shader}.wgsl repeats, but never asks for repeat_index()")
        index = self.kernels.setdefault(kernel.key, len(self.rendered))
        if index == len(self.rendered):
            self.rendered.append(kernel)
        touches = [self.root(tensors[t.name]) for t in (*kernel.tensors, *kernel.riders)]
        return Variant(
            call.when,
            index,
            tuple(map(self.parts.whole, touches[: len(kernel.tensors)])),
            tuple(words[name] for name, _ in kernel.params),
            call.grid,
            call.trips,
            call.repeat,
            tuple(touches),
        )

    def _buffers(self, tensors: Mapping[str, str]) -> Mapping[str, int]:
        """Tensors that lie in one buffer, though they are different values, by its number."""
        values: dict[str, dict[str, str]] = {}
        for name, value in self._rooted(tensors):
            values.setdefault(self.parts.whole(value), {})[name] = value
        shared = [found for found in values.values() if len(set(found.values())) > 1]
        return {name: number for number, found in enumerate(shared) for name in found}

    def _features(self, values: Iterable[str]) -> frozenset[str]:
        """Features that the storages of a kernel's values need."""
        kept = map(self.storage, values)
        native = any(s.packing == 2 and self._is_native(s.narrow) for s in kept)
        return frozenset({"shader-f16"} if native else ())

    def _growing_reach(self, tensors: Mapping[str, str]) -> Mapping[str, Reach]:
        """How the tensors with room to grow lie in their buffers."""
        found = {}
        for name, root in self._rooted(tensors):
            storage = self.storage(root)
            if storage.growing:
                shape = shape_of(self.graph, root)
                row = storage.row_size(shape)
                place = Place(0, ((row, storage.pitch(shape) - row),))
                found[name] = Reach(place, product(shape), Placed(runs=1))
        return found

    def _front(self, group: Group, anchor: Node) -> dict[str, int]:
        """How many operators are computed where the anchor loads its inputs."""
        count = {p.value: len(p.nodes) for p in group.prologues if not p.border}
        return {n: count[self.root(n)] for n in anchor.inputs if self.root(n) in count}

    def _in_front(self, group: Group, call: KernelCall) -> Iterator[Chain]:
        """What is computed in the place of tensors that a kernel loads."""
        if not group.prologues:
            return
        body = preprocess(call.shader, call.flags, call.text)
        made = {p.value: p for p in group.prologues if not p.border}
        for tensor, value in call.tensors.items():
            prologue = made.get(self.root(value))
            if prologue is not None:
                for name in (n for node in prologue.nodes for n in node.reads):
                    self.storage(name)
                forms = [f for f in LOADS if re.search(rf"\b{f}_{tensor}\(", body)]
                # a view in between may have other planes
                planes = shape_of(self.graph, value) == shape_of(self.graph, prologue.value)
                yield generate_loads(
                    self.graph, prologue, self.storages, self.target, tensor, forms, planes
                )

    def _behind(self, group: Group, call: KernelCall) -> Chain:
        """What is computed where a kernel stores, or the whole of a kernel without anchor."""
        anchor_output = None
        forms: tuple[bool, ...] = (True,)
        if group.anchor is not None:
            start = group.anchor.outputs[0]
            anchor_output = next(n for n, v in call.tensors.items() if v == start)
            body = preprocess(call.shader, call.flags, call.text)
            uses = {False: f"store_{anchor_output}(", True: f"store4_{anchor_output}("}
            forms = tuple(wide for wide, text in uses.items() if text in body)
        key = group.key, anchor_output, forms
        if key not in self._chains:
            for name in (*group.inputs, *(n for node in group.nodes for n in node.writes)):
                self.storage(name)
            self._chains[key] = self._generate(group, anchor_output, forms)
        return self._chains[key]

    def _generate(self, group: Group, output: str | None, forms: tuple[bool, ...]) -> Chain:
        text = self.sharing.orders.get(group.label, TurnText.AS_FITS)
        end = self.sharing.ends.get(group.key)
        if end is None or group.anchor is None:
            if group.chain[-1].key in self.sharing.ends:
                group = floored(group)
            return generate(self.graph, group, self.storages, self.target, output, forms, text)
        (kept,) = group.outputs
        graph, group, storages, made = ended(self.graph, group, self.storages, end)
        chain = generate(graph, group, storages, self.target, output, forms, text)
        tensors = {name: kept if v == made else v for name, v in chain.tensors.items()}
        return replace(chain, tensors=tensors)


def _last_storing(stages: Sequence[Sequence[KernelCall]], output: str) -> int:
    """The stage that stores an output, -1 if none does."""
    found = [
        i for i, calls in enumerate(stages) if any(output in c.tensors.values() for c in calls)
    ]
    return max(found, default=-1)


def shape_of(graph: Graph, name: str) -> Shape:
    """The shape of a value. Raises: PlanError if its rank is unknown."""
    tensor = graph.tensor(name)
    if tensor is None or tensor.shape is None:
        raise PlanError(f"value {name!r} has no known shape")
    return tensor.shape
