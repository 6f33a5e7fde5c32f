"""Executor: runs one plan. Owns its buffers, bind groups and staging; made once per plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine import schedule as tasks
from engine.bind import Binder, Bound, Chosen
from engine.dims import Table, evaluate, symbols_of
from engine.errors import DeviceError, EngineError, PlanError
from engine.ir import Array, Graph
from engine.layout import RangeError, Storage
from engine.plan import Dispatch, Plan
from engine.runtime.constants import ConstantStore
from engine.runtime.control import run_control_flow
from engine.runtime.device import READBACK, REPEAT_NBYTES, STORAGE, UNIFORM, Device, Pipeline
from engine.runtime.host import HostNode
from engine.runtime.timing import CallTimes
from engine.runtime.values import DeviceValue, int_of

MAX_SUBMIT_NS = 200_000_000
"""Most predicted time of a submit: watchdogs of phones and of Windows end what takes seconds."""


class WideInputError(EngineError):
    """An int64 value to be uploaded does not fit int32; `name` is the value."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"value {name!r}: {message}")
        self.name = name


RunBody = Callable[[Graph, Mapping[str, Any], Callable[[str], Any], Mapping[str, int]], list[Any]]
"""Runs a body: graph, its inputs, how to get a capture, the sizes bound around it."""


@dataclass
class ExecutionContext:
    """State of one call.

    Attributes:
        host: values on the host by name.
        external: values in buffers that do not belong to the plan: device inputs and outputs.
        binding: the symbols bound so far.
        bound: the numbers of each epoch bound so far.
        times: where the time goes.
        uses: how often each host value is still read.
        grown: for outputs that grow in place, the input whose buffer they are in.
        wanted: values of GPU buffers that are needed on the host.
        encoder, compute: the command encoder and compute pass being recorded, if any.
        on_device: outputs that stay on the device.
        arrived: inputs that lie on the device, as values.
        recorded_ns: predicted time of the dispatches recorded since the last submit.
        chosen, shapes: what the epochs bound so far say, together.
        submitted: downloads that were encoded and not yet collected.
    """

    host: dict[str, Any]
    external: dict[str, Any]
    binding: dict[str, int]
    times: CallTimes
    bound: list[Bound] = field(default_factory=list)
    uses: dict[str, int] = field(default_factory=dict)
    grown: dict[str, DeviceValue] = field(default_factory=dict)
    wanted: frozenset[str] = frozenset()
    on_device: frozenset[str] = frozenset()
    arrived: dict[str, DeviceValue] = field(default_factory=dict)
    encoder: Any = None
    compute: Any = None
    recorded_ns: int = 0
    chosen: dict[int, Chosen] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)


class Executor:
    """Runs a plan.

    Args:
        plan: what to run.
        device: where; None for a plan without GPU steps.
        constants: the session's weights on the device.
        run_body: runs a body of a control flow node.
    """

    def __init__(
        self,
        plan: Plan,
        device: Device | None,
        constants: ConstantStore | None,
        run_body: RunBody,
    ) -> None:
        self.plan = plan
        self.device = device
        self.constants = constants
        self.run_body = run_body
        self.binder = Binder(plan)
        self._slots: list[Any] = [None] * len(plan.memory.slots)
        self._fixed: dict[str, Any] = {}
        self._staging: dict[str, Any] = {}
        self._groups: dict[tuple[int, int], tuple[tuple[int, ...], Pipeline, Any]] = {}
        self._params: Any = None
        self._written: dict[int, bytes] = {}
        self._dispatches = plan.dispatches
        self._turns = _turns(plan)
        self._uses = _host_uses(plan)
        self._steps = tuple(
            HostNode(plan, s.node) if isinstance(s, tasks.RunCpu) else s for s in plan.steps
        )
        self._host_reads = frozenset(
            plan.root(n) for s in plan.steps if isinstance(s, tasks.RunCpu) for n in s.node.reads
        )
        self._lengths = {
            a.grown: Table((plan.shape(a.grown)[a.axis],)) for a in plan.appends.values()
        }
        self._constants = _owners(v.constant for v in plan.graph.values.values())
        self._bound_cache: dict[tuple[Any, ...], Bound] = {}
        self.places: dict[str, str] | None = None
        """Where the values of calls were made, "gpu" or "cpu": keys of nodes, and inputs that were
        uploaded. None before a call; cleared by whoever reads it."""

    @property
    def nbytes(self) -> int:
        """Bytes of the activation buffers on the device."""
        return sum(int(b.size) for b in self._slots if b is not None)

    def run(
        self,
        feeds: Mapping[str, Any],
        binding: Mapping[str, int],
        outputs: Collection[str],
        on_device: Collection[str] = (),
    ) -> tuple[dict[str, Any], CallTimes]:
        """Values of `outputs` by name; those in `on_device` as DeviceValue.

        Raises: EngineError of the kinds that the class docstrings of `engine.errors` describe.
        """
        start = time.perf_counter()
        host = {n: v for n, v in feeds.items() if not isinstance(v, DeviceValue)}
        context = ExecutionContext(host, {}, dict(binding), CallTimes(), uses=dict(self._uses))
        self._place_device_inputs(context, feeds)
        self._note(context.external, "gpu")
        context.wanted = self._host_reads | {
            self.plan.root(n) for n in outputs if n not in on_device
        }
        context.on_device = frozenset(on_device)
        context.arrived = {n: v for n, v in feeds.items() if isinstance(v, DeviceValue)}
        self._bind(context, 0)
        dispatch = 0
        with np.errstate(all="ignore"):
            for step in self._steps:
                if isinstance(step, HostNode):
                    self._run_host(context, step)
                elif isinstance(step, Dispatch):
                    turns = self._turns.get(dispatch, ())
                    if turns:
                        self._encode(context, turns)
                    dispatch += 1
                else:
                    self._step(context, step)
        results = {n: self._result(context, n, n in on_device) for n in outputs}
        _disown(results, self._constants | _owners(feeds.values()))
        context.times.total = time.perf_counter() - start
        return results, context.times

    def _note(self, names: Collection[str], place: str) -> None:
        if self.places is None:
            self.places = {}
        for name in names:
            self.places.setdefault(name, place)

    def _place_device_inputs(self, context: ExecutionContext, feeds: Mapping[str, Any]) -> None:
        """Buffers of the inputs that are on the device; those that grow get the room they need."""
        for append in self.plan.appends.values():
            length = self._lengths[append.grown].evaluate(context.binding)[0]
            value = feeds[append.past].with_room(append.axis, length)
            value.filled.count = length
            context.binding[append.capacity] = int_of(value.storage.capacity)
            context.external[append.past] = context.external[append.grown] = value.buffer
            context.grown[append.grown] = value
        for name, value in feeds.items():
            if isinstance(value, DeviceValue) and name not in context.external:
                storage = self.plan.storages.get(name)
                packing = storage.packing if storage is not None else value.storage.packing
                context.external[name] = value.packed(packing).buffer

    def _step(self, context: ExecutionContext, step: Any) -> None:
        match step:
            case tasks.Upload(value):
                self._upload(context, value)
            case tasks.Download(value):
                if value in context.wanted:
                    self._download(context, value)
            case tasks.Submit():
                self._submit(context)
            case tasks.Wait(values):
                self._collect(context, values)
            case tasks.Bind(symbols):
                for symbol, value, axis in symbols:
                    context.binding[symbol] = int(np.shape(self._host(context, value))[axis])
                    self._release(context, value)
                self._bind(context, len(context.bound))
            case _:
                raise PlanError(f"there is no way to run {step}")

    def _bind(self, context: ExecutionContext, number: int) -> None:
        with context.times.phase("bind"):
            key = (number, tuple(sorted(context.binding.items())))
            bound = self._bound_cache.get(key)
            if bound is None:
                bound = self.binder.bind(number, context.binding)
                if len(self._bound_cache) >= 64:
                    self._bound_cache.pop(next(iter(self._bound_cache)))
                self._bound_cache[key] = bound
                if number == 0 and len(self._bound_cache) > len(self.binder.epochs):
                    self._compile_all()
            context.bound.append(bound)
            context.chosen.update(bound.chosen)
            context.shapes.update(bound.shapes)
            if self.device is not None:
                self._prepare_buffers(self.device, bound)
            self._reserve_outputs(context)

    def _compile_all(self) -> None:
        """Compiles every variant: sizes vary, so any of them may be wanted by the next call."""
        if self.device is not None:
            for kernel in self.plan.kernels:
                self.device.pipeline(kernel)

    def _prepare_buffers(self, device: Device, bound: Bound) -> None:
        for slot, nbytes in bound.slot_nbytes.items():
            buffer = self._slots[slot]
            if buffer is None or buffer.size < nbytes:
                self._slots[slot] = device.buffer(f"slot {slot}", nbytes, STORAGE)
        if bound.params and self._written.get(bound.params_offset) != bound.params:
            if self._params is None:
                self._params = device.buffer("params", self.binder.params_nbytes, UNIFORM)
            device.write(self._params, bound.params, bound.params_offset)
            self._written[bound.params_offset] = bound.params

    def _reserve_outputs(self, context: ExecutionContext) -> None:
        """Gives outputs that stay on the device buffers of their own, once sizes are known."""
        for name in context.on_device:
            root = self.plan.root(name)
            if root in self.plan.memory.slot_of and root not in context.external:
                if root not in context.shapes:
                    continue
                nbytes = self._storage(root).nbytes(context.shapes[root])
                context.external[root] = self._device().buffer(name, int(nbytes))  # type: ignore[arg-type]

    def _device(self) -> Device:
        if self.device is None:
            raise DeviceError("this session has no GPU device")
        return self.device

    def _storage(self, name: str) -> Storage:
        return self.plan.storages[name]

    def _buffer(self, context: ExecutionContext, name: str) -> Any:
        """The buffer that holds `name` in this call."""
        found = context.external.get(name)
        if found is not None:
            return found
        slot = self.plan.memory.slot_of.get(name)
        if slot is not None:
            return self._slots[slot]
        if name not in self._fixed:
            self._fixed[name] = self._constant(name)
        return self._fixed[name]

    def _constant(self, name: str) -> Any:
        if self.constants is None:
            raise DeviceError("this session has no GPU device")
        derived = self.plan.derived.get(name)
        source = derived.source if derived is not None else name
        array = self.plan.graph.constant(source)
        if array is None:
            raise PlanError(f"no buffer holds {name!r}")
        if derived is not None:
            return self.constants.buffer(array, self._storage(name), derived.recipe, derived.make)
        return self.constants.buffer(array, self._storage(name))

    def _upload(self, context: ExecutionContext, name: str) -> None:
        if name in context.arrived or self.plan.graph.constant(name) is not None:
            return
        array = np.asarray(self._host(context, name))
        with context.times.phase("upload"):
            try:
                words = self._storage(name).to_device(array)
            except RangeError as error:
                raise WideInputError(name, str(error)) from error
            self._device().write(self._buffer(context, name), words)
            context.times.uploaded_nbytes += words.nbytes
        self._note((name,), "gpu")
        self._release(context, name)

    def _encode(self, context: ExecutionContext, turns: Sequence[int]) -> None:
        """Records dispatches, in turn for each repetition."""
        chosen = [context.chosen[index] for index in turns]
        for repetition in range(max(c[2] for c in chosen)):
            for index, (_, grid, repeats, predicted_ns) in zip(turns, chosen, strict=True):
                if grid is None or repetition >= repeats:
                    continue
                if context.recorded_ns and context.recorded_ns + predicted_ns > MAX_SUBMIT_NS:
                    self._submit(context)
                context.recorded_ns += predicted_ns
                self._record(context, index, grid, repetition)

    def _record(
        self,
        context: ExecutionContext,
        index: int,
        grid: tuple[int, int, int],
        repetition: int,
    ) -> None:
        choice = context.chosen[index][0]
        dispatch = self._dispatches[index]
        with context.times.phase("encode"):
            variant = dispatch.variants[choice]
            buffers = [self._buffer(context, name) for name in variant.values]
            uids = tuple(b.uid for b in buffers)
            found = self._groups.get((index, choice))
            if found is None or found[0] != uids:
                made = self._make_group(index, choice, variant.kernel, buffers)
                found = self._groups[index, choice] = (uids, *made)
            if context.compute is None:
                self._open(context)
                context.compute = context.encoder.begin_compute_pass()
            _, pipeline, group = found
            context.compute.set_pipeline(pipeline.pipeline)
            offsets = [repetition * REPEAT_NBYTES] if pipeline.kernel.repeats else []
            context.compute.set_bind_group(0, group, offsets)
            context.compute.dispatch_workgroups(*grid)
            context.times.dispatches += 1
            self._note(dispatch.nodes, "gpu")

    def _make_group(
        self, index: int, choice: int, kernel: int, buffers: list[Any]
    ) -> tuple[Pipeline, Any]:
        device = self._device()
        pipeline = device.pipeline(self.plan.kernels[kernel])
        offset = self.binder.params_offsets[index, choice]
        group = device.bind_group(pipeline, buffers, self._params, offset)
        return pipeline, group

    def _open(self, context: ExecutionContext) -> None:
        if context.encoder is None:
            device = self._device()
            device.require()
            context.encoder = device.wgpu.create_command_encoder()

    def _close_pass(self, context: ExecutionContext) -> None:
        if context.compute is not None:
            context.compute.end()
            context.compute = None

    def _download(self, context: ExecutionContext, name: str) -> None:
        shape = context.shapes[name]
        if 0 in shape:
            context.host[name] = np.empty(shape, self.plan.tensor(name).dtype.numpy)
            return
        self._close_pass(context)
        self._open(context)
        nbytes = int(self._storage(name).nbytes(shape))  # type: ignore[arg-type]
        staging = self._staging.get(name)
        if staging is None or staging.size < nbytes:
            staging = self._staging[name] = self._device().buffer(f"read {name}", nbytes, READBACK)
        source = self._buffer(context, name)
        context.encoder.copy_buffer_to_buffer(source, 0, staging, 0, nbytes)
        context.submitted.append(name)

    def _submit(self, context: ExecutionContext) -> None:
        self._close_pass(context)
        if context.encoder is None:
            return
        with context.times.phase("encode"):
            encoder, context.encoder = context.encoder, None
            context.recorded_ns = 0
            context.times.submits += 1
            self._device().submit(encoder)

    def _collect(self, context: ExecutionContext, values: tuple[str, ...]) -> None:
        for name in values:
            if name not in context.submitted:
                continue
            staging = self._staging[name]
            with context.times.phase("wait"), self._device().guarded(f"reading {name!r}"):
                staging.map_sync("READ")
            try:
                with context.times.phase("download"):
                    context.host[name] = self._read(context, name, staging)
            finally:
                staging.unmap()
            context.submitted.remove(name)

    def _read(self, context: ExecutionContext, name: str, staging: Any) -> Array:
        shape = context.shapes[name]
        nbytes = int(self._storage(name).nbytes(shape))  # type: ignore[arg-type]
        words = staging.read_mapped(0, nbytes, copy=False)
        context.times.downloaded_nbytes += nbytes
        return self._storage(name).from_device(words, self.plan.tensor(name).dtype, shape)

    def _host(self, context: ExecutionContext, name: str) -> Any:
        """A value on the host: computed, constant, bound sizes, or a view of such a one."""
        if name in context.host:
            return context.host[name]
        constant = self.plan.graph.constant(name)
        if constant is not None:
            return constant
        for bound in context.bound:
            if name in bound.sizes:
                return bound.sizes[name]
        if name in context.arrived:
            with context.times.phase("download"):
                context.host[name] = context.arrived[name].numpy()
            context.times.downloaded_nbytes += context.host[name].nbytes
            return context.host[name]
        root = self.plan.root(name)
        if root == name:
            raise PlanError(f"value {name!r} is not on the host")
        return np.asarray(self._host(context, root)).reshape(context.shapes[name])

    def _run_host(self, context: ExecutionContext, step: HostNode) -> None:
        host, inputs = context.host, []
        for name, constant in step.inputs:
            if constant is not None or not name:
                inputs.append(constant)
            elif name in host:
                inputs.append(host[name])
            else:
                inputs.append(self._host(context, name))
        start = time.perf_counter()
        if step.control_flow:
            outputs = self._compute(context, step, inputs)
        for name in step.frees:
            self._release(context, name)
        if not step.control_flow:
            outputs = self._compute(context, step, inputs)
        context.times.add("host", time.perf_counter() - start)
        for index, name in step.outputs:
            host[name] = outputs[index]
        if self.places is None:
            self.places = {}
        self.places.setdefault(step.node.key, "cpu")

    def _release(self, context: ExecutionContext, name: str) -> None:
        left = context.uses.get(name, 0) - 1
        context.uses[name] = left
        if left == 0:
            context.host.pop(name, None)

    def _compute(self, context: ExecutionContext, step: HostNode, inputs: list[Any]) -> list[Any]:
        node = step.node
        try:
            if step.control_flow:
                return run_control_flow(
                    node,
                    inputs,
                    lambda body, feeds: self.run_body(
                        body, feeds, lambda name: self._host(context, name), context.binding
                    ),
                    lambda name: self._known_shape(context, name),
                )
            return step.compute(inputs, context.uses)
        except EngineError:
            raise
        except Exception as error:
            shapes = ", ".join(_describe(i) for i in inputs)
            raise EngineError(
                f"{node.op_type} {node.name or node.key!r} failed on ({shapes}): {error}"
            ) from error

    def _known_shape(self, context: ExecutionContext, name: str) -> tuple[int, ...] | None:
        """The shape of a value as far as it is bound, with 0 for what is open."""
        tensor = self.plan.graph.tensor(name)
        if tensor is None or tensor.shape is None:
            return None
        known = context.binding.keys()
        sizes = (
            evaluate(d, context.binding) if symbols_of(d) <= known else 0 for d in tensor.shape
        )
        return tuple(sizes)

    def _result(self, context: ExecutionContext, name: str, keep: bool) -> Any:
        if not keep:
            return self._host(context, name)
        tensor = self.plan.graph.tensor(name)
        root = self.plan.root(name)
        if tensor is None:
            raise EngineError(f"output {name!r} is not a tensor, so it cannot stay on the device")
        if name in context.grown:
            return replace(context.grown[name], shape=context.shapes[name])
        if root in context.external and name in context.shapes and root not in context.grown:
            buffer, shape = context.external[root], context.shapes[name]
            storage = self.plan.storages.get(root) or context.arrived[root].contiguous().storage
            return DeviceValue(self._device(), buffer, storage, tensor.dtype, shape)
        array = np.asarray(self._host(context, name))
        return DeviceValue.from_numpy(self._device(), array, tensor.dtype)


def _owners(values: Iterable[Any]) -> frozenset[int]:
    """Ids of the arrays that own the memory of those among `values`."""
    return frozenset(id(_owner(v)) for v in values if isinstance(v, np.ndarray))


def _disown(results: dict[str, Any], owners: frozenset[int]) -> None:
    """Copies arrays that share memory with `owners` or each other: callers own results."""
    taken = set(owners)
    for name, value in results.items():
        if isinstance(value, np.ndarray):
            if id(_owner(value)) in taken:
                results[name] = value = value.copy()
            taken.add(id(_owner(value)))


def _owner(array: Array) -> Array:
    """The array whose memory `array` is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _describe(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    array = np.asarray(value)
    return f"{array.dtype}{list(array.shape)}"


def _turns(plan: Plan) -> dict[int, tuple[int, ...]]:
    """For each dispatch that is recorded first of several that take turns, all of them."""
    found: dict[int, tuple[int, ...]] = {}
    before: tuple[str, ...] | None = None
    first = index = 0
    for step in plan.steps:
        nodes = None
        if isinstance(step, Dispatch):
            if any(plan.kernels[v.kernel].repeats for v in step.variants):
                nodes = step.nodes
            if nodes is None or nodes != before:
                first = index
            found[first] = (*found.get(first, ()), index)
            index += 1
        before = nodes
    return found


def _host_uses(plan: Plan) -> dict[str, int]:
    """How often each host value is read, outputs once more, so that it can be dropped in time."""
    uses: dict[str, int] = {}
    for step in plan.steps:
        if isinstance(step, tasks.RunCpu):
            for name in step.node.reads:
                root = plan.root(name)
                uses[root] = uses.get(root, 0) + 1
        elif isinstance(step, tasks.Upload):
            uses[step.value] = uses.get(step.value, 0) + 1
        elif isinstance(step, tasks.Bind):
            for _, value, _ in step.symbols:
                uses[value] = uses.get(value, 0) + 1
    for name in plan.graph.outputs:
        root = plan.root(name)
        uses[root] = uses.get(root, 0) + 1
    return uses
