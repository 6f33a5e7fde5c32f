"""Device: adapters, the wgpu device requested with exactly a target's limits, pipelines, buffers.

Errors inside `queue.submit` abort the process, so whoever submits checks everything before: see
`Device.require`.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import wgpu

from engine.bind import MAX_REPEATS
from engine.errors import DeviceError, ShaderError
from engine.ir import Array
from engine.records import dataclass
from engine.runtime import forks, loading, native
from engine.runtime.interrupts import is_interrupt
from engine.runtime.targets import MAPPABLE, WGPU_FEATURES, resolve
from engine.shader import Kernel, opaque
from engine.target import Target

if TYPE_CHECKING:
    from concurrent.futures import Future

    from engine.runtime.compilers import Compilers

log = logging.getLogger(__name__)

_BACKENDS = ("Vulkan", "Metal", "D3D12")
_KINDS = {"IntegratedGPU": 0, "DiscreteGPU": 1, "CPU": 3}
"""Which adapters come first by default; others are between GPUs and CPUs."""
STORAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
UNIFORM = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
_TIMESTAMPS = "timestamp-query"
REPEAT_NBYTES = 256
"""The alignment of uniform buffers that every device takes."""
READBACK = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
MAX_PIPELINES = 1024
"""Of how many kernels a device keeps the pipelines, beyond those that plans in use hold."""


@dataclass(frozen=True)
class AdapterInfo:
    """What an adapter says of itself.

    Attributes:
        index: what `adapter=` takes.
        name, driver, backend, kind: as the driver reports them.
        features: WebGPU features it offers.
        limits: WebGPU limits, names with hyphens.
    """

    index: int
    name: str
    driver: str
    backend: str
    kind: str
    features: frozenset[str]
    limits: dict[str, int]

    @property
    def is_software(self) -> bool:
        """Whether it is a CPU."""
        return self.kind == "CPU"

    @property
    def title(self) -> str:
        """One line for tables: name, driver and back end."""
        return f"{self.name}, {self.driver} ({self.backend})"


_asking = threading.RLock()
"""Held while adapters are asked: those of OpenGL, where there are any, abort if two threads do."""


def _usable() -> list[Any]:
    if forks.refusal():
        return []
    loading.load()
    with _asking:
        try:
            found = wgpu.gpu.enumerate_adapters_sync()
        except (RuntimeError, OSError) as error:
            log.warning("no adapter could be listed: %s", error)
            return []
        return [a for a in found if a.info["backend_type"] in _BACKENDS]


def _describe(index: int, adapter: Any) -> AdapterInfo:
    info = adapter.info
    return AdapterInfo(
        index,
        str(info["device"]),
        str(info["description"]),
        str(info["backend_type"]),
        str(info["adapter_type"]),
        frozenset(adapter.features),
        {k: int(v) for k, v in adapter.limits.items()},
    )


def adapters() -> tuple[AdapterInfo, ...]:
    """Every adapter that this project can use, in the order that `adapter=` counts them."""
    return tuple(_describe(i, a) for i, a in enumerate(_usable()))


def choose_adapter(adapter: int | str | None = None) -> AdapterInfo:
    """The adapter with an index, or with a part of its name; the low-power one by default.

    Raises: DeviceError if there is none, with the way to get one.
    """
    found = adapters()
    if forks.refusal():
        raise DeviceError(forks.refusal())
    if not found:
        raise DeviceError(
            "no Vulkan, Metal or DX12 adapter was found; on Debian or Ubuntu "
            "`apt-get install mesa-vulkan-drivers` brings one that runs on the CPU"
        )
    if adapter is None:
        return min(found, key=lambda a: (_KINDS.get(a.kind, 2), a.index))
    if isinstance(adapter, int):
        matches = [a for a in found if a.index == adapter]
    else:
        matches = [a for a in found if str(adapter).lower() in a.title.lower()]
    if not matches:
        names = "; ".join(f"{a.index}: {a.title}" for a in found)
        raise DeviceError(f"no adapter matches {adapter!r}; the adapters are {names}")
    return matches[0]


@dataclass(frozen=True)
class Pipeline:
    """A compiled kernel: the wgpu pipeline and its bind group layout."""

    pipeline: Any
    layout: Any
    kernel: Kernel


class _Guard:
    """Turns wgpu's errors in its block into DeviceError.

    What each call enters is a class, here and below, as generators take longer.
    """

    def __init__(self, device: Device, what: str) -> None:
        self._device = device
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not isinstance(error, (wgpu.GPUError, RuntimeError)):
            return
        device, what = self._device, self._what
        title = device.info.title
        if isinstance(error, wgpu.GPUOutOfMemoryError):
            raise DeviceError(f"the memory of {title} is full: {what}") from error
        if is_interrupt(error):
            return
        device.lost = device.lost or _says_lost(error)
        state = "was lost" if device.lost else "refused"
        raise DeviceError(f"{title} {state}: {what}: {error}") from error


class _Mapped:
    """The block of `Device.mapped`: a mapping whose begin, block and end a guard surrounds."""

    def __init__(self, guard: _Guard, mapping: AbstractContextManager[Array]) -> None:
        self._guard = guard
        self._mapping = mapping

    def __enter__(self) -> Array:
        with self._guard:
            return self._mapping.__enter__()

    def __exit__(self, *error: Any) -> None:
        with self._guard:
            self._mapping.__exit__(*error)
        self._guard.__exit__(*error)


class _Made:
    """The block of `Device.made_by`."""

    def __init__(self, device: Device, calls: native.Calls, own: native.Calls) -> None:
        self._device = device
        self._calls, self._own = calls, own

    def __enter__(self) -> None:
        self._device.calls = self._calls

    def __exit__(self, *error: object) -> None:
        self._device.calls = self._own


class Device:
    """One wgpu device, shared by all sessions on the same adapter and target.

    Attributes:
        info: the adapter.
        target: the limits and features that it was requested with.
        wgpu: the GPUDevice.
        lost: whether it was lost or closed.
        lock: held by whoever uses it.
        timestamps: whether it can say when dispatches began and ended.
        calls: how the steps that every call repeats are made.
    """

    def __init__(self, info: AdapterInfo, target: Target) -> None:
        self.info = info
        self.calls = self._own_calls = native.calls()
        self.target = target
        self.lost = False
        self.lock = threading.RLock()
        limits = {n.replace("_", "-"): getattr(target, n) for n in Target.limit_names()}
        self.timestamps = _TIMESTAMPS in info.features
        features = {WGPU_FEATURES.get(f, f) for f in target.features}
        features |= {MAPPABLE} if target.mappable else set()
        features |= {_TIMESTAMPS} if self.timestamps else set()
        try:
            with _asking:
                self.wgpu = _usable()[info.index].request_device_sync(
                    label="onnx-wgpu",
                    required_limits=limits,
                    required_features=sorted(features),
                )
        except (RuntimeError, ValueError) as error:
            raise DeviceError(f"{info.title} gives no device: {error}") from error
        forks.note(self.wgpu)
        self.queue = self.wgpu.queue
        self._pipelines: OrderedDict[str, Pipeline] = OrderedDict()
        self._compiling: dict[str, Future[Pipeline]] = {}
        self._layouts: dict[tuple[tuple[bool, ...], bool, bool], Any] = {}
        self._repeats: Any = None

    def require(self) -> None:
        """Raises: DeviceError if the device was lost or closed."""
        if self.lost:
            raise DeviceError(forks.refusal() or f"the device on {self.info.title} was lost")

    def guarded(self, what: str) -> _Guard:
        """Turns wgpu's errors in the block into DeviceError, and notices a lost device."""
        return _Guard(self, what)

    def made_by(self, calls: native.Calls | None) -> _Made:
        """Others make the steps of calls in the block, if given; the caller holds the lock."""
        return _Made(self, calls or self._own_calls, self._own_calls)

    def close(self) -> None:
        """Destroys the device; every later use raises DeviceError."""
        with self.lock:
            before, self.lost = self.lost, True
        if "_compilers" in self.__dict__:
            self._compilers.settle()  # wgpu aborts if a device is destroyed that a thread uses
        with self.lock:
            if not before:
                self.wgpu.destroy()

    def buffer(self, label: str, nbytes: int, usage: int = STORAGE) -> Any:
        """A new buffer, of 16 bytes at least, as an empty one cannot be bound.

        Raises: DeviceError if it is too large, or memory is full.
        """
        self.require()
        nbytes = max(nbytes, 16)
        if nbytes > self.target.max_buffer_size:
            raise DeviceError(
                f"buffer {label!r} needs {nbytes} bytes, and the device allows "
                f"{self.target.max_buffer_size}"
            )
        with self.guarded(f"a buffer of {nbytes} bytes for {label!r}"):
            return self.wgpu.create_buffer(label=label, size=nbytes, usage=usage)

    def write(self, buffer: Any, data: Array | bytes, offset: int = 0) -> None:
        """Copies host data into a buffer, ahead of everything submitted later."""
        self.require()
        view = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        if view.nbytes:
            with self.guarded(f"writing {view.nbytes} bytes"):
                self.calls.write(self.wgpu, buffer, offset, view)

    def settle(self) -> None:
        """Waits until all that was written or submitted before is done, and its memory is free."""
        self.require()
        with self.guarded("waiting for writes"):
            self.calls.submit(self.wgpu, self.calls.encoder(self.wgpu))
            self.calls.finish(self.wgpu)

    def mapped(self, buffer: Any, nbytes: int, what: str, *, write: bool = False) -> _Mapped:
        """The first bytes of a mappable buffer in memory, as uint8, within the block only.

        It waits until nothing submitted uses the buffer. With `write` all of them must be written.

        Raises: DeviceError that names `what` if the device was lost, or refuses.
        """
        self.require()
        return _Mapped(self.guarded(what), self.calls.mapped(self.wgpu, buffer, nbytes, write))

    def submit(self, encoder: Any) -> None:
        """Submits what was recorded. Raises: DeviceError if the device was lost meanwhile.

        To finish the encoder reports a lost device as an error that can be caught; the submit of
        what it recorded would abort.
        """
        self.require()
        with self.guarded("a submit"):
            self.calls.submit(self.wgpu, encoder)

    def compiled(self, kernel: Kernel) -> bool:
        """Whether `pipeline` has one at hand."""
        return kernel.key in self._pipelines

    def pipeline(self, kernel: Kernel) -> Pipeline:
        """The pipeline of a kernel, compiled once per device while it is among the last used.

        Raises: ShaderError with the numbered text if the driver refuses it.
        """
        self.require()
        found = self._pipelines.get(kernel.key)
        if found is None:
            started = self._compiling.pop(kernel.key, None)
            found = self.compile(kernel) if started is None else started.result()
            self._pipelines[kernel.key] = found
            if len(self._pipelines) > MAX_PIPELINES:
                self._pipelines.popitem(last=False)
        self._pipelines.move_to_end(kernel.key)
        return found

    def compile_ahead(self, kernels: Iterable[Kernel], *, used: bool = True) -> None:
        """Begins to compile kernels in threads; `pipeline` waits for each, and has its errors.

        Args:
            used: whether they will be dispatched soon, and not only perhaps.
        """
        new = {k.key: k for k in kernels if not (self.compiled(k) or k.key in self._compiling)}
        if new:
            self.require()
        for key, kernel in new.items():
            self._layout_of(kernel)
            self._compiling[key] = self._compilers.add(kernel, used)

    @contextmanager
    def compiling(self) -> Iterator[Callable[[Kernel], None]]:
        """Begins to compile each kernel that it is told in the block, which will be dispatched."""
        with self._compilers.awaiting():
            yield lambda kernel: self.compile_ahead((kernel,))

    @functools.cached_property
    def _compilers(self) -> Compilers:
        from engine.runtime.compilers import Compilers

        return Compilers(self)

    @property
    def compiles_late(self) -> bool:
        """Whether the driver compiles kernels when they are first dispatched."""
        return self.info.is_software and "llvmpipe" in self.info.title

    def another(self) -> Device:
        """A further device like this one."""
        return Device(self.info, self.target)

    def compile(self, kernel: Kernel) -> Pipeline:
        """A new pipeline of a kernel. Raises: ShaderError if the driver refuses it."""
        layout = self._layout_of(kernel)
        text = opaque(kernel) if self.compiles_late else kernel.wgsl
        # naga wants this one, and refuses `enable subgroups;`
        code = ("enable f16;\n" if "shader-f16" in kernel.features else "") + text
        try:
            module = self.wgpu.create_shader_module(label=kernel.name, code=code)
            pipeline = self.wgpu.create_compute_pipeline(
                label=kernel.name,
                layout=self.wgpu.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={
                    "module": module,
                    "entry_point": "main",
                    "constants": dict(kernel.overrides),
                },
            )
        except wgpu.GPUError as error:
            if _says_lost(error):
                self.lost = True
                raise DeviceError(f"{self.info.title} was lost: {kernel.name}: {error}") from error
            lines = code.splitlines()
            numbered = "\n".join(f"{i:4} {line}" for i, line in enumerate(lines, 1))
            raise ShaderError(f"kernel {kernel.name}: {error}\n{numbered}") from error
        return Pipeline(pipeline, layout, kernel)

    def _layout_of(self, kernel: Kernel) -> Any:
        writable = tuple(t.writable for t in kernel.tensors)
        return self._layout(writable, bool(kernel.params), kernel.repeats)

    def _layout(self, writable: tuple[bool, ...], params: bool, repeats: bool) -> Any:
        key = (writable, params, repeats)
        if key not in self._layouts:
            entries = [
                _entry(i, "storage" if w else "read-only-storage") for i, w in enumerate(writable)
            ]
            if params:
                entries.append(_entry(len(writable), "uniform"))
            if repeats:
                entries.append(_entry(len(entries), "uniform"))
                entries[-1]["buffer"]["has_dynamic_offset"] = True
            self._layouts[key] = self.wgpu.create_bind_group_layout(entries=entries)
        return self._layouts[key]

    def bind_group(
        self, pipeline: Pipeline, buffers: Sequence[Any], params: Any, offset: int
    ) -> Any:
        """A bind group of storage buffers, `params` at a byte offset, and the repetition's index.

        The index wants a dynamic offset: that of the repetition times `REPEAT_NBYTES`.
        """
        entries = [
            {"binding": i, "resource": {"buffer": b, "offset": 0, "size": b.size}}
            for i, b in enumerate(buffers)
        ]
        if pipeline.kernel.params:
            resource = {
                "buffer": params,
                "offset": offset,
                "size": pipeline.kernel.params_nbytes,
            }
            entries.append({"binding": len(buffers), "resource": resource})
        if pipeline.kernel.repeats:
            resource = {"buffer": self._repeat_indices(), "offset": 0, "size": 16}
            entries.append({"binding": len(entries), "resource": resource})
        with self.guarded(f"a bind group for {pipeline.kernel.name}"):
            return self.wgpu.create_bind_group(
                label=pipeline.kernel.name, layout=pipeline.layout, entries=entries
            )

    def _repeat_indices(self) -> Any:
        """A uniform buffer that holds i at byte i * REPEAT_NBYTES."""
        if self._repeats is None:
            blocks = np.zeros((MAX_REPEATS, REPEAT_NBYTES // 4), np.uint32)
            blocks[:, 0] = np.arange(MAX_REPEATS)
            made = self.buffer("repeat indices", blocks.nbytes, UNIFORM)
            self.write(made, blocks)
            self._repeats = made
        return self._repeats


def _says_lost(error: Exception) -> bool:
    """Whether an error of wgpu means that its device is gone."""
    return "lost" in str(error).lower()


def _entry(binding: int, kind: str) -> dict[str, Any]:
    return {
        "binding": binding,
        "visibility": wgpu.ShaderStage.COMPUTE,
        "buffer": {"type": kind},
    }


_open: dict[tuple[str, Target], Device] = {}
_open_lock = threading.Lock()


def _after_fork() -> None:
    for device in _open.values():
        device.lost, device.lock = True, threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def open_device(adapter: int | str | None = None, target: Target | str | None = None) -> Device:
    """The process's device on an adapter; a new one if the last was lost.

    Args:
        adapter: index or part of a name; see `choose_adapter`.
        target: limits and features to request: a `Target`, "baseline" or "adapter", which is the
            default unless the environment variable ENGINE_TARGET says otherwise.

    Raises: DeviceError if there is no adapter or it refuses, or the target is not known.
    """
    info = choose_adapter(adapter)
    with _open_lock:
        target = resolve(target, _usable()[info.index], info.kind)
        key = (f"{info.index}:{info.title}", target)
        device = _open.get(key)
        if device is None or device.lost:
            device = _open[key] = Device(info, target)
        return device
