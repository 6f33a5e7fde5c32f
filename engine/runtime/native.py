"""Native: functions of wgpu's C library that are called directly, where its Python API is slow.

`Calls` has the few steps that every call of a session repeats: recording dispatches and copies,
submitting them, and writing and mapping buffers. `NativeCalls` makes them through the `lib` and
`ffi` that wgpu exports, `PythonCalls` through its Python classes; `calls()` picks the first unless
this wgpu declares the functions in another way, or the environment variable ENGINE_WGPU_CALLS says
"python". Nothing else depends on which one is used.

Errors in recorded commands are reported when the encoder is finished, whoever recorded them.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import wgpu

from engine.ir import Array

log = logging.getLogger(__name__)

VARIABLE = "ENGINE_WGPU_CALLS"
"""Environment variable: "python" takes wgpu's Python API for everything."""

MAX_IDLE_POLLS = 5000
"""How often a device that has nothing to do is asked for an answer, a millisecond apart."""

Command = tuple[Any, ...]
"""One dispatch, as the `Calls` that made it takes it."""

_SIGNATURES = {
    "wgpuQueueWriteBuffer": (
        "void(*)(WGPUQueueImpl *, WGPUBufferImpl *, uint64_t, void *, size_t)"
    ),
    "wgpuDeviceCreateCommandEncoder": (
        "WGPUCommandEncoderImpl *(*)(WGPUDeviceImpl *, WGPUCommandEncoderDescriptor *)"
    ),
    "wgpuCommandEncoderCopyBufferToBuffer": (
        "void(*)(WGPUCommandEncoderImpl *, WGPUBufferImpl *, uint64_t, "
        "WGPUBufferImpl *, uint64_t, uint64_t)"
    ),
    "wgpuCommandEncoderRelease": "void(*)(WGPUCommandEncoderImpl *)",
    "wgpuCommandEncoderFinish": (
        "WGPUCommandBufferImpl *(*)(WGPUCommandEncoderImpl *, WGPUCommandBufferDescriptor *)"
    ),
    "wgpuQueueSubmit": "void(*)(WGPUQueueImpl *, size_t, WGPUCommandBufferImpl * *)",
    "wgpuCommandBufferRelease": "void(*)(WGPUCommandBufferImpl *)",
    "wgpuCommandEncoderBeginComputePass": (
        "WGPUComputePassEncoderImpl *(*)(WGPUCommandEncoderImpl *, WGPUComputePassDescriptor *)"
    ),
    "wgpuComputePassEncoderSetPipeline": (
        "void(*)(WGPUComputePassEncoderImpl *, WGPUComputePipelineImpl *)"
    ),
    "wgpuComputePassEncoderSetBindGroup": (
        "void(*)(WGPUComputePassEncoderImpl *, uint32_t, WGPUBindGroupImpl *, size_t, uint32_t *)"
    ),
    "wgpuComputePassEncoderDispatchWorkgroups": (
        "void(*)(WGPUComputePassEncoderImpl *, uint32_t, uint32_t, uint32_t)"
    ),
    "wgpuComputePassEncoderEnd": "void(*)(WGPUComputePassEncoderImpl *)",
    "wgpuComputePassEncoderRelease": "void(*)(WGPUComputePassEncoderImpl *)",
    "wgpuBufferMapAsync": (
        "WGPUFuture(*)(WGPUBufferImpl *, uint64_t, size_t, size_t, WGPUBufferMapCallbackInfo)"
    ),
    "wgpuBufferGetMappedRange": "void *(*)(WGPUBufferImpl *, size_t, size_t)",
    "wgpuBufferGetConstMappedRange": "void *(*)(WGPUBufferImpl *, size_t, size_t)",
    "wgpuBufferUnmap": "void(*)(WGPUBufferImpl *)",
    "wgpuDevicePoll": "uint32_t(*)(WGPUDeviceImpl *, uint32_t, uint64_t *)",
}
"""What `NativeCalls` calls, as the C header declares it."""

ANSWER = "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)"
"""The callback of a mapping: status, message, and what was given with the request."""


class Calls(Protocol):
    """The steps that every call repeats.

    Attributes:
        hollow: whether dispatches are recorded with no workgroups, so that nothing is computed.
    """

    hollow: bool

    def command(
        self, pipeline: Any, group: Any, grid: tuple[int, int, int], offset: int | None
    ) -> Command:
        """A dispatch of workgroups; `offset` is the dynamic one of its uniform, if it has one.

        Whoever keeps it keeps the pipeline and the bind group alive as well.
        """

    def emptied(self, command: Command) -> Command:
        """The same dispatch of no workgroups."""

    def encoder(self, device: Any) -> Any:
        """A new command encoder, which the steps here take, and nothing else."""

    def record(self, encoder: Any, commands: Sequence[Command], **options: Any) -> None:
        """Records dispatches in a pass of their own.

        With options for the pass, the encoder is one of wgpu's Python API.
        """

    def copy(self, encoder: Any, source: Any, target: Any, nbytes: int) -> None:
        """Records a copy of the first bytes of a buffer to the begin of another."""

    def submit(self, device: Any, encoder: Any) -> None:
        """Finishes an encoder and submits what it recorded. Raises: wgpu's own errors."""

    def write(self, device: Any, buffer: Any, offset: int, data: Array) -> None:
        """Copies contiguous data into a buffer, ahead of all that is submitted later.

        Raises: wgpu's own errors.
        """

    def finish(self, device: Any) -> None:
        """Waits until the device has done all that was submitted."""

    def mapped(self, device: Any, buffer: Any, nbytes: int, write: bool = False) -> Any:
        """A context manager: the first bytes of a mappable buffer, as uint8, once it is not used.

        Raises: RuntimeError or wgpu's own errors if the buffer cannot be mapped.
        """


class PythonCalls:
    """`Calls` through wgpu's Python API."""

    hollow = False

    def command(
        self, pipeline: Any, group: Any, grid: tuple[int, int, int], offset: int | None
    ) -> Command:
        return pipeline, group, grid, () if offset is None else (offset,)

    def emptied(self, command: Command) -> Command:
        pipeline, group, _, offsets = command
        return pipeline, group, (0, 1, 1), offsets

    def encoder(self, device: Any) -> Any:
        return device.create_command_encoder()

    def record(self, encoder: Any, commands: Sequence[Command], **options: Any) -> None:
        compute = encoder.begin_compute_pass(**options)
        before = None
        for pipeline, group, grid, offsets in commands:
            if pipeline is not before:
                compute.set_pipeline(pipeline)
                before = pipeline
            compute.set_bind_group(0, group, offsets)
            compute.dispatch_workgroups(*grid)
        compute.end()

    def copy(self, encoder: Any, source: Any, target: Any, nbytes: int) -> None:
        encoder.copy_buffer_to_buffer(source, 0, target, 0, nbytes)

    def submit(self, device: Any, encoder: Any) -> None:
        device.queue.submit([encoder.finish()])

    def write(self, device: Any, buffer: Any, offset: int, data: Array) -> None:
        device.queue.write_buffer(buffer, offset, data)

    def finish(self, device: Any) -> None:
        device._poll_wait()  # its `on_submitted_work_done_sync` fails in wgpu 0.32

    @contextmanager
    def mapped(self, device: Any, buffer: Any, nbytes: int, write: bool = False) -> Iterator[Array]:
        # an interrupt may come between any two steps of wgpu's own waiting, which then never ends
        buffer.map_sync("WRITE" if write else "READ", 0, nbytes)
        try:
            if write:
                array = np.empty(nbytes, np.uint8)
                yield array
                buffer.write_mapped(array)
            else:
                yield np.frombuffer(buffer.read_mapped(0, nbytes, copy=False), np.uint8)
        finally:
            buffer.unmap()


class _Encoder:
    """A command encoder of the C library, released when nothing refers to it any more."""

    __slots__ = ("_internal", "_release")

    def __init__(self, internal: Any, release: Callable[[Any], object]) -> None:
        self._internal = internal
        self._release = release

    def __del__(self) -> None:
        try:
            release = self._release
        except AttributeError:  # an interrupt came before there was anything to release
            return
        release(self._internal)


class _Answer(NamedTuple):
    """How mapping a buffer ends: `kept.args` is what the library calls back with, () before.

    `info` tells the library of `callback`; it is the content of `held`.

    The callback is `__init__` of an exception, which keeps its arguments, as it is C code. In a
    function in Python a signal's handler might run; what that raises is dropped in a callback, and
    so would be the answer.
    """

    kept: Any
    callback: Any
    held: Any
    info: Any


_answers: list[_Answer] = []


class NativeCalls:
    """`Calls` through wgpu's C library.

    Args:
        ffi, lib: what `wgpu.backends.wgpu_native` exports.
        checked: has the functions of `lib`, which raise the errors that the library reports.
    """

    hollow = False

    def __init__(self, ffi: Any, lib: Any, checked: Any) -> None:
        self._ffi = ffi
        self._null = ffi.NULL
        self._new_encoder = checked.wgpuDeviceCreateCommandEncoder
        self._release_encoder = lib.wgpuCommandEncoderRelease
        self._copy = lib.wgpuCommandEncoderCopyBufferToBuffer
        self._finish_encoder = checked.wgpuCommandEncoderFinish
        self._submit = checked.wgpuQueueSubmit
        self._release_commands = lib.wgpuCommandBufferRelease
        self._commands_type = ffi.typeof("WGPUCommandBuffer[]")
        self._write = checked.wgpuQueueWriteBuffer
        self._begin = lib.wgpuCommandEncoderBeginComputePass
        self._set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        self._set_group = lib.wgpuComputePassEncoderSetBindGroup
        self._dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
        self._end = lib.wgpuComputePassEncoderEnd
        self._release = lib.wgpuComputePassEncoderRelease
        self._map = lib.wgpuBufferMapAsync
        self._poll = lib.wgpuDevicePoll
        self._range = lib.wgpuBufferGetConstMappedRange
        self._writable = lib.wgpuBufferGetMappedRange
        self._unmap = lib.wgpuBufferUnmap
        self._modes = (int(lib.WGPUMapMode_Read), int(lib.WGPUMapMode_Write))
        self._success = lib.WGPUMapAsyncStatus_Success
        self._mode = lib.WGPUCallbackMode_AllowProcessEvents
        self._map_info = ffi.typeof("WGPUBufferMapCallbackInfo *")
        self._idle: list[_Answer] = []
        self._offsets: Callable[[int], Any] = functools.cache(
            lambda offset: ffi.new("uint32_t []", [offset])
        )

    def command(
        self, pipeline: Any, group: Any, grid: tuple[int, int, int], offset: int | None
    ) -> Command:
        dynamic = (0, self._null) if offset is None else (1, self._offsets(offset))
        return pipeline._internal, group._internal, *dynamic, *grid, pipeline, group

    def emptied(self, command: Command) -> Command:
        return *command[:4], 0, 1, 1, *command[7:]

    def encoder(self, device: Any) -> Any:
        return _Encoder(self._new_encoder(device._internal, self._null), self._release_encoder)

    def record(self, encoder: Any, commands: Sequence[Command], **options: Any) -> None:
        if options:
            described = encoder.begin_compute_pass(**options)
            self._record(described._internal, commands)
            described.end()
            return
        compute = self._begin(encoder._internal, self._null)
        self._record(compute, commands)
        self._end(compute)
        self._release(compute)

    def _record(self, compute: Any, commands: Sequence[Command]) -> None:
        set_pipeline, set_group, dispatch = self._set_pipeline, self._set_group, self._dispatch
        before = None
        for pipeline, group, count, offsets, x, y, z, _, _ in commands:
            if pipeline is not before:
                set_pipeline(compute, pipeline)
                before = pipeline
            set_group(compute, 0, group, count, offsets)
            dispatch(compute, x, y, z)

    def copy(self, encoder: Any, source: Any, target: Any, nbytes: int) -> None:
        self._copy(encoder._internal, source._internal, 0, target._internal, 0, nbytes)

    def submit(self, device: Any, encoder: Any) -> None:
        commands = self._finish_encoder(encoder._internal, self._null)
        try:
            queue = device.queue._internal
            self._submit(queue, 1, self._ffi.new(self._commands_type, [commands]))
        finally:
            self._release_commands(commands)

    def write(self, device: Any, buffer: Any, offset: int, data: Array) -> None:
        memory = self._ffi.from_buffer(data)
        self._write(device.queue._internal, buffer._internal, offset, memory, data.nbytes)

    def finish(self, device: Any) -> None:
        self._poll(device._internal, 1, self._null)

    def mapped(self, device: Any, buffer: Any, nbytes: int, write: bool = False) -> _Mapping:
        return _Mapping(self, device, buffer, nbytes, write)

    def map(self, device: Any, buffer: Any, nbytes: int, write: bool, answer: _Answer) -> Array:
        """What `mapped` gives, once `answer` says that the buffer is mapped."""
        internal = buffer._internal
        self._map(internal, self._modes[write], 0, nbytes, answer.info)
        self._wait(device, answer)
        if answer.kept.args[0] != self._success:
            buffer.map_sync("WRITE" if write else "READ", 0, nbytes)  # says why
            raise RuntimeError("a buffer cannot be mapped")
        memory = (self._writable if write else self._range)(internal, 0, nbytes)
        if memory == self._null:
            raise RuntimeError(f"{nbytes} bytes of a mapped buffer cannot be reached")
        return np.frombuffer(self._ffi.buffer(memory, nbytes), np.uint8)

    def unmap(self, buffer: Any, answer: _Answer) -> None:
        """Ends what `map` did or began; others may use the answer, if it came."""
        if answer.kept.args[:1] in ((), (self._success,)):
            self._unmap(buffer._internal)
        if answer.kept.args:
            self._idle.append(answer)

    def answer(self) -> _Answer:
        """One that no mapping uses. It is never freed, as nobody may wait for its last mapping."""
        try:
            found = self._idle.pop()
        except IndexError:
            kept: Any = Exception()
            callback = self._ffi.callback(ANSWER, kept.__init__)
            info = self._ffi.new(self._map_info, {"mode": self._mode, "callback": callback})
            found = _Answer(kept, callback, info, info[0])
            _answers.append(found)
        found.kept.args = ()
        return found

    def _wait(self, device: Any, answer: _Answer) -> None:
        """Until a mapping was answered."""
        idle = 0
        while not answer.kept.args:
            # another thread that polls may be about to deliver the answer
            if self._poll(device._internal, 1, self._null) and not answer.kept.args:
                time.sleep(0.001)
                idle += 1
            if idle > MAX_IDLE_POLLS:
                raise RuntimeError("the device does not answer: a buffer is never mapped")


class _Mapping:
    """The block of `NativeCalls.mapped`; a class, as generators take longer."""

    __slots__ = ("_answer", "_buffer", "_calls", "_device", "_nbytes", "_write")

    def __init__(
        self, calls: NativeCalls, device: Any, buffer: Any, nbytes: int, write: bool
    ) -> None:
        self._calls = calls
        self._device, self._buffer = device, buffer
        self._nbytes, self._write = nbytes, write

    def __enter__(self) -> Array:
        answer = self._answer = self._calls.answer()
        try:
            return self._calls.map(self._device, self._buffer, self._nbytes, self._write, answer)
        except BaseException:
            self._calls.unmap(self._buffer, answer)
            raise

    def __exit__(self, *error: object) -> None:
        self._calls.unmap(self._buffer, self._answer)


class HollowCalls:
    """`Calls` that record dispatches of no workgroups: what is left of a call is the host's work.

    Args:
        inner: makes them.
    """

    hollow = True

    def __init__(self, inner: Calls) -> None:
        self._inner = inner
        self.command, self.emptied = inner.command, inner.emptied
        self.finish, self.mapped = inner.finish, inner.mapped
        self.encoder, self.copy = inner.encoder, inner.copy
        self.submit, self.write = inner.submit, inner.write
        self._known: dict[int, tuple[Sequence[Command], list[Command]]] = {}

    def record(self, encoder: Any, commands: Sequence[Command], **options: Any) -> None:
        known = self._known.get(id(commands))
        if known is None:
            known = commands, [self._inner.emptied(c) for c in commands]
            self._known[id(commands)] = known
        self._inner.record(encoder, known[1], **options)


@functools.cache
def calls() -> Calls:
    """The fastest `Calls` that this wgpu allows."""
    if os.environ.get(VARIABLE, "").lower() == "python":
        return PythonCalls()
    try:
        from wgpu.backends.wgpu_native import ffi, lib
        from wgpu.backends.wgpu_native._api import libf

        for name, signature in _SIGNATURES.items():
            found = ffi.typeof(getattr(lib, name)).cname.replace("struct ", "")
            if found != signature:
                log.info("this wgpu declares %s as %s; its Python API is used", name, found)
                return PythonCalls()
        return NativeCalls(ffi, lib, libf)
    except (ImportError, AttributeError, KeyError, TypeError) as error:
        log.info("wgpu %s hides its C library (%s); its API is used", wgpu.__version__, error)
        return PythonCalls()
