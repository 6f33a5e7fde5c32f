"""Plan: everything a run needs as data, sizes still symbolic. Built here, bound in `bind.py`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine import costs
from engine import schedule as tasks
from engine.checks import Check, merged
from engine.codegen import generate
from engine.dims import Dim, Guard, at_least, product, symbol, symbols_of
from engine.errors import PlanError
from engine.fusion import Fusion, Group
from engine.ir import Array, Graph, Node, Shape, TensorType
from engine.layout import Storage, storage_of
from engine.memory import Interval, MemoryPlan, Slot, assign
from engine.ops import KernelCall, Lowering, definition, linear
from engine.partition import Partition
from engine.shader import Fused, Kernel, preprocess, render
from engine.target import Target

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Variant:
    """One way to run a dispatch.

    Attributes:
        when: guards under which it may run; all must hold.
        kernel: index into `Plan.kernels`.
        values: the value in each storage buffer, in binding order.
        params: the value of each uniform word, in order.
        grid: workgroups in x, y, z.
        trips: bound on the loop iterations of one invocation.
    """

    when: tuple[Guard, ...]
    kernel: int
    values: tuple[str, ...]
    params: tuple[Dim | float, ...]
    grid: tuple[Dim, Dim, Dim]
    trips: Dim


@dataclass(frozen=True)
class Dispatch:
    """One dispatch: the first variant whose guards hold runs; the last has none.

    Attributes:
        label: its operators.
        origin: names of the model's nodes that it computes.
        nodes: keys of the graph's nodes that it computes.
        outputs: values that it writes.
        flops, nbytes: operations, and bytes read and written, from which its time is predicted.
    """

    label: str
    origin: tuple[str, ...]
    nodes: tuple[str, ...]
    variants: tuple[Variant, ...]
    outputs: tuple[str, ...]
    flops: Dim = 0
    nbytes: Dim = 0


Step = (
    tasks.Upload | Dispatch | tasks.Download | tasks.Submit | tasks.Wait | tasks.RunCpu | tasks.Bind
)


@dataclass(frozen=True)
class Derived:
    """A constant computed from another one when it is uploaded, such as packed weights."""

    source: str
    recipe: str
    make: Callable[[Array], Array] = field(compare=False)


@dataclass(frozen=True)
class Append:
    """A Concat of two, computed by writing `new` behind `past` in the buffer of both.

    Attributes:
        past: graph input that stays on the device between calls.
        new: what is appended.
        grown: the Concat's output, returned on the device.
        axis: along which it grows.
    """

    past: str
    new: str
    grown: str
    axis: int

    @property
    def capacity(self) -> str:
        """The symbol for how many indices along `axis` the buffer has room for."""
        return f"{self.grown}:capacity"

    def storage(self, element: str) -> Storage:
        """How both lie in the buffer."""
        return Storage(element, layout="growing", axis=self.axis, capacity=symbol(self.capacity))


@dataclass(frozen=True)
class Plan:
    """How a graph runs on a device.

    Attributes:
        graph: after passes; nodes, types and constants are read from it.
        symbols: names bound from the inputs' shapes.
        guards: what the inputs' sizes must fulfil; a call that breaks one gets another plan.
        checks: what sizes must fulfil when they are bound; where they do not, nodes go to the CPU.
        steps: in order.
        kernels: rendered once each.
        roots: value to the value whose buffer it shares, for views.
        storages: of every value that is on the GPU at some time.
        slots: buffer index of each value that is neither constant nor a view, and their sizes.
        derived: constants computed from others, by name.
        sizes: values that are written when sizes are bound, never computed: name to its dims.
        scratch: types of buffers that only kernels see.
        appends: values that grow in place, by name of the grown value.
        checked_inputs: int64 inputs that are taken to fit int32; a call that breaks this gets
            another plan.
        binding: the sizes that decided partition and memory.
        profile: the rates by which times are predicted.
    """

    graph: Graph
    target: Target
    symbols: tuple[str, ...]
    guards: tuple[Guard, ...]
    checks: tuple[Check, ...]
    steps: tuple[Step, ...]
    kernels: tuple[Kernel, ...]
    roots: Mapping[str, str]
    storages: Mapping[str, Storage]
    memory: MemoryPlan
    derived: Mapping[str, Derived]
    sizes: frozenset[str]
    scratch: Mapping[str, TensorType]
    appends: Mapping[str, Append]
    checked_inputs: tuple[str, ...]
    partition: Partition
    fusion: Fusion
    binding: Mapping[str, int]
    profile: costs.DeviceProfile

    def root(self, name: str) -> str:
        """The value whose buffer `name` shares."""
        return self.roots.get(name, name)

    def tensor(self, name: str) -> TensorType:
        """Type of a value that may be on the GPU. Raises: PlanError if it is not a tensor."""
        found = self.scratch.get(name) or self.graph.tensor(name)
        if found is None:
            raise PlanError(f"value {name!r} is not a tensor of known type")
        return found

    def shape(self, name: str) -> Shape:
        """Shape of such a value. Raises: PlanError if its rank is unknown."""
        shape = self.tensor(name).shape
        if shape is None:
            raise PlanError(f"the rank of {name!r} is unknown")
        return shape

    @property
    def dispatches(self) -> tuple[Dispatch, ...]:
        return tuple(s for s in self.steps if isinstance(s, Dispatch))


def view_roots(graph: Graph, is_view: Callable[[Node], bool]) -> Mapping[str, str]:
    """For each view's output, the value whose buffer it shares in the end."""
    roots: dict[str, str] = {}
    for node in graph.nodes:
        if is_view(node):
            source = node.inputs[0]
            roots[node.outputs[0]] = roots.get(source, source)
    return roots


class _Lowerer:
    """Groups to dispatches: collects kernels, scratch values and derived constants."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        root: Callable[[str], str],
        appends: Mapping[str, Append],
    ) -> None:
        self.graph = graph
        self.target = target
        self.root = root
        self.appends = appends
        self.growing = {n: a for a in appends.values() for n in (a.past, a.grown)}
        self.kernels: dict[str, int] = {}
        self.rendered: list[Kernel] = []
        self.scratch: dict[str, TensorType] = {}
        self.derived: dict[str, Derived] = {}
        self.storages: dict[str, Storage] = {}

    def storage(self, name: str) -> Storage:
        if name not in self.storages:
            tensor = self.scratch.get(name) or self.graph.tensor(name)
            if tensor is None:
                raise PlanError(f"value {name!r} cannot be on the GPU")
            found = storage_of(tensor)
            append = self.growing.get(self.root(name))
            self.storages[name] = found if append is None else append.storage(found.element)
        return self.storages[name]

    def lower(self, group: Group) -> list[Dispatch]:
        if group.anchor is None:
            call = self._elementwise_call(group)
            return [self._dispatch(group, (call,), fuse=True)]
        if group.anchor.key in self.appends:
            call = self._append_call(self.appends[group.anchor.key])
            return [self._dispatch(group, (call,), fuse=False)]
        op = definition(group.anchor)
        if op is None or op.lower is None:
            raise PlanError(f"{group.label} has no kernel")
        view = Lowering(self.graph, group.anchor, self.target, self._new_scratch, self._new_derived)
        stages = op.lower(view)
        chained = len(group.nodes) > 1
        return [
            self._dispatch(group, stage, fuse=chained and index == len(stages) - 1)
            for index, stage in enumerate(stages)
        ]

    def _elementwise_call(self, group: Group) -> KernelCall:
        tensor = self.graph.tensor(group.nodes[0].outputs[0])
        if tensor is None or tensor.size is None:
            raise PlanError(f"{group.label} has no known size")
        size = tensor.size
        return KernelCall("elementwise", {}, {"size": size}, linear(-(-size // 4)))

    def _append_call(self, append: Append) -> KernelCall:
        past, new, grown = (_shape(self.graph, n) for n in (append.past, append.new, append.grown))
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

    def _new_derived(self, source: str, recipe: str, make: Callable[[Array], Array]) -> str:
        name = f"{source}:{recipe}"
        if name not in self.derived:
            self.derived[name] = Derived(source, recipe, make)
            constant = self.graph.constant(source)
            if constant is None:
                raise PlanError(f"{source!r} is not a constant, so nothing can be derived from it")
            dtype = self.graph.values[source].tensor
            if dtype is None:
                raise PlanError(f"{source!r} has no tensor type")
            self.scratch.setdefault(name, TensorType(dtype.dtype))
        return name

    def _dispatch(self, group: Group, stage: Sequence[KernelCall], fuse: bool) -> Dispatch:
        variants = tuple(self._variant(group, call, fuse) for call in stage)
        if variants[-1].when:
            raise PlanError(f"{group.label}: the last variant must hold for all sizes")
        kernels = [self.rendered[v.kernel] for v in variants]
        written = {
            value
            for kernel, variant in zip(kernels, variants, strict=True)
            for tensor, value in zip(kernel.tensors, variant.values, strict=True)
            if tensor.writable
        }
        keys = tuple(n.key for n in group.nodes)
        work = costs.dispatch_work(self.graph, group.nodes, (*group.inputs, *group.outputs))
        return Dispatch(group.label, group.origin, keys, variants, tuple(sorted(written)), *work)

    def _variant(self, group: Group, call: KernelCall, fuse: bool) -> Variant:
        tensors = dict(call.tensors)
        params = dict(call.params)
        fused = Fused(params=call.extra_params)
        elements = {n: self.storage(v).element for n, v in tensors.items()}
        if fuse:
            fused, more = self._fuse(group, call)
            tensors.update(more[0])
            params.update(more[1])
        kernel = render(
            group.label.replace(" ", ""),
            call.shader,
            elements,
            flags=call.flags,
            text=call.text,
            overrides=call.overrides,
            features=call.features,
            fused=fused,
            growing=[n for n, v in call.tensors.items() if self.storage(v).growing],
        )
        params.update(self._growing_params(kernel, tensors))
        missing = {name for name, _ in kernel.params} ^ set(params)
        if missing:
            raise PlanError(f"{call.shader}.wgsl and its lowering disagree on params {missing}")
        if len(kernel.tensors) > self.target.max_storage_buffers_per_shader_stage:
            raise PlanError(f"{group.label} binds {len(kernel.tensors)} storage buffers")
        if kernel.workgroup_nbytes > self.target.max_compute_workgroup_storage_size:
            raise PlanError(
                f"{group.label} uses {kernel.workgroup_nbytes} bytes of workgroup memory"
            )
        index = self.kernels.setdefault(kernel.key, len(self.rendered))
        if index == len(self.rendered):
            self.rendered.append(kernel)
        return Variant(
            call.when,
            index,
            tuple(self.root(tensors[t.name]) for t in kernel.tensors),
            tuple(params[name] for name, _ in kernel.params),
            call.grid,
            call.trips,
        )

    def _growing_params(self, kernel: Kernel, tensors: Mapping[str, str]) -> Mapping[str, Dim]:
        """Row and pitch of each tensor with room to grow."""
        found: dict[str, Dim] = {}
        for tensor in kernel.tensors:
            if tensor.growing:
                root = self.root(tensors[tensor.name])
                storage, shape = self.storage(root), _shape(self.graph, root)
                found[f"{tensor.name}_row"] = storage.row_size(shape)
                found[f"{tensor.name}_pitch"] = storage.pitch(shape)
        return found

    def _fuse(
        self, group: Group, call: KernelCall
    ) -> tuple[Fused, tuple[Mapping[str, str], Mapping[str, Dim | float]]]:
        anchor_output = None
        forms: tuple[bool, ...] = (True,)
        if group.anchor is not None:
            start = group.anchor.outputs[0]
            anchor_output = next(n for n, v in call.tensors.items() if v == start)
            body = preprocess(call.shader, call.flags, call.text)
            uses = {False: f"store_{anchor_output}(", True: f"store4_{anchor_output}("}
            forms = tuple(wide for wide, text in uses.items() if text in body)
        for name in (*group.inputs, *(n for node in group.nodes for n in node.writes)):
            self.storage(name)
        chain = generate(self.graph, group, self.storages, self.target, anchor_output, forms)
        fused = Fused(
            chain.fused.replaces,
            chain.fused.tensors,
            call.extra_params + chain.fused.params,
            chain.fused.functions,
            chain.fused.includes,
        )
        return fused, (chain.tensors, chain.params)


def _shape(graph: Graph, name: str) -> Shape:
    tensor = graph.tensor(name)
    if tensor is None or tensor.shape is None:
        raise PlanError(f"value {name!r} has no known shape")
    return tensor.shape


def build_plan(
    graph: Graph,
    target: Target,
    partition: Partition,
    fusion: Fusion,
    scheduled: Sequence[tasks.Task],
    *,
    roots: Mapping[str, str],
    sizes: frozenset[str],
    guards: Sequence[Guard],
    checks: Sequence[Check],
    symbols: Sequence[str],
    binding: Mapping[str, int],
    profile: costs.DeviceProfile,
    appends: Mapping[str, Append],
    checked_inputs: Sequence[str],
) -> Plan:
    """Lowers the scheduled groups, renders their kernels and assigns buffers.

    Raises: PlanError if a lowering breaks the contract of `KernelCall`; ShaderError for templates.
    """
    lowerer = _Lowerer(graph, target, lambda n: roots.get(n, n), appends)
    steps: list[Step] = []
    for task in scheduled:
        if isinstance(task, tasks.RunGpu):
            steps += lowerer.lower(task.group)
        else:
            if isinstance(task, (tasks.Upload, tasks.Download)):
                lowerer.storage(task.value)
            steps.append(task)
    fixed = {n for n, v in graph.values.items() if v.constant is not None} | set(lowerer.derived)
    fixed |= set(lowerer.growing)
    intervals = _intervals(graph, steps, lowerer, fixed)
    memory = _assign_by_epoch(intervals, epochs(symbols, steps), binding)
    limits = _limits(steps, {i.name: i.nbytes for i in intervals}, target)
    return Plan(
        graph,
        target,
        (*symbols, *(a.capacity for a in appends.values())),
        tuple(dict.fromkeys(guards)),
        merged([*checks, *limits]),
        tuple(steps),
        tuple(lowerer.rendered),
        roots,
        lowerer.storages,
        memory,
        lowerer.derived,
        sizes,
        lowerer.scratch,
        appends,
        tuple(checked_inputs),
        partition,
        fusion,
        dict(binding),
        profile,
    )


def _limits(steps: Sequence[Step], nbytes: Mapping[str, Dim], target: Target) -> list[Check]:
    """That every buffer of a dispatch may be bound."""
    limit = target.max_storage_buffer_binding_size
    found = []
    for step in steps:
        if isinstance(step, Dispatch):
            for name in sorted(_touched(step) & nbytes.keys()):
                why = f"{name!r} takes at most {limit / (1 << 20):.1f} MiB"
                found.append(Check(at_least(limit, nbytes[name], why), step.nodes))
    return found


def epochs(symbols: Sequence[str], steps: Sequence[Step]) -> Mapping[str, int]:
    """When each symbol is bound: 0 by the inputs, then one more with each `Bind` step."""
    found = dict.fromkeys(symbols, 0)
    count = 0
    for step in steps:
        if isinstance(step, tasks.Bind):
            count += 1
            found.update((symbol, count) for symbol, _, _ in step.symbols)
    return found


def _assign_by_epoch(
    intervals: Sequence[Interval], epoch_of: Mapping[str, int], binding: Mapping[str, int]
) -> MemoryPlan:
    """Slots for all values; only those whose sizes are bound together share one.

    A slot that grows when sizes are bound in mid-run would lose what an earlier value still needs.
    """
    groups: dict[int, list[Interval]] = {}
    for interval in intervals:
        bound = max((epoch_of.get(s, 0) for s in symbols_of(interval.nbytes)), default=0)
        groups.setdefault(bound, []).append(interval)
    plans = [assign(group, binding) for _, group in sorted(groups.items())]
    slot_of: dict[str, int] = {}
    slots: list[Slot] = []
    for plan in plans:
        slot_of.update((name, index + len(slots)) for name, index in plan.slot_of.items())
        base = len(slots)
        slots += [replace(s, index=s.index + base) for s in plan.slots]
    return MemoryPlan(
        slot_of,
        tuple(slots),
        sum(p.peak_nbytes for p in plans),
        sum(p.no_reuse_nbytes for p in plans),
        assign(intervals, binding).lower_bound_nbytes,
    )


def _intervals(
    graph: Graph, steps: Sequence[Step], lowerer: _Lowerer, fixed: set[str]
) -> list[Interval]:
    """When each value is in a buffer: from its first step to its last."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, step in enumerate(steps):
        for name in _touched(step):
            if name not in fixed:
                first.setdefault(name, index)
                last[name] = index
    intervals = []
    for name, start in first.items():
        tensor = lowerer.scratch.get(name) or graph.tensor(name)
        if tensor is None or tensor.shape is None:
            raise PlanError(f"value {name!r} has no known shape")
        nbytes = lowerer.storage(name).nbytes(tensor.shape)
        intervals.append(Interval(name, start, last[name], nbytes))
    return intervals


def _touched(step: Step) -> set[str]:
    if isinstance(step, Dispatch):
        return {name for v in step.variants for name in v.values}
    if isinstance(step, (tasks.Upload, tasks.Download)):
        return {step.value}
    return set()
