"""Trace: recorded calls as a file for Perfetto (ui.perfetto.dev) or Chrome's about:tracing.

Source: Trace Event Format, complete events ("X") and metadata ("M"); times in microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.runtime.recording import Event
from engine.tools.profile import Call, origin, shader_name

CPU, TRANSFERS, GPU, BODIES = 1, 2, 3, 4
"""Tracks; control flow nodes have one for each depth, from `BODIES` on."""

_TRACKS = {CPU: "CPU", TRANSFERS: "transfers", GPU: "GPU"}
_PROCESS = 1


def chrome_trace(calls: Sequence[Call], model: str, device: str) -> dict[str, Any]:
    """The trace of recorded calls, to be written as JSON.

    Args:
        calls: in order.
        model: its name. device: the adapter.
    """
    events = [(number, event) for number, call in enumerate(calls) for event in call.events]
    start_ns = min((call.start_ns for call in calls), default=0)
    slices = [_slice(event, number, start_ns) for number, event in events]
    slices.sort(key=lambda s: (s["tid"], s["ts"]))
    depths = sorted({s["tid"] for s in slices if s["tid"] >= BODIES})
    tracks = {**_TRACKS, **{t: f"control flow, depth {t - BODIES}" for t in depths}}
    return {
        "displayTimeUnit": "ms",
        "otherData": {"model": model, "device": device, "calls": len(calls)},
        "traceEvents": [
            _metadata("process_name", 0, model),
            *(_metadata("thread_name", tid, name) for tid, name in tracks.items()),
            *slices,
        ],
    }


def _metadata(what: str, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": tid, "args": {"name": name}}


def _slice(event: Event, call: int, start_ns: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {"call": call}
    if event.path:
        arguments["inside"] = " / ".join(event.path)
    if event.nodes:
        arguments["nodes"] = list(origin(event))
    if event.kind == "kernel":
        arguments["shader"] = shader_name(event)
        arguments["workgroups"] = list(event.grid)
    if event.nbytes:
        arguments["bytes"] = event.nbytes
    return {
        "ph": "X",
        "name": event.name if event.kind in ("kernel", "node", "bodies") else _step_name(event),
        "cat": event.kind,
        "pid": _PROCESS,
        "tid": _track(event),
        "ts": (event.start_ns - start_ns) / 1e3,
        "dur": event.elapsed_ns / 1e3,
        "args": arguments,
    }


def _step_name(event: Event) -> str:
    return event.kind if event.name == event.kind else f"{event.kind} {event.name}"


def _track(event: Event) -> int:
    match event.kind:
        case "kernel":
            return GPU
        case "upload" | "download":
            return TRANSFERS
        case "bodies":
            return BODIES + len(event.path)
    return CPU
