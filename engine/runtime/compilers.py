"""Compilers: threads that compile kernels before they are used.

Drivers take long to compile, and let other threads run meanwhile. Most compile when a pipeline is
made. Mesa's software Vulkan does so when a pipeline is first dispatched, kernel by kernel in the
one thread of a device's queue. There each kernel is dispatched without workgroups ahead of its use,
and other cores compile on further devices of the adapter: what these compile comes to the first one
through the driver's cache, which knows shaders by their content.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from engine.errors import DeviceError
from engine.runtime import native
from engine.runtime.device import READBACK, UNIFORM, Device, Pipeline, Wanted
from engine.shader import Kernel

log = logging.getLogger(__name__)

MAX_COMPILERS = 4
"""Threads that compile kernels."""
SLOW_S = 0.04
"""What compiling takes longer than is not in the driver's cache."""
UNCACHED = ("MESA_SHADER_CACHE_DISABLE", "MESA_GLSL_CACHE_DISABLE")
"""Environment variables by which Mesa's cache is turned off."""


def compile_ahead(device: Device, wanted: Collection[Wanted]) -> dict[str, Future[Pipeline]]:
    """Begins to compile kernels; by their keys, the pipelines, once they are compiled."""
    # compiling takes as long as a text is, roughly, and what takes longest should not come last
    ordered = sorted(wanted, key=lambda w: len(w[0].wgsl), reverse=True)
    count = min(MAX_COMPILERS, os.cpu_count() or 1, len(ordered))
    pool = ThreadPoolExecutor(count, "onnx-wgpu compiler")
    if device.compiles_late and any(words is not None for _, words in ordered):
        benches = _Benches(device, count if _is_cached() else 1, len(ordered))
        found = {k.key: pool.submit(benches.compile, k, words) for k, words in ordered}
    else:
        found = {k.key: pool.submit(device.compile, k) for k, _ in ordered}
    pool.shutdown(wait=False)
    return found


def _is_cached() -> bool:
    """Whether devices of Mesa share what they compile."""
    off = ("1", "true", "yes", "y")
    return not any(os.environ.get(name, "").lower() in off for name in UNCACHED)


class _Benches:
    """The devices on which kernels for a device are compiled, each by one thread at a time.

    If the first kernel takes no time, an earlier process left all of them in the driver's cache,
    and nothing is done ahead.

    Args:
        device: for which; it is one of them.
        count: how many there are at most.
        wanted: after how many kernels they are not needed any more.
    """

    def __init__(self, device: Device, count: int, wanted: int) -> None:
        self._device = device
        self._left = iter(range(wanted)[::-1])
        self._idle: SimpleQueue[_Bench | None] = SimpleQueue()
        self._first = _Bench(device)
        for bench in (self._first, *[None] * (count - 1)):
            self._idle.put(bench)
        self._tried = threading.Event()
        self._slow = False

    def compile(self, kernel: Kernel, words: bytes | None) -> Pipeline:
        """The pipeline of a kernel; if there are words, its first dispatch will take no time."""
        bench = self._idle.get()
        try:
            pipeline = self._device.compile(kernel)
            if words is not None and bench is self._first:
                self._here(bench, pipeline, words)
            elif words is not None and (self._slow or not self._tried.wait(SLOW_S)):
                bench = self._elsewhere(bench, kernel, words)
            return pipeline
        finally:
            self._idle.put(bench)
            if next(self._left) == 0:
                self._close()

    def _here(self, bench: _Bench, pipeline: Pipeline, words: bytes) -> None:
        if self._slow or not self._tried.is_set():
            start = time.perf_counter()
            bench.dispatch(pipeline, words)
            self._slow |= time.perf_counter() - start > SLOW_S
            self._tried.set()

    def _elsewhere(self, bench: _Bench | None, kernel: Kernel, words: bytes) -> _Bench | None:
        """Compiles a kernel on a further device, where that is possible, and returns the bench."""
        try:
            bench = bench or _Bench(self._device.another())
            with bench.device.guarded(f"compiling {kernel.name}"):
                bench.dispatch(bench.device.compile(kernel), words)
        except DeviceError as error:
            log.info("%s is compiled at its first dispatch: %s", kernel.name, error)
        return bench

    def _close(self) -> None:
        while not self._idle.empty():
            bench = self._idle.get()
            if bench is not None and bench is not self._first:
                bench.device.close()


class _Bench:
    """A device, with buffers to dispatch kernels on that have nothing to do."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._blanks: list[Any] = []

    def dispatch(self, pipeline: Pipeline, words: bytes) -> None:
        """Dispatches no workgroups of a pipeline, and waits until that is done."""
        device, kernel, calls = self.device, pipeline.kernel, native.calls()
        while len(self._blanks) < len(kernel.tensors):
            self._blanks.append(device.buffer("blank", 16))
        answer = device.buffer("answer", 16, READBACK)
        params = None
        if kernel.params:
            params = device.buffer("words", kernel.params_nbytes, UNIFORM)
            device.write(params, words)
        group = device.bind_group(pipeline, self._blanks[: len(kernel.tensors)], params, 0)
        command = calls.command(pipeline.pipeline, group, (0, 1, 1), 0 if kernel.repeats else None)
        encoder = device.wgpu.create_command_encoder()
        calls.record(encoder, [command])
        encoder.copy_buffer_to_buffer(self._blanks[0], 0, answer, 0, 16)
        device.submit(encoder)
        with device.mapped(answer, 16, f"compiling {kernel.name}"):
            pass
