"""ExecutionContext: the state of one call of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.bind import Bound, Chosen
from engine.errors import EngineError
from engine.ir import Graph
from engine.runtime.probe import Probe
from engine.runtime.recording import Event, Recording
from engine.runtime.timing import CallTimes
from engine.runtime.values import DeviceValue

RunBody = Callable[[Graph, Mapping[str, Any], Callable[[str], Any], Mapping[str, int]], list[Any]]
"""Runs a body: graph, its inputs, how to get a capture, the sizes bound around it."""


class WideInputError(EngineError):
    """An int64 value does not fit int32, or leaves no room for arithmetic; `name` is the value."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"value {name!r}: {message}")
        self.name = name


@dataclass
class ExecutionContext:
    """State of one call.

    Attributes:
        host: values on the host by name.
        external: values in buffers that do not belong to the plan: device inputs and outputs.
        binding: the symbols bound so far.
        bound: the numbers of each epoch bound so far.
        times: where the time goes.
        run_body: runs a body of a control flow node.
        grown: for outputs that grow in place, the input whose buffer they are in.
        wanted: values of GPU buffers that are needed on the host.
        encoder: the command encoder being recorded, if any.
        on_device: outputs that stay on the device.
        arrived: inputs that lie on the device, as values.
        recorded_ns: predicted time of the dispatches recorded since the last submit.
        predicted_ns: that of all dispatches recorded so far.
        submitted_ns: when the first submit was made, by `time.perf_counter_ns`; 0 before.
        chosen, shapes: what the epochs bound so far say, together.
        submitted: downloads that were not yet collected: the buffer to read, and how many bytes.
        recording: where events go, if the call is recorded.
        probe: is told of every group of nodes, if the call is observed.
        seen: values in place that the probe was shown.
        timed: dispatches recorded since the last submit, with the numbers of their queries.
    """

    host: dict[str, Any]
    external: dict[str, Any]
    binding: dict[str, int]
    times: CallTimes
    run_body: RunBody
    bound: list[Bound] = field(default_factory=list)
    grown: dict[str, DeviceValue] = field(default_factory=dict)
    wanted: frozenset[str] = frozenset()
    on_device: frozenset[str] = frozenset()
    arrived: dict[str, DeviceValue] = field(default_factory=dict)
    encoder: Any = None
    recorded_ns: int = 0
    predicted_ns: int = 0
    submitted_ns: int = 0
    chosen: Mapping[int, Chosen] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    submitted: dict[str, tuple[Any, int]] = field(default_factory=dict)
    recording: Recording | None = None
    probe: Probe | None = None
    seen: set[str] = field(default_factory=set)
    timed: list[tuple[Event, int]] = field(default_factory=list)
