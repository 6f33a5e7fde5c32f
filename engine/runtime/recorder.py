"""Recorder: the GPU side of one plan: its buffers, bind groups and staging, and its commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.bind import Binder, Bound
from engine.errors import DeviceError, PlanError
from engine.ir import Array
from engine.layout import Storage
from engine.plan import Plan
from engine.runtime.constants import ConstantStore
from engine.runtime.context import ExecutionContext
from engine.runtime.device import READBACK, REPEAT_NBYTES, STORAGE, UNIFORM, Device, Pipeline
from engine.runtime.recording import Event, Recording

MAX_SUBMIT_NS = 200_000_000
"""Most predicted time of a submit: watchdogs of phones and of Windows end what takes seconds."""


@dataclass(frozen=True)
class _Group:
    """A bind group with its pipeline.

    Attributes:
        generation: that of the slots which it binds.
        external: for each value, the buffer of the call it was made for, or None for one of ours.
    """

    generation: int
    external: tuple[Any, ...]
    pipeline: Pipeline
    group: Any


class Recorder:
    """Records the dispatches and downloads of calls; made once per plan.

    Args:
        plan: what to record.
        binder: the plan's; it places the uniform words.
        device: where; None for a plan without GPU steps.
        constants: the session's weights on the device.
        note: is told the keys of nodes that were dispatched, and "gpu".
    """

    def __init__(
        self,
        plan: Plan,
        binder: Binder,
        device: Device | None,
        constants: ConstantStore | None,
        note: Callable[[Collection[str], str], None],
    ) -> None:
        self.plan = plan
        self.binder = binder
        self.device = device
        self.constants = constants
        self._note = note
        self._dispatches = plan.dispatches
        self._slots: list[Any] = [None] * len(plan.memory.slots)
        self._fixed: dict[str, Any] = {}
        self._staging: dict[str, Any] = {}
        self._groups: dict[tuple[int, int], _Group] = {}
        self._generation = 0
        self._params: Any = None
        self._written: dict[int, bytes] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the activation buffers on the device."""
        return sum(int(b.size) for b in self._slots if b is not None)

    @property
    def held_nbytes(self) -> int:
        """`nbytes`, and those of the staging and parameter buffers."""
        more = [*self._staging.values(), *([self._params] if self._params is not None else [])]
        return self.nbytes + sum(int(b.size) for b in more)

    def compile_all(self) -> None:
        """Compiles every variant: sizes vary, so any of them may be wanted by the next call."""
        if self.device is not None:
            for kernel in self.plan.kernels:
                self.device.pipeline(kernel)

    def prepare_buffers(self, bound: Bound) -> None:
        """Makes slots as large as the sizes just bound need them, and writes their parameters."""
        device = self.required()
        for slot, nbytes in bound.slot_nbytes.items():
            buffer = self._slots[slot]
            if buffer is None or buffer.size < nbytes:
                self._slots[slot] = device.buffer(f"slot {slot}", nbytes, STORAGE)
                self._generation += 1
        if bound.params and self._written.get(bound.params_offset) != bound.params:
            if self._params is None:
                self._params = device.buffer("params", self.binder.params_nbytes, UNIFORM)
            device.write(self._params, bound.params, bound.params_offset)
            self._written[bound.params_offset] = bound.params

    def reserve_outputs(self, context: ExecutionContext) -> None:
        """Gives outputs that stay on the device buffers of their own, once sizes are known."""
        for name in context.on_device:
            root = self.plan.root(name)
            if root in self.plan.memory.slot_of and root not in context.external:
                if root not in context.shapes:
                    continue
                nbytes = self._storage(root).nbytes(context.shapes[root])
                context.external[root] = self.required().buffer(name, int(nbytes))  # type: ignore[arg-type]

    def required(self) -> Device:
        """The device. Raises: DeviceError if the session has none."""
        if self.device is None:
            raise DeviceError("this session has no GPU device")
        return self.device

    def _storage(self, name: str) -> Storage:
        return self.plan.storages[name]

    def buffer(self, context: ExecutionContext, name: str) -> Any:
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

    def write(self, context: ExecutionContext, name: str, words: Array) -> None:
        """Uploads the buffer words of a value."""
        self.required().write(self.buffer(context, name), words)

    def encode(self, context: ExecutionContext, turns: Sequence[int]) -> None:
        """Records dispatches, in turn for each repetition."""
        chosen = [context.chosen[index] for index in turns]
        for repetition in range(max(c[2] for c in chosen)):
            for index, (_, grid, repeats, predicted_ns) in zip(turns, chosen, strict=True):
                if grid is None or repetition >= repeats:
                    continue
                if context.recorded_ns and context.recorded_ns + predicted_ns > MAX_SUBMIT_NS:
                    self.submit(context)
                context.recorded_ns += predicted_ns
                self._record(context, index, grid, repetition)

    def _record(
        self,
        context: ExecutionContext,
        index: int,
        grid: tuple[int, int, int],
        repetition: int,
    ) -> None:
        start = time.perf_counter()
        found = self._group(context, index, context.chosen[index][0])
        if context.recording is not None:
            self._time(context, context.recording, index, found, grid, repetition)
        else:
            if context.compute is None:
                self._open(context)
                context.compute = context.encoder.begin_compute_pass()
            _dispatch(context.compute, found, grid, repetition)
        context.times.dispatches += 1
        self._note(self._dispatches[index].nodes, "gpu")
        context.times.add("encode", time.perf_counter() - start)

    def _time(
        self,
        context: ExecutionContext,
        recording: Recording,
        index: int,
        found: _Group,
        grid: tuple[int, int, int],
        repetition: int,
    ) -> None:
        """Records a dispatch in a pass of its own, which is timed."""
        start_ns = time.perf_counter_ns()
        dispatch, device = self._dispatches[index], self.required()
        choice, _, repeats, _ = context.chosen[index]
        event = Event(
            "kernel",
            dispatch.label,
            start_ns,
            start_ns,
            self.plan,
            recording.path,
            dispatch.nodes,
            index,
            choice,
            grid,
            repeats,
            context.binding,
        )
        queries = recording.queries(device)
        if queries is None:
            self.submit(context)
        self._close_pass(context)
        self._open(context)
        number, writes = (0, {}) if queries is None else queries.begin()
        compute = context.encoder.begin_compute_pass(**writes)
        _dispatch(compute, found, grid, repetition)
        compute.end()
        if queries is not None:
            context.timed.append((event, number))
            recording.add("encode", "encode", start_ns, self.plan)
            return
        encoder, context.encoder = context.encoder, None
        begin_ns, end_ns = recording.submits(device).time(encoder)
        context.recorded_ns = 0
        context.times.submits += 1
        recording.events.append(replace(event, start_ns=begin_ns, end_ns=end_ns))

    def _group(self, context: ExecutionContext, index: int, choice: int) -> _Group:
        """The bind group of a dispatch, made anew only if a buffer is another one."""
        variant = self._dispatches[index].variants[choice]
        external: tuple[Any, ...] = ()
        if context.external:
            external = tuple(map(context.external.get, variant.values))
        found = self._groups.get((index, choice))
        if found is None or found.generation != self._generation or found.external != external:
            device = self.required()
            buffers = [self.buffer(context, name) for name in variant.values]
            pipeline = device.pipeline(self.plan.kernels[variant.kernel])
            offset = self.binder.params_offsets[index, choice]
            group = device.bind_group(pipeline, buffers, self._params, offset)
            found = _Group(self._generation, external, pipeline, group)
            self._groups[index, choice] = found
        return found

    def _open(self, context: ExecutionContext) -> None:
        if context.encoder is None:
            device = self.required()
            device.require()
            context.encoder = device.wgpu.create_command_encoder()

    def _close_pass(self, context: ExecutionContext) -> None:
        if context.compute is not None:
            context.compute.end()
            context.compute = None

    def download(self, context: ExecutionContext, name: str) -> None:
        """Records the copy of a value into its staging buffer."""
        shape = context.shapes[name]
        if 0 in shape:
            context.host[name] = np.empty(shape, self.plan.tensor(name).dtype.numpy)
            return
        self._close_pass(context)
        self._open(context)
        nbytes = int(self._storage(name).nbytes(shape))  # type: ignore[arg-type]
        staging = self._staging.get(name)
        if staging is None or staging.size < nbytes:
            staging = self._staging[name] = self.required().buffer(f"read {name}", nbytes, READBACK)
        source = self.buffer(context, name)
        context.encoder.copy_buffer_to_buffer(source, 0, staging, 0, nbytes)
        context.submitted.append(name)

    def submit(self, context: ExecutionContext) -> None:
        """Submits what was recorded, if anything was."""
        self._close_pass(context)
        if context.encoder is None:
            return
        with context.times.phase("encode"):
            encoder, context.encoder = context.encoder, None
            context.recorded_ns = 0
            context.times.submits += 1
            recording = context.recording
            if recording is None:
                self.required().submit(encoder)
                return
            if context.timed:
                queries = recording.queries(self.required())
                if queries is not None:
                    queries.resolve(encoder, [number for _, number in context.timed])
            start_ns = time.perf_counter_ns()
            self.required().submit(encoder)
            recording.add("submit", "submit", start_ns, self.plan)
            recording.add_kernels(context.timed, start_ns)
            context.timed = []

    def collect(self, context: ExecutionContext, values: tuple[str, ...]) -> None:
        """Waits for downloads, and puts them among the host's values."""
        for name in values:
            if name not in context.submitted:
                continue
            staging = self._staging[name]
            start_ns = time.perf_counter_ns()
            with context.times.phase("wait"), self.required().guarded(f"reading {name!r}"):
                staging.map_sync("READ")
            arrived_ns = time.perf_counter_ns()
            if context.recording is not None:
                context.recording.add("wait", name, start_ns, self.plan)
            try:
                with context.times.phase("download"):
                    context.host[name] = self._read(context, name, staging)
            finally:
                staging.unmap()
            if context.recording is not None:
                nbytes = context.host[name].nbytes
                context.recording.add("download", name, arrived_ns, self.plan, nbytes=nbytes)
            context.submitted.remove(name)

    def _read(self, context: ExecutionContext, name: str, staging: Any) -> Array:
        shape = context.shapes[name]
        nbytes = int(self._storage(name).nbytes(shape))  # type: ignore[arg-type]
        words = staging.read_mapped(0, nbytes, copy=False)
        context.times.downloaded_nbytes += nbytes
        return self._storage(name).from_device(words, self.plan.tensor(name).dtype, shape)


def _dispatch(compute: Any, found: _Group, grid: tuple[int, int, int], repetition: int) -> None:
    """Records one dispatch in a compute pass."""
    compute.set_pipeline(found.pipeline.pipeline)
    if found.pipeline.kernel.repeats:
        compute.set_bind_group(0, found.group, [repetition * REPEAT_NBYTES])
    else:
        compute.set_bind_group(0, found.group)
    compute.dispatch_workgroups(*grid)
