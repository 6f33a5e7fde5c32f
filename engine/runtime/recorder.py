"""Recorder: the GPU side of one plan: its buffers, bind groups and staging, and its commands."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from operator import is_
from typing import Any

import numpy as np

from engine.bind import Binder, Bound
from engine.errors import DeviceError, PlanError
from engine.ir import Array
from engine.layout import Storage
from engine.plan import Plan
from engine.progress import tell
from engine.records import dataclass
from engine.runtime.constants import ConstantStore
from engine.runtime.context import ExecutionContext
from engine.runtime.device import REPEAT_NBYTES, STORAGE, UNIFORM, Device, Pipeline
from engine.runtime.observing import observe
from engine.runtime.programs import Batch, Program, Timed, batches, chunked, in_turn
from engine.runtime.recording import Event, Recording
from engine.runtime.transfers import Transfers

MAX_SUBMIT_NS = 200_000_000
"""Most predicted time of a submit: watchdogs of phones and of Windows end what takes seconds."""
UNMEASURED = 4
"""How many times longer it may take where the rates were not measured on this device."""
MUCH = 1.5
"""How many times longer submits are worth making, where a call was faster than predicted."""
MAX_PROGRAMS = 64
"""For how many bindings and batches a plan keeps the commands."""

_COMPILES = ", whose driver compiles shaders at their first use"


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

    Attributes:
        batches: the runs of dispatches between other steps.
    """

    def __init__(
        self,
        plan: Plan,
        binder: Binder,
        device: Device | None,
        constants: ConstantStore | None,
    ) -> None:
        self.plan = plan
        self.binder = binder
        self.device = device
        self.constants = constants
        self._most_ns = MAX_SUBMIT_NS // (UNMEASURED if plan.profile.sources else 1)
        self._dispatches = plan.dispatches
        self._slots: list[Any] = [None] * len(plan.memory.slots)
        self._fixed: dict[str, Any] = {}
        self.transfers = Transfers(plan, device)
        self.batches: tuple[Batch, ...] = batches(plan)
        self._groups: dict[tuple[int, int], _Group] = {}
        self._programs: OrderedDict[tuple[int, ...], Program] = OrderedDict()
        self._generation = 0
        self._params: Any = None
        self._fresh = False
        self._prepared: dict[int, Bound] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the activation buffers on the device."""
        return sum(int(b.size) for b in self._slots if b is not None)

    @property
    def held_nbytes(self) -> int:
        """`nbytes`, and those of the staging and parameter buffers."""
        params = 0 if self._params is None else int(self._params.size)
        return self.nbytes + self.transfers.nbytes + params

    def compile_all(self) -> None:
        """Compiles every variant: sizes vary, so any of them may be wanted by the next call."""
        if self.device is not None:
            count = len(self.plan.kernels)
            self.device.compile_ahead(self.plan.kernels, used=False)
            for number, kernel in enumerate(self.plan.kernels, 1):
                tell(f"compiling shader {number} of {count}, for other sizes")
                self.device.pipeline(kernel)

    def prepare_buffers(self, bound: Bound) -> None:
        """Makes slots as large as the sizes just bound need them, and writes their parameters."""
        before = self._prepared.get(bound.params_offset)
        if before is bound:
            return  # slots never shrink
        device = self.required()
        for slot, nbytes in bound.slot_nbytes.items():
            buffer = self._slots[slot]
            if buffer is None or buffer.size < nbytes:
                usage = STORAGE | self.transfers.usage.get(slot, 0)
                self._slots[slot] = device.buffer(f"slot {slot}", nbytes, usage)
                self._generation += 1
        if bound.params and (before is None or before.params != bound.params):
            if self._params is None:
                self._params = device.buffer("params", self.binder.params_nbytes, UNIFORM)
            device.write(self._params, bound.params, bound.params_offset)
        self._prepared[bound.params_offset] = bound

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
        own = name not in context.external
        self.transfers.write(self.required(), name, self.buffer(context, name), words, own)

    def encode(self, context: ExecutionContext, number: int) -> Mapping[str, str]:
        """Records a batch, in as many submits as the time predicted for it needs.

        Returns the keys of the nodes that it computes, each with "gpu".
        """
        start = time.perf_counter()
        program = self._program(context, number)
        if context.probe is not None:
            observe(self, context, context.probe, program)
        elif context.recording is not None:
            for timed in program.commands:
                self.make_room(context, timed.predicted_ns)
                self._time(context, context.recording, timed)
        else:
            record = self.required().calls.record
            for commands, predicted_ns in program.chunks:
                self.make_room(context, predicted_ns, program.most_ns)
                self.open(context)
                record(context.encoder, commands)
        context.times.dispatches += len(program.commands)
        context.times.add("encode", time.perf_counter() - start)
        return program.places

    def make_room(
        self, context: ExecutionContext, predicted_ns: int, most_ns: int | None = None
    ) -> None:
        """Submits what was recorded if with `predicted_ns` more it would run too long."""
        most_ns = most_ns or self._most_ns
        full = context.recorded_ns and context.recorded_ns + predicted_ns > most_ns
        if full and context.encoder is not None:
            self._submit(context)
        context.recorded_ns += predicted_ns
        context.predicted_ns += predicted_ns

    def learn(self, context: ExecutionContext) -> None:
        """Lets submits be longer, as each costs the host time, if a call was faster than predicted.

        All its outputs were waited for, and nothing but kernels took the time between. At other
        sizes kernels may be slower: what is learned is for calls with the same.
        """
        if context.times.submits < 2 or self.required().calls.hollow or not context.submitted_ns:
            return
        took_ns = time.perf_counter_ns() - context.submitted_ns
        most_ns = MAX_SUBMIT_NS * context.predicted_ns // took_ns
        for key, program in self._programs.items():
            same = all(map(is_, program.bound, context.bound))
            if same and most_ns >= MUCH * program.most_ns:
                chunks = chunked(program.commands, most_ns)
                self._programs[key] = replace(program, most_ns=most_ns, chunks=chunks)

    def _program(self, context: ExecutionContext, number: int) -> Program:
        """The commands of a batch: those of the last call with these sizes, if buffers are too.

        Of calls with buffers of their own the last one's are kept alone: they keep the buffers.
        """
        external = context.external
        key = (number,) if external else (number, *map(id, context.bound))
        found = self._programs.get(key)
        if (
            found is None
            or found.generation != self._generation
            or found.external != external
            or not all(map(is_, found.bound, context.bound))
        ):
            found = self._programs[key] = self._programmed(context, number)
            self._programs.move_to_end(key)
            if len(self._programs) > MAX_PROGRAMS:
                self._programs.popitem(last=False)
        return found

    def _programmed(self, context: ExecutionContext, number: int) -> Program:
        turns = tuple(in_turn(context.chosen, self.batches[number]))
        variants = [self._dispatches[i].variants[context.chosen[i].variant] for i, _ in turns]
        self.required().compile_ahead(self.plan.kernels[v.kernel] for v in variants)
        for variant in variants:
            for name in variant.values:
                self.buffer(context, name)
        commands = tuple(self._command(context, *turn) for turn in turns)
        return Program(
            self._generation,
            dict(context.external),
            tuple(context.bound),
            commands,
            self._most_ns,
            chunked(commands, self._most_ns),
            {n: "gpu" for c in commands for n in self._dispatches[c.index].nodes},
        )

    def _command(self, context: ExecutionContext, index: int, repetition: int) -> Timed:
        choice, grid, _, predicted_ns = context.chosen[index]
        if grid is None:
            raise PlanError(f"dispatch {index} has nothing to do")
        found = self._group(context, index, choice)
        offset = repetition * REPEAT_NBYTES if found.pipeline.kernel.repeats else None
        calls = self.required().calls
        command = calls.command(found.pipeline.pipeline, found.group, grid, offset)
        return Timed(index, predicted_ns, command)

    def _time(self, context: ExecutionContext, recording: Recording, timed: Timed) -> None:
        """Records a dispatch in a pass of its own, which is timed."""
        start_ns = time.perf_counter_ns()
        dispatch, device = self._dispatches[timed.index], self.required()
        choice, grid, repeats, _ = context.chosen[timed.index]
        event = Event(
            "kernel",
            dispatch.label,
            start_ns,
            start_ns,
            self.plan,
            recording.path,
            dispatch.nodes,
            timed.index,
            choice,
            grid or (0, 0, 0),
            repeats,
            context.binding,
        )
        queries = recording.queries(device)
        if queries is None:
            self.submit(context)
        self.open(context)
        number, writes = (0, {}) if queries is None else queries.begin()
        device.calls.record(context.encoder, [timed.command], **writes)
        if queries is not None:
            context.timed.append((event, number))
            recording.add("encode", "encode", start_ns, self.plan)
            return
        encoder, context.encoder = context.encoder, None
        begin_ns, end_ns = recording.submits(device).time(encoder)
        context.recorded_ns = 0
        context.times.submits += 1
        recording.events.append(replace(event, start_ns=begin_ns, end_ns=end_ns))

    def _which_shader(self, context: ExecutionContext, kernel: int) -> str:
        """What is being compiled, in words, and how far that is."""
        chosen = ((self._dispatches[i], c[0]) for i, c in sorted(context.chosen.items()))
        wanted = list(dict.fromkeys(d.variants[choice].kernel for d, choice in chosen))
        number = wanted.index(kernel) + 1
        return f"compiling shader {number} of {len(wanted)}: {self.plan.kernels[kernel].name}"

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
            kernel = self.plan.kernels[variant.kernel]
            if not device.compiled(kernel):
                self._fresh = True
                tell(self._which_shader(context, variant.kernel))
            pipeline = device.pipeline(kernel)
            offset = self.binder.params_offsets[index, choice]
            group = device.bind_group(pipeline, buffers, self._params, offset)
            found = _Group(self._generation, external, pipeline, group)
            self._groups[index, choice] = found
        return found

    def open(self, context: ExecutionContext) -> None:
        """Makes the encoder that commands are recorded by, unless there is one.

        What times kernels, or reads values between them, wants one of wgpu's Python API.
        """
        if context.encoder is None:
            device = self.required()
            device.require()
            if context.recording is None and context.probe is None:
                context.encoder = device.calls.encoder(device.wgpu)
            else:
                context.encoder = device.wgpu.create_command_encoder()

    def download(self, context: ExecutionContext, name: str) -> None:
        """Records the copy of a value into its staging buffer, if it is not read in place."""
        shape = context.shapes[name]
        if 0 in shape:
            context.host[name] = np.empty(shape, self.plan.tensor(name).dtype.numpy)
            return
        source = self.buffer(context, name)
        nbytes = int(self._storage(name).nbytes(shape))  # type: ignore[arg-type]
        if name in self.transfers.read and name not in context.external:
            context.submitted[name] = source, nbytes
            return
        self.open(context)
        device = self.required()
        staging = self.transfers.staging(device, name, nbytes)
        device.calls.copy(context.encoder, source, staging, nbytes)
        context.submitted[name] = staging, nbytes

    def submit(self, context: ExecutionContext) -> None:
        """Submits what was recorded, if anything was."""
        if context.encoder is None:
            return
        with context.times.phase("encode"):
            self._submit(context)

    def _submit(self, context: ExecutionContext) -> None:
        encoder, context.encoder = context.encoder, None
        context.recorded_ns = 0
        context.submitted_ns = context.submitted_ns or time.perf_counter_ns()
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
        device = self.required()
        for name in values:
            if name not in context.submitted:
                continue
            buffer, nbytes = context.submitted.pop(name)
            tell(f"waiting for the GPU{_COMPILES if self._fresh else ''}")
            shape = context.shapes[name]
            start_ns = time.perf_counter_ns()
            with device.mapped(buffer, nbytes, f"reading {name!r}") as words:
                arrived_ns = time.perf_counter_ns()
                dtype = self.plan.tensor(name).dtype
                array = self._storage(name).from_device(words.data, dtype, shape)
            context.host[name] = array
            moved = int(self._storage(name).content_nbytes(array.size))  # type: ignore[arg-type]
            context.times.downloaded_nbytes += moved
            context.times.add("wait", (arrived_ns - start_ns) / 1e9)
            context.times.add("download", (time.perf_counter_ns() - arrived_ns) / 1e9)
            if context.recording is not None:
                recording = context.recording
                recording.add("wait", name, start_ns, self.plan, end_ns=arrived_ns)
                recording.add("download", name, arrived_ns, self.plan, nbytes=moved)
        self._fresh = False
