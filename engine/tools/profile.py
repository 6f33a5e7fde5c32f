"""Profile: where the time of a call goes: per kernel, node, operator and transfer, with rates."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, NamedTuple

from engine import costs
from engine.costs import DeviceProfile
from engine.ir import Array
from engine.json_text import dumps
from engine.records import dataclass
from engine.runtime.recording import Event
from engine.runtime.session import InferenceSession
from engine.tools.inputs import describe

HOST_KINDS = ("bind", "encode", "submit", "wait")


@dataclass(frozen=True)
class Cost:
    """What one kernel, node, operator or transfer cost in a call of the model.

    Attributes:
        device: "gpu", "cpu" or "transfer".
        name: operators of a kernel, an operator, or a value that crosses.
        shader: file of the kernel that ran, "upload", "download", or "".
        origin: names of the model's nodes; a fused group's time is that of its nodes together.
        path: keys of the control flow nodes around it.
        count: how often it ran in a call.
        ms: median over the calls of the time of all its runs in one.
        flops, nbytes: operations, and bytes read and written, or moved. What a group of several
            dispatches does counts for each in proportion to its time.
        bound: what the device's profile says is the least time of it: "compute", "memory",
            "launch" on the GPU or "overhead" on the CPU; "" for transfers.
        ceiling: that least time over the measured one; 0 where no time was measured.
    """

    device: str
    name: str
    shader: str
    origin: tuple[str, ...]
    path: tuple[str, ...]
    count: float
    ms: float
    flops: int
    nbytes: int
    bound: str = ""
    ceiling: float = 0.0

    @property
    def gflops_per_s(self) -> float:
        return self.flops / self.ms / 1e6 if self.ms else 0.0

    @property
    def gb_per_s(self) -> float:
        return self.nbytes / self.ms / 1e6 if self.ms else 0.0


@dataclass(frozen=True)
class Call:
    """One recorded call: its begin and end, and its events in order."""

    start_ns: int
    end_ns: int
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Profile:
    """What `profile` measured; times in milliseconds, medians over the calls.

    Attributes:
        device: the adapter, or "CPU (NumPy)".
        clock: "timestamps" (the device's), "host" (single submits), or "" without kernels.
        inputs: names, dtypes and shapes.
        call_ms: a call as it is; recorded_ms: one that is recorded.
        kernels, nodes, types: by dispatch, by node or fused group, by operators; slowest first.
        transfers: what crosses; slowest first.
        totals: by part of a call: "gpu" (busy), "cpu" (nodes), "upload", "download", and the host's
            "bind", "encode", "submit" and "wait"; "rest" is what no event covers.
        rates: the ceilings, as the device's profile has them.
        calls: every recorded call.
    """

    device: str
    clock: str
    inputs: str
    call_ms: float
    recorded_ms: float
    kernels: tuple[Cost, ...]
    nodes: tuple[Cost, ...]
    types: tuple[Cost, ...]
    transfers: tuple[Cost, ...]
    totals: dict[str, float]
    rates: DeviceProfile | None
    calls: tuple[Call, ...] = field(repr=False)

    def to_json(self) -> str:
        """The profile as JSON: all rows, without the single events."""
        content = {n: getattr(self, n) for n in self.__dataclass_fields__ if n != "calls"}
        for name in ("kernels", "nodes", "types", "transfers"):
            rows = content[name]
            content[name] = [
                {**asdict(r), "gflops_per_s": r.gflops_per_s, "gb_per_s": r.gb_per_s} for r in rows
            ]
        content["rates"] = None if self.rates is None else asdict(self.rates)
        return dumps(content, indent=2)


def profile(
    session: InferenceSession,
    feeds: Mapping[str, Any],
    *,
    repeats: int = 5,
    clock: str = "auto",
    progress: Callable[[str], None] = lambda text: None,
) -> Profile:
    """Measures warm calls, recorded ones and others in turn.

    Args:
        session: of the model.
        feeds: as `InferenceSession.run` takes them.
        repeats: recorded calls.
        clock: "auto" or "host"; see `InferenceSession.recording`.
        progress: is told what is being done.

    Raises: as `InferenceSession.run` and `recording`.
    """
    progress("first call")
    session.run(None, feeds)
    plain_ms: list[float] = []
    calls: list[Call] = []
    with session.recording(clock):
        session.run(None, feeds)
    for repeat in range(repeats):
        progress(f"call {repeat + 1} of {repeats}")
        start = time.perf_counter()
        session.run(None, feeds)
        plain_ms.append((time.perf_counter() - start) * 1e3)
        with session.recording(clock) as recording:
            session.run(None, feeds)
        calls.append(Call(recording.start_ns, recording.end_ns, tuple(recording.events)))
    arrays: dict[str, Array] = {n: v for n, v in feeds.items() if hasattr(v, "dtype")}
    return summarise(calls, session.device_name, recording.clock_used, describe(arrays), plain_ms)


def summarise(
    calls: Sequence[Call], device: str, clock: str, inputs: str, plain_ms: Sequence[float]
) -> Profile:
    """The profile of recorded calls; `plain_ms` are the times of calls that were not recorded."""
    rates = next((e.plan.profile for c in calls for e in c.events if e.plan.dispatches), None)
    keys = (_kernel_key, _node_key, _type_key, _transfer_key)
    kernels, nodes, types, transfers = (_costs(calls, key, rates, _on_host(clock)) for key in keys)
    return Profile(
        device,
        clock,
        inputs,
        statistics.median(plain_ms),
        statistics.median((c.end_ns - c.start_ns) / 1e6 for c in calls),
        kernels,
        nodes,
        types,
        transfers,
        _totals(calls, clock),
        rates,
        tuple(calls),
    )


class Key(NamedTuple):
    """What rows are told apart by."""

    device: str
    name: str
    origin: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    detail: Any = ""


def _kernel_key(event: Event) -> Key | None:
    if event.kind != "kernel":
        return None
    detail = (event.dispatch, shader_name(event))
    return Key("gpu", event.name, origin(event), event.path, detail)


def _node_key(event: Event) -> Key | None:
    if event.kind == "kernel":
        return Key("gpu", event.name, origin(event), event.path)
    if event.kind in ("node", "bodies"):
        return Key("cpu", _cpu_name(event), origin(event), event.path)
    return None


def _type_key(event: Event) -> Key | None:
    if event.kind == "kernel":
        return Key("gpu", event.name)
    return Key("cpu", _cpu_name(event)) if event.kind in ("node", "bodies") else None


def _transfer_key(event: Event) -> Key | None:
    if event.kind in ("upload", "download"):
        return Key("transfer", event.name, (), event.path, event.kind)
    return None


def _cpu_name(event: Event) -> str:
    return f"{event.name} (around its bodies)" if event.kind == "bodies" else event.name


def shader_name(event: Event) -> str:
    """The file that the kernel of a dispatch was made from, without its ending."""
    variant = event.plan.dispatches[event.dispatch].variants[event.variant]
    return event.plan.kernels[variant.kernel].stem


def origin(event: Event) -> tuple[str, ...]:
    """Names of the model's nodes that an event is about."""
    if event.dispatch >= 0:
        return event.plan.dispatches[event.dispatch].origin
    producer = event.plan.graph.producer
    found = [producer[key] for key in event.nodes if key in producer]
    return tuple(dict.fromkeys(o for n in found for o in (n.origin or (n.name or n.key,))))


class _Work(NamedTuple):
    flops: float
    nbytes: float


class _Works:
    """What events do, in operations and bytes, at the sizes of their calls."""

    def __init__(self) -> None:
        self._dispatches: dict[tuple[Any, ...], tuple[int, ...]] = {}
        self._nodes: dict[tuple[Any, ...], Mapping[str, tuple[int, int]]] = {}

    def dispatch(self, event: Event) -> _Work:
        """Of the whole group of a dispatch, in one repetition."""
        key = _sizes_key(event)
        if key not in self._dispatches:
            dims = [n for d in event.plan.dispatches for n in (d.flops, d.nbytes)]
            self._dispatches[key] = costs.evaluate_all(dims, event.binding)
        found = self._dispatches[key]
        flops, nbytes = found[2 * event.dispatch : 2 * event.dispatch + 2]
        return _Work(flops / event.repeats, nbytes / event.repeats)

    def node(self, event: Event) -> _Work:
        """Of a node in NumPy; control flow itself does nothing."""
        if event.kind == "bodies":
            return _Work(0, 0)
        key = _sizes_key(event)
        if key not in self._nodes:
            sizes = costs.Sizes(event.plan.graph, event.binding)
            self._nodes[key] = costs.amounts(event.plan.graph, sizes)
        return _Work(*self._nodes[key][event.nodes[0]])


def _sizes_key(event: Event) -> tuple[Any, ...]:
    return (id(event.plan), tuple(sorted(event.binding.items())))


def works_of(events: Sequence[Event], works: _Works) -> dict[int, _Work]:
    """Operations and bytes of kernels, nodes and transfers, by index; stages share by time."""
    found: dict[int, _Work] = {}
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for index, event in enumerate(events):
        if event.kind == "kernel":
            groups[id(event.plan), event.path, event.nodes].append(index)
        elif event.kind in ("node", "bodies"):
            found[index] = works.node(event)
        elif event.kind in ("upload", "download"):
            found[index] = _Work(0, event.nbytes)
    for members in groups.values():
        stages = len({events[i].dispatch for i in members})
        whole = [works.dispatch(events[i]) for i in members]
        flops, nbytes = (sum(w[part] for w in whole) / stages for part in (0, 1))
        total = sum(events[i].elapsed_ns for i in members) or 1
        for i in members:
            share = events[i].elapsed_ns / total
            found[i] = _Work(flops * share, nbytes * share)
    return found


def own_ns(events: Sequence[Event], on_host: Callable[[Event], bool]) -> dict[int, int]:
    """Time of each event, that of control flow nodes less what happened in their bodies."""
    inside: dict[tuple[str, ...], int] = defaultdict(int)
    outer: dict[tuple[str, ...], int] = defaultdict(int)
    for event in events:
        if on_host(event):
            inside[event.path] += event.elapsed_ns
        if event.kind == "bodies":
            outer[(*event.path, event.nodes[0])] += event.elapsed_ns
    found = {}
    for index, event in enumerate(events):
        found[index] = event.elapsed_ns
        if event.kind == "bodies":
            path = (*event.path, event.nodes[0])
            left = max(outer[path] - inside[path], 0)
            found[index] = event.elapsed_ns * left // max(outer[path], 1)
    return found


def _on_host(clock: str) -> Callable[[Event], bool]:
    """Which events take time of the host's thread."""
    return lambda event: event.kind != "kernel" or clock == "host"


def _costs(
    calls: Sequence[Call],
    key_of: Callable[[Event], Key | None],
    rates: DeviceProfile | None,
    on_host: Callable[[Event], bool],
) -> tuple[Cost, ...]:
    """A row for each key, slowest first."""
    works = _Works()
    times: dict[Key, list[float]] = {}
    sums: dict[Key, list[float]] = {}
    for number, call in enumerate(calls):
        work = works_of(call.events, works)
        own = own_ns(call.events, on_host)
        for index, event in enumerate(call.events):
            key = key_of(event)
            if key is None:
                continue
            times.setdefault(key, [0.0] * len(calls))[number] += own[index] / 1e6
            total = sums.setdefault(key, [0.0, 0.0, 0.0])
            total[0] += 1
            total[1] += work[index].flops
            total[2] += work[index].nbytes
    rows = [_cost(k, times[k], sums[k], len(calls), rates) for k in times]
    return tuple(sorted(rows, key=lambda row: -row.ms))


def _cost(
    key: Key,
    times: Sequence[float],
    sums: Sequence[float],
    calls: int,
    rates: DeviceProfile | None,
) -> Cost:
    ms = statistics.median(times)
    count, flops, nbytes = (s / calls for s in sums)
    bound, least_ms = _least(key.device, count, flops, nbytes, rates)
    detail = key.detail[1] if isinstance(key.detail, tuple) else key.detail
    return Cost(
        key.device,
        key.name,
        detail,
        key.origin,
        key.path,
        count,
        ms,
        round(flops),
        round(nbytes),
        bound,
        least_ms / ms if ms else 0.0,
    )


def _least(
    device: str, count: float, flops: float, nbytes: float, rates: DeviceProfile | None
) -> tuple[str, float]:
    """What takes longest by the device's profile, and how many milliseconds."""
    if rates is None or device == "transfer":
        return "", 0.0
    if device == "gpu":
        parts = {
            "compute": flops / (2 * rates.gpu.fma_per_s) * 1e3,
            "memory": nbytes / rates.gpu.bytes_per_s * 1e3,
            "launch": count * rates.gpu.launch_ns / 1e6,
        }
    else:
        parts = {
            "compute": flops / rates.cpu.flops_per_s * 1e3,
            "memory": nbytes / rates.cpu.memory_bytes_per_s * 1e3,
            "overhead": count * rates.cpu.node_ns / 1e6,
        }
    bound = max(parts, key=lambda name: parts[name])
    return bound, parts[bound]


def _totals(calls: Sequence[Call], clock: str) -> dict[str, float]:
    """Medians of the parts of a call."""
    per_call = [_parts(call, clock) for call in calls]
    return {name: statistics.median(p[name] for p in per_call) for name in per_call[0]}


def _parts(call: Call, clock: str) -> dict[str, float]:
    on_host = _on_host(clock)
    own = own_ns(call.events, on_host)
    names = {"kernel": "gpu", "node": "cpu", "bodies": "cpu"}
    parts = dict.fromkeys(("gpu", "cpu", "upload", "download", *HOST_KINDS), 0.0)
    for index, event in enumerate(call.events):
        parts[names.get(event.kind, event.kind)] += own[index] / 1e6
    covered = sum(own[i] for i, e in enumerate(call.events) if on_host(e))
    parts["rest"] = max(call.end_ns - call.start_ns - covered, 0) / 1e6
    return parts
