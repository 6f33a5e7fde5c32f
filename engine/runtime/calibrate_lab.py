"""Small graphs run through the engine itself, so that what is timed is what a call costs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from engine import costs
from engine.compiler import compile_graph
from engine.costs import DeviceProfile, Sizes
from engine.dtypes import FLOAT32, from_numpy
from engine.fusion_rules import RULES
from engine.ir import Array, Graph, Node, TensorType, Value
from engine.options import Options
from engine.passes import PipelineResult
from engine.runtime.constants import ConstantStore
from engine.runtime.device import Device
from engine.runtime.executor import Executor
from engine.target import Target
from engine.work import GpuWork

SAMPLES = 6
"""Least runs of what is timed, however long they take."""
ATTEMPTS = 3
"""How often a difference that noise hides is measured again."""
SHARE_S = 0.02
"""Seconds for the runs of one action."""

Clock = Callable[[], int]


def fastest_ns(
    action: Callable[[], object], share_s: float = SHARE_S, clock: Clock = time.perf_counter_ns
) -> int:
    """The shortest time of `action` in nanoseconds, of `SAMPLES` runs or what `share_s` holds."""
    return fastest_of_ns([action], share_s, clock)[0]


def fastest_of_ns(
    actions: Sequence[Callable[[], object]],
    share_s: float = SHARE_S,
    clock: Clock = time.perf_counter_ns,
) -> list[int]:
    """`fastest_ns` of several actions that take turns, so that what slows one slows all."""
    for action in actions:
        action()
    return [min(samples) for samples in _samples(actions, share_s, clock)]


def usual_ns(action: Callable[[], object], share_s: float = SHARE_S) -> int:
    """`usual_of_ns` of one action."""
    return usual_of_ns([action], share_s)[0]


def usual_of_ns(
    actions: Sequence[Callable[[], object]],
    share_s: float = SHARE_S,
    clock: Clock = time.thread_time_ns,
) -> list[int]:
    """Lower quartiles of times of actions in turn, on a clock that stands while others run.

    What a model does is never all at its best: a sum over its nodes is one of usual times.
    """
    return [sorted(s)[len(s) // 4] for s in _samples(actions, share_s, clock)]


def _samples(
    actions: Sequence[Callable[[], object]], share_s: float, clock: Clock
) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in actions]
    started = time.perf_counter_ns()
    while (
        len(found[0]) < SAMPLES or time.perf_counter_ns() - started < share_s * len(actions) * 1e9
    ):
        for action, samples in zip(actions, found, strict=True):
            before = clock()
            action()
            samples.append(max(clock() - before, 1))
    return found


@dataclasses.dataclass
class Chain:
    """Nodes each of which reads the one before it, from input "x" on.

    Attributes:
        shape: of the input.
        values: of the graph so far.
        nodes: so far.
        last: the value that the next node reads.
    """

    shape: tuple[int, ...]
    values: dict[str, Value]
    nodes: list[Node]
    last: str = "x"

    @classmethod
    def start(cls, *shape: int) -> Chain:
        """A chain without nodes."""
        return cls(shape, {"x": Value("x", TensorType(FLOAT32, shape))}, [])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Shape of the last value."""
        tensor = self.values[self.last].tensor
        found = None if tensor is None else tensor.static_shape
        return () if found is None else found

    def add(
        self,
        op_type: str,
        *constants: Array | str,
        shape: Sequence[int] | None = None,
        **attrs: Any,
    ) -> Chain:
        """One more node; its first input is the chain, the others constants or names of values."""
        names = [self.last]
        for constant in constants:
            if isinstance(constant, str):
                names.append(constant)
                continue
            name = f"c{len(self.values)}"
            kind = TensorType(from_numpy(constant.dtype), constant.shape)
            self.values[name] = Value(name, kind, constant=constant)
            names.append(name)
        sizes = self.sizes if shape is None else tuple(shape)
        self.last = f"v{len(self.values)}"
        self.values[self.last] = Value(self.last, TensorType(FLOAT32, sizes))
        self.nodes.append(
            Node(op_type, tuple(names), (self.last,), attrs=attrs, since_version=25, name=self.last)
        )
        return self

    def graph(self, *outputs: str, inputs: Collection[str] = ("x",)) -> Graph:
        """The chain as a graph; without `outputs`, the last value is the output."""
        return Graph(
            tuple(self.nodes), self.values, tuple(inputs), outputs or (self.last,), opset={"": 25}
        )


class Lab:
    """Runs graphs on one device, or in NumPy alone.

    A software adapter is timed by the CPU time of the process, which does not depend on what else
    the machine does: `threads` of it pass in a second.
    """

    def __init__(self, device: Device | None, profile: DeviceProfile) -> None:
        self.device = device
        self.profile = profile
        self.constants = None if device is None else ConstantStore(device)
        self.is_software = device is not None and device.info.is_software

    def times_of_ns(self, *calls: Callable[[], object]) -> list[int]:
        """The times of calls that take turns: the usual ones in CPU time, or the shortest."""
        if self.is_software:
            return usual_of_ns(calls, clock=time.process_time_ns)
        return fastest_of_ns(calls)

    def more_ns(self, less: Graph, more: Graph, on_cpu: Collection[str] = ()) -> int:
        """How much longer a graph takes than another; measured again while noise hides it."""
        calls = self.call(less), self.call(more, on_cpu)
        shortest = self.times_of_ns(*calls)
        for _ in range(ATTEMPTS):
            if shortest[1] - shortest[0] > shortest[1] // 20:
                break
            again = self.times_of_ns(*calls)
            shortest = [min(pair) for pair in zip(shortest, again, strict=True)]
        return max(shortest[1] - shortest[0], shortest[1] // 20)

    def threads(self, graph: Graph) -> float:
        """How many seconds of CPU time a second holds while the graph runs; 1 for hardware."""
        if not self.is_software:
            return 1.0
        call, most = self.call(graph), 1.0
        for _ in range(SAMPLES):
            wall, cpu = time.perf_counter_ns(), time.process_time_ns()
            call()
            wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
            most = max(most, cpu / max(wall, 1))
        return most

    def call(self, graph: Graph, on_cpu: Collection[str] = ()) -> Callable[[], object]:
        """What runs a graph once, on inputs of ones; the nodes `on_cpu` in NumPy."""
        target = Target.baseline() if self.device is None else self.device.target
        options = Options(
            device="cpu" if self.device is None else "gpu",
            disable=frozenset(name for name, _ in RULES),
            refused=dict.fromkeys(on_cpu, "the way there and back is measured"),
        )
        plan = compile_graph(PipelineResult(graph, {}, ()), options, target, self.profile, {})
        executor = Executor(plan, self.device, self.constants)
        feeds = {name: np.ones(_shape(graph, name), np.float32) for name in graph.inputs}
        return lambda: executor.run(feeds, {}, graph.outputs, _no_bodies)

    def work(self, graph: Graph) -> GpuWork:
        """What the last node of a graph does, as costs count it."""
        target = None if self.device is None else self.device.target
        return costs.works(graph, Sizes(graph), target)[graph.nodes[-1].key].gpu


def _shape(graph: Graph, name: str) -> tuple[int, ...]:
    tensor = graph.tensor(name)
    found = None if tensor is None else tensor.static_shape
    return () if found is None else found


def _no_bodies(*arguments: Any) -> list[Any]:
    raise AssertionError("graphs that are measured have no bodies")


def rate(amount: int, ns: int) -> int:
    """`amount` per `ns` as a whole number per second, at least 1."""
    return max(amount * 1_000_000_000 // max(ns, 1), 1)


def less(whole_ns: int, *parts_ns: int) -> int:
    """`whole_ns` less its parts; a tenth of it where noise or an estimate leaves less."""
    return max(whole_ns - sum(parts_ns), whole_ns // 10, 1)
