"""Compilers: threads that compile kernels before they are used.

Drivers take long to compile, and let other threads run meanwhile. Most compile when a pipeline is
made. Mesa's software Vulkan does so when a pipeline is first dispatched, kernel by kernel in the
one thread of a device's queue. There each kernel is dispatched without workgroups ahead of its use,
and other cores compile on further devices of the adapter: what these compile comes to the first one
through the driver's cache, which knows shaders by their content.

Kernels are added while a plan is still being written, one by one. A thread takes the longest text
that is there: compiling takes as long as a text is, roughly, and what takes longest should not
come last.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from engine.errors import DeviceError
from engine.runtime import native
from engine.runtime.device import UNIFORM, Device, Pipeline
from engine.shader import Kernel

log = logging.getLogger(__name__)

MAX_COMPILERS = 4
"""Threads that compile kernels."""
SLOW_S = 0.01
"""What compiling takes longer than is not in the driver's cache."""
MAX_QUICK = 3
"""How many kernels tell that the cache has them all, if none took longer."""
TRIED_S = 0.04
"""How long the others wait for the first kernel, which shows whether the cache has it."""
SWITCH_S = 0.0005
"""How long Python may keep others from running meanwhile: for each call of wgpu a compiler waits
for the interpreter, 20 times a kernel, and the default is 5 ms."""
AWAITED_S = 1.0
"""How long a thread waits for one more kernel; later ones start another thread."""
UNCACHED = ("MESA_SHADER_CACHE_DISABLE", "MESA_GLSL_CACHE_DISABLE")
"""Environment variables by which Mesa's cache is turned off."""

_Job = tuple[int, int, Kernel, bool, "Future[Pipeline]"]
"""What decides when its turn is: less text, and coming later; the kernel, whether it will be
dispatched soon, and its pipeline to be."""


class Compilers:
    """Compiles kernels for a device in threads, which end when there is nothing left to do."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._changed = threading.Condition()
        self._waiting: list[_Job] = []
        self._order = itertools.count()
        self._working: dict[int, threading.Thread] = {}
        self._idle = 0
        self._awaited = 0
        self._tried = threading.Event()
        self._slow = False
        self._quick = 0

    def add(self, kernel: Kernel, used: bool) -> Future[Pipeline]:
        """Begins to compile a kernel; `used` says whether it will be dispatched soon."""
        future: Future[Pipeline] = Future()
        with self._changed:
            heapq.heappush(
                self._waiting, (-len(kernel.wgsl), next(self._order), kernel, used, future)
            )
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif len(self._working) < self._most():
                self._start()
        return future

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        """Threads wait for more kernels until the block is left."""
        with self._changed:
            self._awaited += 1
        try:
            yield
        finally:
            with self._changed:
                self._awaited -= 1
                self._changed.notify_all()

    def settle(self) -> None:
        """Waits until no thread compiles."""
        for thread in tuple(self._working.values()):
            if thread is not threading.current_thread():
                thread.join()

    def _most(self) -> int:
        """How many threads there may be; without Mesa's cache its devices share nothing."""
        off = ("1", "true", "yes", "y")
        uncached = any(os.environ.get(name, "").lower() in off for name in UNCACHED)
        if self._device.compiles_late and uncached:
            return 1
        return min(MAX_COMPILERS, os.cpu_count() or 1)

    def _start(self) -> None:
        if not self._working:
            self._tried.clear()
            self._slow = False
            self._quick = 0
        number = next(n for n in itertools.count() if n not in self._working)
        name = f"onnx-wgpu compiler {number}"
        thread = threading.Thread(target=self._work, args=(number,), name=name)
        thread.start()
        self._working[number] = thread  # not before: an interrupt would leave one that never works

    def _work(self, number: int) -> None:
        """Compiles kernels until there are none; thread 0 on the device itself."""
        bench = _Bench(self._device) if number == 0 else None
        with quick_switches():
            while (job := self._next(number)) is not None:
                *_, kernel, used, future = job
                try:
                    pipeline = self._device.compile(kernel)
                    if used and self._device.compiles_late:
                        bench = self._dispatch(bench, pipeline)
                    future.set_result(pipeline)
                except BaseException as error:
                    future.set_exception(error)
        if bench is not None and bench.device is not self._device:
            bench.device.close()

    def _next(self, number: int) -> _Job | None:
        with self._changed:
            self._idle += 1
            while not self._waiting and self._awaited:
                if not self._changed.wait(AWAITED_S):  # an interrupt may have cut the block short
                    break
            self._idle -= 1
            if self._waiting:
                return heapq.heappop(self._waiting)
            self._working.pop(number, None)  # an interrupt may have kept it out
            return None

    def _dispatch(self, bench: _Bench | None, pipeline: Pipeline) -> _Bench | None:
        """Has a late driver compile a kernel, on the bench or on a further device's new one.

        Where an earlier process left the first kernels in the driver's cache, it is taken to have
        all, and nothing is done ahead.
        """
        if bench is not None and bench.device is self._device:
            if self._slow or self._quick < MAX_QUICK:
                start = time.perf_counter()
                bench.dispatch(pipeline)
                slow = time.perf_counter() - start > SLOW_S
                self._slow |= slow
                self._quick += not slow
                self._tried.set()
        elif not self._tried.wait(TRIED_S) or self._slow:
            kernel = pipeline.kernel
            try:
                bench = bench or _Bench(self._device.another())
                with bench.device.guarded(f"compiling {kernel.name}"):
                    bench.dispatch(bench.device.compile(kernel))
            except DeviceError as error:
                log.info("%s is compiled at its first dispatch: %s", kernel.name, error)
        return bench


class _Bench:
    """A device, with buffers to dispatch kernels on that have nothing to do."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._blanks: list[Any] = []

    def dispatch(self, pipeline: Pipeline) -> None:
        """Dispatches no workgroups of a pipeline, and waits until that is done."""
        device, kernel, calls = self.device, pipeline.kernel, native.calls()
        while len(self._blanks) < len(kernel.tensors):
            self._blanks.append(device.buffer("blank", 16))
        params = None
        if kernel.params:
            params = device.buffer("words", kernel.params_nbytes, UNIFORM)
        group = device.bind_group(pipeline, self._blanks[: len(kernel.tensors)], params, 0)
        command = calls.command(pipeline.pipeline, group, (0, 1, 1), 0 if kernel.repeats else None)
        encoder = device.wgpu.create_command_encoder()
        calls.record(encoder, [command])
        device.submit(encoder)
        calls.finish(device.wgpu)


_switching: list[float] = []
"""The interval as it was before, for each block of `quick_switches` that is open."""
_switching_lock = threading.Lock()


@contextmanager
def quick_switches() -> Iterator[None]:
    """Threads take turns in Python every `SWITCH_S`, until the last such block is left."""
    with _switching_lock:
        before = _switching[0] if _switching else sys.getswitchinterval()
        _switching.append(before)
        sys.setswitchinterval(min(SWITCH_S, before))
    try:
        yield
    finally:
        with _switching_lock:
            _switching.pop()
            if not _switching:
                sys.setswitchinterval(before)
