"""Timestamps: when each dispatch began and ended, by the device's clock or else the host's.

A timed dispatch has a compute pass of its own, since WebGPU writes timestamps where passes begin
and end. Nothing here is used, and nothing is paid, unless a call is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import wgpu

from engine.runtime.device import READBACK, STORAGE, Device

MAX_QUERIES = 4096
"""The most that a query set holds. Source: WebGPU, 20.1 GPUQuerySet."""

_PAIRS = MAX_QUERIES // 2
_RESOLVE = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC


class Interval(NamedTuple):
    """Begin and end in nanoseconds of one clock."""

    begin_ns: int
    end_ns: int


class QueryClock:
    """Timestamp queries of one recorded call: a pair per timed dispatch, by number.

    Args:
        device: one with `Device.timestamps`.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._sets: list[Any] = []
        self._count = 0
        self._resolved: list[tuple[tuple[int, ...], int, Any]] = []

    def begin(self) -> tuple[int, dict[str, Any]]:
        """The number of the next pair, and what its compute pass is made with."""
        number = self._count
        self._count += 1
        place = number % _PAIRS
        if place == 0:
            with self.device.guarded("timestamp queries"):
                made = self.device.wgpu.create_query_set(type="timestamp", count=MAX_QUERIES)
            self._sets.append(made)
        writes = {
            "query_set": self._sets[-1],
            "beginning_of_pass_write_index": 2 * place,
            "end_of_pass_write_index": 2 * place + 1,
        }
        return number, {"timestamp_writes": writes}

    def resolve(self, encoder: Any, numbers: Sequence[int]) -> None:
        """Records the copies of pairs that `encoder` has written, and of no others.

        A query that was never written must not be resolved: a driver may wait for it for ever.
        """
        for run in _runs(numbers):
            nbytes = 16 * len(run)
            found = self.device.buffer("timestamps", nbytes, _RESOLVE)
            staging = self.device.buffer("read timestamps", nbytes, READBACK)
            first = run[0] % _PAIRS
            query_set = self._sets[run[0] // _PAIRS]
            encoder.resolve_query_set(query_set, 2 * first, 2 * len(run), found, 0)
            encoder.copy_buffer_to_buffer(found, 0, staging, 0, nbytes)
            self._resolved.append((run, nbytes, staging))

    def read(self) -> dict[int, Interval]:
        """The pairs that were resolved, in the device's nanoseconds; waits for the device."""
        period_ns = timestamp_period_ns(self.device)
        intervals = {}
        for run, nbytes, staging in self._resolved:
            with self.device.guarded("reading timestamps"):
                staging.map_sync("READ")
                ticks = np.frombuffer(staging.read_mapped(0, nbytes), np.uint64).reshape(-1, 2)
                staging.unmap()
            for number, (begin, end) in zip(run, ticks.tolist(), strict=True):
                intervals[number] = Interval(round(begin * period_ns), round(end * period_ns))
        self._resolved.clear()
        return intervals


def _runs(numbers: Sequence[int]) -> list[tuple[int, ...]]:
    """Neighbouring numbers together, as far as they are in one query set."""
    runs: list[list[int]] = [[n] for n in numbers[:1]]
    for before, number in pairwise(numbers):
        if number == before + 1 and number % _PAIRS:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [tuple(run) for run in runs]


def timestamp_period_ns(device: Device) -> float:
    """Nanoseconds per tick of the device's timestamps, which wgpu hands out as they are."""
    from wgpu.backends.wgpu_native import lib

    return float(lib.wgpuQueueGetTimestampPeriod(device.queue._internal))


def align(intervals: Sequence[Interval], earliest_ns: Sequence[int]) -> list[Interval]:
    """Intervals of the device's clock on the host's, in order of time and without overlap.

    The clocks differ by a constant; it is taken to be the least that lets no work begin before it
    was submitted. Where the device ran dispatches side by side, the later one counts from the end
    of the earlier one, so that the sum is the time in which the device was busy.

    Args:
        intervals: of the device, in order of submission.
        earliest_ns: for each, when the host submitted it.
    """
    if not intervals:
        return []
    offset = max(e - i.begin_ns for i, e in zip(intervals, earliest_ns, strict=True))
    aligned, last_ns = [], 0
    for interval in intervals:
        begin_ns = max(interval.begin_ns + offset, last_ns)
        last_ns = max(interval.end_ns + offset, begin_ns)
        aligned.append(Interval(begin_ns, last_ns))
    return aligned


class HostClock:
    """Times single submits on the host, for adapters without timestamps.

    The time of a submit that does nothing is subtracted; it is measured when the clock is made.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._buffer = device.buffer("idle", 16, STORAGE)
        self._staging = device.buffer("read idle", 16, READBACK)
        self.idle_ns = min(self._idle_ns() for _ in range(5))

    def _idle_ns(self) -> int:
        start = time.perf_counter_ns()
        self.device.submit(self.device.wgpu.create_command_encoder())
        self.wait()
        return time.perf_counter_ns() - start

    def wait(self) -> None:
        """Until the device has done all that was submitted."""
        encoder = self.device.wgpu.create_command_encoder()
        encoder.copy_buffer_to_buffer(self._buffer, 0, self._staging, 0, 16)
        self.device.submit(encoder)
        with self.device.guarded("waiting for the device"):
            self._staging.map_sync("READ")
            self._staging.unmap()

    def time(self, encoder: Any) -> Interval:
        """Submits what `encoder` holds; until it is done, less the time of an empty submit.

        What was submitted or written before is waited for first.
        """
        self.wait()
        start = time.perf_counter_ns()
        self.device.submit(encoder)
        self.wait()
        end = time.perf_counter_ns()
        return Interval(start, max(end - self.idle_ns, start))
