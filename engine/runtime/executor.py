"""Executor: runs the steps of one plan in order, host nodes itself; made once per plan."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from engine import schedule as tasks
from engine.bind import Binder, Bound
from engine.checks import LimitError
from engine.dims import Table, evaluate, symbols_of
from engine.errors import EngineError, PlanError
from engine.ir import Array, Graph
from engine.layout import RangeError
from engine.plan import Dispatch, Plan, Step
from engine.runtime.constants import ConstantStore
from engine.runtime.context import ExecutionContext, RunBody, WideInputError
from engine.runtime.control import run_control_flow
from engine.runtime.device import Device
from engine.runtime.host import HostNode, described, last_reads, numpy_threads
from engine.runtime.indices import index_reads
from engine.runtime.interrupts import is_interrupt
from engine.runtime.probe import Observed, Probe
from engine.runtime.recorder import Recorder
from engine.runtime.recording import Kind, Recording
from engine.runtime.timing import CallTimes
from engine.runtime.values import DeviceValue, int_of

log = logging.getLogger(__name__)

_Act = Callable[["Executor", ExecutionContext, Any], None]
"""A method of `Executor` that runs a step of some kind in a call."""


class Executor:
    """Runs a plan.

    Args:
        plan: what to run.
        device: where; None for a plan without GPU steps.
        constants: the session's weights on the device.
    """

    def __init__(self, plan: Plan, device: Device | None, constants: ConstantStore | None) -> None:
        self.plan = plan
        self.device = device
        self.binder = Binder(plan)
        self._store = constants
        self.recorder = self._new_recorder()
        self._running = False
        self._acts = _acts_of(plan)
        on_host = [nodes for act, nodes in self._acts if act is Executor._run_nodes]
        self._on_host = {node.key: "cpu" for nodes in on_host for node in nodes}
        self._threads = numpy_threads(len(self._on_host))
        narrow = any(storage.narrow for storage in plan.storages.values())
        self._may_warn = bool(self._on_host) or narrow
        """Whether NumPy computes here, or converts floats to types that do not hold all of them."""
        self._host_reads = frozenset(
            plan.root(n) for s in plan.steps if isinstance(s, tasks.RunCpu) for n in s.node.reads
        )
        self._lengths = {
            a.grown: Table((plan.shape(a.grown)[a.axis],)) for a in plan.appends.values()
        }
        self._index_reads = index_reads(plan)
        self._outputs = frozenset(plan.graph.outputs)
        self._constants = _owners(v.constant for v in plan.graph.values.values())
        self._bound_cache: dict[tuple[Any, ...], Bound] = {}
        self.places: dict[str, str] | None = None
        """Where the values of calls were made, "gpu" or "cpu": keys of nodes, and inputs that were
        uploaded. None before a call; cleared by whoever reads it."""

    @property
    def nbytes(self) -> int:
        """Bytes of the activation buffers on the device."""
        return self.recorder.nbytes

    def run(
        self,
        feeds: Mapping[str, Any],
        binding: Mapping[str, int],
        outputs: Collection[str],
        run_body: RunBody,
        on_device: Collection[str] = (),
        recording: Recording | None = None,
        probe: Probe | None = None,
    ) -> tuple[dict[str, Any], CallTimes]:
        """Values of `outputs` by name; those in `on_device` as DeviceValue.

        `run_body` runs a body of a control flow node.

        Raises: EngineError of the kinds that the class docstrings of `engine.errors` describe.
        """
        start = time.perf_counter()
        if self._running and self.device is not None:
            log.info("a call was cut short: the next one gets buffers and commands of its own")
            self.recorder = self._new_recorder()
        self._running = True
        host = {n: v for n, v in feeds.items() if not isinstance(v, DeviceValue)}
        context = ExecutionContext(host, {}, dict(binding), CallTimes(), run_body)
        context.recording, context.probe = recording, probe
        if self.device is not None:
            self._place_device_inputs(context, feeds)
            if context.external:
                self._note(dict.fromkeys(context.external, "gpu"))
            context.wanted = self._host_reads | {
                self.plan.root(n) for n in outputs if n not in on_device
            }
            context.on_device = frozenset(on_device)
        try:
            self._bind(context, 0)
        except EngineError:  # sizes or memory are refused before anything is begun
            self._running = False
            raise
        if self._may_warn:
            # what NumPy ignores is part of the context, which ends however the steps do
            copy_context().run(self._run_quietly, context)
        else:
            self._run_all(context)
        self.places = self.places | self._on_host if self.places else self._on_host
        results = {n: self._result(context, n, n in on_device) for n in outputs}
        sizes = (array for bound in context.bound for array in bound.sizes.values())
        _disown(results, self._constants, (*feeds.values(), *sizes))
        watched = recording is not None or probe is not None
        if not watched and not on_device and results.keys() == self._outputs:
            self.recorder.learn(context)
        self._running = False
        context.times.total = time.perf_counter() - start
        return results, context.times

    def _new_recorder(self) -> Recorder:
        """The GPU side, as before the first call.

        What raised in a call, a signal's handler as well, may have come between any two steps: a
        buffer may be mapped, or written and not noted. Such a recorder is not used again.
        """
        return Recorder(self.plan, self.binder, self.device, self._store)

    def _run_quietly(self, context: ExecutionContext) -> None:
        with np.errstate(all="ignore"), self._threads:
            self._run_all(context)

    def _run_all(self, context: ExecutionContext) -> None:
        for act, what in self._acts:
            act(self, context, what)

    def _note(self, places: Mapping[str, str]) -> None:
        self.places = {**places, **(self.places or {})}

    def _place_device_inputs(self, context: ExecutionContext, feeds: Mapping[str, Any]) -> None:
        """Buffers of the inputs that are on the device; those that grow get the room they need."""
        for append in self.plan.appends.values():
            length = self._lengths[append.grown].evaluate(context.binding)[0]
            most = feeds[append.past].most_room(append.axis)
            if length > most:
                limit = f"{length} are needed on axis {append.axis}, and a binding holds {most}"
                raise LimitError(limit, (append.grown,))
            value = feeds[append.past].with_room(append.axis, length)
            value.filled.count = length
            context.binding[append.capacity] = int_of(value.storage.capacity)
            context.external[append.past] = context.external[append.grown] = value.buffer
            context.grown[append.grown] = value
        for name, value in feeds.items():
            if not isinstance(value, DeviceValue):
                continue
            if name not in context.external:
                storage = self.plan.storages.get(name)
                packing = storage.packing if storage is not None else value.storage.packing
                value = value.packed(packing)
                context.external[name] = value.buffer
            context.arrived[name] = value

    def _encode(self, context: ExecutionContext, number: int) -> None:
        """Records all dispatches up to the next step of another kind: one of `batches`."""
        self._note(self.recorder.encode(context, number))

    def _download(self, context: ExecutionContext, name: str) -> None:
        if name in context.wanted and name not in context.grown:
            self.recorder.download(context, name)

    def _submit(self, context: ExecutionContext, _: object) -> None:
        self.recorder.submit(context)

    def _collect(self, context: ExecutionContext, names: tuple[str, ...]) -> None:
        self.recorder.collect(context, names)

    def _drop(self, context: ExecutionContext, names: tuple[str, ...]) -> None:
        """Forgets values on the host that nothing reads any more."""
        for name in names:
            context.host.pop(name, None)

    def _bind_symbols(
        self, context: ExecutionContext, symbols: Sequence[tuple[str, str, int]]
    ) -> None:
        for symbol, value, axis in symbols:
            context.binding[symbol] = int(np.shape(self._host(context, value))[axis])
        self._bind(context, len(context.bound))

    def _bind(self, context: ExecutionContext, number: int) -> None:
        start_ns = time.perf_counter_ns()
        key = (number, tuple(sorted(context.binding.items())))
        bound = self._bound_cache.get(key)
        if bound is None:
            bound = self.binder.bind(number, context.binding)
            if len(self._bound_cache) >= 64:
                self._bound_cache.pop(next(iter(self._bound_cache)))
            self._bound_cache[key] = bound
            if number == 0 and len(self._bound_cache) > len(self.binder.epochs):
                self.recorder.compile_all()
        context.bound.append(bound)
        context.chosen = {**context.chosen, **bound.chosen} if number else bound.chosen
        context.shapes = {**context.shapes, **bound.shapes} if number else bound.shapes
        if self.device is not None:
            self.recorder.prepare_buffers(bound)
            self.recorder.reserve_outputs(context)
        context.times.add("bind", (time.perf_counter_ns() - start_ns) / 1e9)
        if context.recording is not None:
            context.recording.add("bind", "bind", start_ns, self.plan)

    def _upload(self, context: ExecutionContext, name: str) -> None:
        if name in context.arrived or self.plan.graph.constant(name) is not None:
            return
        array = np.asarray(self._host(context, name))
        if array.shape != context.shapes.get(name, array.shape):
            raise EngineError(
                f"{name!r} was computed as {described(array)}, and inference says "
                f"{list(context.shapes[name])}: the operands of its node do not fit each other"
            )
        start_ns = time.perf_counter_ns()
        with context.times.phase("upload"):
            for read in self._index_reads.get(name, ()):
                read.check(array, context.binding)
            try:
                words = self.plan.storages[name].to_device(array)
            except RangeError as error:
                raise WideInputError(name, str(error)) from error
            self.recorder.write(context, name, words)
            context.times.uploaded_nbytes += words.nbytes
        if context.recording is not None:
            context.recording.add("upload", name, start_ns, self.plan, nbytes=words.nbytes)
        self._note({name: "gpu"})

    def _host(self, context: ExecutionContext, name: str) -> Any:
        """A value on the host: computed, constant, bound sizes, or a view of such a one."""
        if name in context.host:
            return context.host[name]
        root = self.plan.root(name)
        if root in context.host:
            return np.asarray(context.host[root]).reshape(context.shapes[name])
        constant = self.plan.graph.constant(name)
        if constant is not None:
            return constant
        for bound in context.bound:
            if name in bound.sizes:
                return bound.sizes[name]
        value = _on_device(context, name)
        if value is not None:
            start_ns = time.perf_counter_ns()
            with context.times.phase("download"):
                context.host[name] = value.numpy()
            nbytes = context.host[name].nbytes
            context.times.downloaded_nbytes += nbytes
            if context.recording is not None:
                context.recording.add("download", name, start_ns, self.plan, nbytes=nbytes)
            return context.host[name]
        if root == name:
            raise PlanError(f"value {name!r} is not on the host")
        return np.asarray(self._host(context, root)).reshape(context.shapes[name])

    def _run_nodes(self, context: ExecutionContext, nodes: Iterable[HostNode]) -> None:
        start_ns = time.perf_counter_ns()
        host, read = context.host, partial(self._host, context)
        watched = context.recording is not None or context.probe is not None
        for node in nodes:
            if watched:
                self._run_watched(context, node)
            elif node.control_flow:
                self._run_bodies(context, node)
            else:
                node.run(host, read)
        context.times.add("host", (time.perf_counter_ns() - start_ns) / 1e9)

    def _run_watched(self, context: ExecutionContext, node: HostNode) -> None:
        """Runs a node, and tells of it whoever records or observes the call."""
        host, read, recording, probe = (
            context.host,
            partial(self._host, context),
            context.recording,
            context.probe,
        )
        given = _given(node, host, read) if probe is not None else {}
        start_ns = time.perf_counter_ns()
        if node.control_flow:
            with ExitStack() as inside:
                for watching in (recording, probe):
                    if watching is not None:
                        inside.enter_context(watching.inside(node.key))
                self._run_bodies(context, node)
        else:
            node.run(host, read)
        if recording is not None:
            kind: Kind = "bodies" if node.control_flow else "node"
            more: Any = {"nodes": (node.key,), "binding": context.binding}
            recording.add(kind, node.node.op_type, start_ns, self.plan, **more)
        if probe is not None:
            made = {name: host[name] for _, name in node.outputs}.__getitem__
            nodes = (node.node,)
            probe.visit(Observed(self.plan, probe.path, nodes, (), given, made, context.binding))

    def _run_bodies(self, context: ExecutionContext, node: HostNode) -> None:
        host, read = context.host, partial(self._host, context)
        inputs = node.given(host, read)

        def run_body(body: Graph, feeds: Mapping[str, Any]) -> list[Any]:
            return context.run_body(body, feeds, read, context.binding)

        try:
            known = partial(self._known_shape, context)
            outputs = run_control_flow(node.node, inputs, run_body, known)
        except EngineError:
            raise
        except Exception as error:
            if is_interrupt(error):
                raise
            raise node.failure(inputs, error) from error
        for name in node.drops:
            host.pop(name, None)
        for index, name in node.outputs:
            host[name] = outputs[index]

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
            value = self._host(context, name)
            if isinstance(value, np.ndarray) and not value.flags.c_contiguous:
                return np.ascontiguousarray(value)  # as callers expect who read its memory
            return value
        tensor = self.plan.graph.tensor(name)
        root = self.plan.root(name)
        if tensor is None:
            raise EngineError(f"output {name!r} is not a tensor, so it cannot stay on the device")
        if name in context.grown:
            return _on_device(context, name)
        value = _on_device(context, root)
        if value is not None and name in context.shapes:
            return replace(value.contiguous(), shape=context.shapes[name], filled=None)
        if name in context.shapes and root in context.external:
            buffer, shape = context.external[root], context.shapes[name]
            storage = self.plan.storages[root]
            return DeviceValue(self.recorder.required(), buffer, storage, tensor.dtype, shape)
        array = np.asarray(self._host(context, name))
        try:
            return DeviceValue.from_numpy(self.recorder.required(), array, tensor.dtype)
        except RangeError as error:
            raise RangeError(f"output {name!r} cannot stay on the device: {error}") from error


def _on_device(context: ExecutionContext, name: str) -> DeviceValue | None:
    """A value in a buffer of the caller's: an input, or what grew in the buffer of one."""
    if name in context.grown:
        return replace(context.grown[name], shape=context.shapes[name])
    return context.arrived.get(name)


def _given(node: HostNode, host: Mapping[str, Any], read: Callable[[str], Any]) -> dict[str, Any]:
    """Copies of inputs that are not constant, for a probe: operators may reuse their memory."""
    found = {name: host[name] if name in host else read(name) for _, name in node.reads}
    return {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in found.items()}


def _owners(values: Iterable[Any]) -> frozenset[int]:
    """Ids of the arrays that own the memory of those among `values`."""
    return frozenset(id(_owner(v)) for v in values if isinstance(v, np.ndarray))


def _disown(results: dict[str, Any], constants: Collection[int], others: Iterable[Any]) -> None:
    """Copies arrays that share memory with constants (ids of their owners), others or each other:
    callers own results."""
    taken = set(_owners(others))
    for name, value in results.items():
        if isinstance(value, np.ndarray):
            owner = id(_owner(value))
            if owner in taken or owner in constants:
                results[name] = value = value.copy()
                owner = id(value)
            taken.add(owner)


def _owner(array: Array) -> Array:
    """The array whose memory `array` is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _acts_of(plan: Plan) -> tuple[tuple[_Act, Any], ...]:
    """The steps of a plan as they run: what is called for each, and with what. Host nodes, and
    dispatches, next to each other are one."""
    acts: list[tuple[_Act, Any]] = []
    dropped = last_reads(plan)
    on_host: list[HostNode] = []
    batches = 0
    for index, step in enumerate(plan.steps):
        if isinstance(step, tasks.RunCpu):
            on_host.append(HostNode(plan, step.node, dropped.get(index, ())))
            continue
        if on_host:
            acts.append((Executor._run_nodes, tuple(on_host)))
            on_host.clear()
        if not isinstance(step, Dispatch):
            acts.append(_act_of(step))
            if index in dropped:
                acts.append((Executor._drop, dropped[index]))
        elif not acts or acts[-1][0] is not Executor._encode:
            acts.append((Executor._encode, batches))
            batches += 1
    if on_host:
        acts.append((Executor._run_nodes, tuple(on_host)))
    return tuple(acts)


def _act_of(step: Step) -> tuple[_Act, Any]:
    match step:
        case tasks.Upload(value):
            return Executor._upload, value
        case tasks.Download(value):
            return Executor._download, value
        case tasks.Submit():
            return Executor._submit, None
        case tasks.Wait(values):
            return Executor._collect, values
        case tasks.Bind(symbols):
            return Executor._bind_symbols, symbols
        case _:
            raise PlanError(f"there is no way to run {step}")
