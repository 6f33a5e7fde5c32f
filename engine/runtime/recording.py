"""Recording: what a call did and when, as events: kernels, transfers, nodes on the CPU, waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any, Literal

from engine.errors import EngineError
from engine.plan import Plan
from engine.records import dataclass
from engine.runtime.device import Device
from engine.runtime.timestamps import HostClock, Interval, QueryClock, align

Kind = Literal["kernel", "upload", "download", "node", "bodies", "bind", "encode", "submit", "wait"]
Clock = Literal["auto", "host"]


@dataclass(frozen=True)
class Event:
    """Something that took time in a call.

    Attributes:
        kind: "kernel" is a dispatch on the GPU and "node" one in NumPy; "bodies" is a control flow
            node with all that its bodies do; the others are work of the host for the GPU.
        name: operators of a kernel or node, or the name of a value.
        start_ns, end_ns: on the clock of `time.perf_counter_ns`.
        plan: the plan that it is part of; that of a body inside control flow.
        path: keys of the control flow nodes around it, outermost first.
        nodes: keys of the nodes of the plan's graph that it computes.
        dispatch: index in `Plan.dispatches`, or -1.
        variant: which alternative of the dispatch ran.
        grid: its workgroups.
        repeats: how often the call dispatches it; this is one of them.
        binding: the sizes of the call.
        nbytes: bytes that a transfer moves.
    """

    kind: Kind
    name: str
    start_ns: int
    end_ns: int
    plan: Plan = field(repr=False)
    path: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    dispatch: int = -1
    variant: int = 0
    grid: tuple[int, int, int] = (0, 0, 0)
    repeats: int = 1
    binding: Mapping[str, int] = field(default_factory=dict)
    nbytes: int = 0

    @property
    def elapsed_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass
class Recording:
    """The events of the last call that was recorded; see `InferenceSession.recording`.

    Attributes:
        clock: "auto" asks the device's timestamps where there are any; "host" submits kernels
            singly and waits for each.
        events: in order of their begin, once the call is over.
        start_ns, end_ns: the call.
        clock_used: "timestamps", "host", or "" where no kernel ran.
    """

    clock: Clock = "auto"
    events: list[Event] = field(default_factory=list)
    start_ns: int = 0
    end_ns: int = 0
    clock_used: str = ""
    path: tuple[str, ...] = ()
    _queries: QueryClock | None = None
    _host: HostClock | None = None
    _kernels: list[tuple[Event, int]] = field(default_factory=list)

    def start(self) -> None:
        """Forgets the call before."""
        self.events.clear()
        self._kernels.clear()
        self._queries = None
        self.path, self.clock_used = (), ""
        if self.end_ns < self.start_ns:  # cut short
            self._host = None
        self.start_ns = time.perf_counter_ns()

    def finish(self) -> None:
        """Reads timestamps and brings the events in order."""
        self.end_ns = time.perf_counter_ns()
        if self._queries is not None:
            self._place_kernels(self._queries.read())
        self.events.sort(key=lambda e: (e.start_ns, -e.end_ns))

    def _place_kernels(self, found: dict[int, Interval]) -> None:
        events = [event for event, _ in self._kernels]
        intervals = [found[number] for _, number in self._kernels]
        aligned = align(intervals, [e.start_ns for e in events])
        self.events += [
            replace(e, start_ns=i.begin_ns, end_ns=i.end_ns)
            for e, i in zip(events, aligned, strict=True)
        ]

    def queries(self, device: Device) -> QueryClock | None:
        """The clock of this call's dispatches; None: `submits` times them."""
        if self.clock == "host" or not device.timestamps:
            return None
        if self._queries is None:
            self._queries = QueryClock(device)
        self.clock_used = "timestamps"
        return self._queries

    def submits(self, device: Device) -> HostClock:
        """The clock that times single submits."""
        if self._host is None or self._host.device is not device:
            self._host = HostClock(device)
        self.clock_used = "host"
        return self._host

    def add(
        self,
        kind: Kind,
        name: str,
        start_ns: int,
        plan: Plan,
        *,
        end_ns: int | None = None,
        **more: Any,
    ) -> None:
        """Adds an event that ends now if not told otherwise; encoding is one with the last."""
        end_ns = time.perf_counter_ns() if end_ns is None else end_ns
        last = self.events[-1] if self.events else None
        if kind == "encode" and last is not None and last.kind == kind and last.plan is plan:
            self.events[-1] = replace(last, end_ns=end_ns)
        else:
            self.events.append(Event(kind, name, start_ns, end_ns, plan, self.path, **more))

    def add_kernels(self, timed: list[tuple[Event, int]], submitted_ns: int) -> None:
        """Adds dispatches that were submitted, with the numbers of their pairs of queries."""
        self._kernels += [(replace(event, start_ns=submitted_ns), n) for event, n in timed]

    @contextmanager
    def inside(self, key: str) -> Iterator[None]:
        """What happens in the block happens in the bodies of a control flow node."""
        before, self.path = self.path, (*self.path, key)
        try:
            yield
        finally:
            self.path = before


def check_clock(clock: str) -> Clock:
    """`clock` if it is one. Raises: EngineError with what there is."""
    clocks: dict[str, Clock] = {"auto": "auto", "host": "host"}
    if clock not in clocks:
        raise EngineError(f"clock is one of {list(clocks)}, not {clock!r}")
    return clocks[clock]
