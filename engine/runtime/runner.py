"""Runner: a graph and the plans made for it so far; picks or makes the plan for each call."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.checks import GuardTable, LimitError
from engine.costs import DeviceProfile
from engine.errors import InputError, PlanError
from engine.ir import Array, Graph, Node
from engine.options import Options
from engine.plan import Plan
from engine.ranges import CHECKED
from engine.runtime.constants import ConstantStore
from engine.runtime.context import WideInputError
from engine.runtime.device import Device
from engine.runtime.executor import Executor
from engine.runtime.face import Traits, traits_of
from engine.runtime.feeds import bind_inputs, held, kind, specialised, typed, with_contents
from engine.runtime.garbage import held_back
from engine.runtime.prepared import MAX_DECIDED, Prepared, StoredPlan
from engine.runtime.probe import Probe
from engine.runtime.recording import Recording
from engine.runtime.timing import CallTimes
from engine.runtime.values import DeviceValue
from engine.shader import Kernel
from engine.target import Target

if TYPE_CHECKING:
    from engine.passes import PipelineResult

log = logging.getLogger(__name__)

MAX_PLANS = 8
"""That a runner keeps, the last used ones."""
MAX_CONTENTS = 4
"""For how many contents of inputs such as axes a session makes plans of their own."""
MAX_CONTENT_SIZE = 64
"""Most elements of such a content."""
MAX_RECENT = 32
"""For how many sizes of inputs a runner without a GPU remembers the plan."""
FAR = 2.0
"""Logarithm to base 2 of the factor between sizes beyond which another split may be much better."""
GAIN = 0.9
"""A split is worth a plan of its own if it takes less than this of the time."""


class Runner:
    """Runs one graph, top level or body.

    Args:
        graph: as imported; captures count as further inputs. Its inputs and outputs are enough
            where `whole` returns all of it.
        options: what the user chose.
        device: None where everything runs on the CPU.
        profile: what "auto" decides by.
        constants: the session's weights on the device.
        is_body: whether it is the body of a control flow node, whose inputs change all the time.
        whole: the graph as imported, called when a plan is made.
        traits: what is known of the graph, if it is.
    """

    def __init__(
        self,
        graph: Graph,
        options: Options,
        device: Device | None,
        profile: DeviceProfile,
        constants: ConstantStore | None,
        is_body: bool = False,
        whole: Callable[[], Graph] | None = None,
        traits: Traits | None = None,
    ) -> None:
        captured = tuple(n for n in graph.captures if graph.constant(n) is None)
        self.graph = graph.replace(inputs=(*graph.inputs, *captured), captures=())
        self.captured = captured
        self.options = options
        self.device = device
        self.profile = profile
        self.constants = constants
        self.prepared: list[Prepared] = []
        self.compiled = 0
        self._whole = whole
        self.traits = traits_of(self.graph) if traits is None else traits
        self.planning = () if device is None or is_body else self.traits.planning
        self._contents: set[tuple[Any, ...]] = set()
        self.lock = threading.RLock()
        self._passed: dict[tuple[Any, ...], PipelineResult] = {}
        self._bodies: dict[int, tuple[Graph, Runner]] = {}
        self._recent: dict[tuple[Any, ...], tuple[Prepared, dict[str, int]]] = {}
        self._recording: Recording | None = None
        self._probe: Probe | None = None

    def run(
        self,
        feeds: Mapping[str, Any],
        outputs: Collection[str] | None = None,
        on_device: Collection[str] = (),
        around: Mapping[str, int] | None = None,
        recording: Recording | None = None,
        probe: Probe | None = None,
    ) -> tuple[dict[str, Any], CallTimes]:
        """Values of the outputs by name, and where the time went.

        `around` gives the sizes that the graphs around a body have bound; `recording` and
        `probe` are told what happens, in bodies too.

        Raises: InputError for inputs that contradict the graph; else as `Executor.run`.
        """
        outputs = self.graph.outputs if outputs is None else outputs
        self._recording, self._probe = recording, probe
        options = self.options
        arrays = all(type(v) is np.ndarray for v in feeds.values())
        if not arrays:
            growing, held_inputs = self._growing(feeds, on_device), held(feeds)
            if growing or held_inputs:
                options = replace(options, growing=growing, held_inputs=held_inputs)
        while True:
            prepared, binding = self._recalled(feeds, arrays, options, around or {})
            try:
                _scan(prepared.plan, feeds)
                watching = on_device, recording, probe
                return prepared.executor.run(feeds, binding, outputs, self._run_body, *watching)
            except WideInputError as error:
                wide = _to_blame(prepared.plan, error.name)
                if wide <= options.wide_inputs:
                    raise
                log.info("%s; nodes that read %s run on the CPU", error, sorted(wide))
                options = replace(options, wide_inputs=options.wide_inputs | wide)
            except LimitError as error:
                options = _without(options, error)

    def _recalled(
        self,
        feeds: Mapping[str, Any],
        arrays: bool,
        options: Options,
        around: Mapping[str, int],
    ) -> tuple[Prepared, Mapping[str, int]]:
        """The plan for a call: that of an earlier one, if its inputs were arrays of these sizes.

        `arrays` says whether they are arrays now.
        """
        if not arrays or self.planning or options is not self.options:
            return self._prepare(feeds, options, around)
        key = tuple((n, v.dtype, v.shape) for n, v in feeds.items()), tuple(around.items())
        found = self._recent.get(key)
        if found is None or found[0] not in self.prepared:
            while len(self._recent) >= MAX_RECENT:
                self._recent.pop(next(iter(self._recent)))
            found = self._recent[key] = self._prepare(feeds, options, around)
        self._use(*found)
        return found

    def _use(self, prepared: Prepared, binding: Mapping[str, int]) -> None:
        """Notes that a call is about to use a plan: the last used one is the first."""
        if prepared is not self.prepared[0]:
            self.prepared.remove(prepared)
            self.prepared.insert(0, prepared)
        prepared.binding = binding

    def _growing(
        self, feeds: Mapping[str, Any], on_device: Collection[str]
    ) -> frozenset[tuple[str, str]]:
        """Pairs of an input and an output, both on the device: the second appends to the first."""
        return frozenset(
            (past, grown)
            for past, grown in self.traits.growing
            if grown in on_device and isinstance(feeds.get(past), DeviceValue)
        )

    def plan(self, feeds: Mapping[str, Any], stand_ins: bool = False) -> Plan:
        """The plan that a call with these inputs would use; of stand-ins only types count."""
        return self._prepare(feeds, self.options, {}, stand_ins, ahead=False)[0].plan

    def prepared_for(self, plan: Plan) -> Prepared:
        """What was prepared with a plan."""
        return next(p for p in self.prepared if p.plan is plan)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers of all plans on the device, those of bodies too; no weights."""
        bodies = sum(runner.nbytes for _, runner in self._bodies.values())
        return bodies + sum(p.executor.recorder.held_nbytes for p in self.prepared)

    def close(self) -> None:
        """Drops plans and weights, those of bodies too."""
        self.prepared.clear()
        self._passed.clear()
        self._recent.clear()
        self._bodies.clear()
        self.constants = None

    def forget(self) -> None:
        """Clears what `executed` says, in the bodies too."""
        for prepared in self.prepared:
            prepared.executor.places = None
        for _, runner in self._bodies.values():
            runner.forget()

    def executed(self, views: bool = True) -> Iterator[tuple[Node, str]]:
        """Nodes run since `forget`, with "gpu" or "cpu", bodies included; `views` too, or not.

        A view is where the value is whose buffer it shares, and what joins or cuts in place is on
        the GPU.
        """
        for prepared in self.prepared:
            places, graph = prepared.executor.places, prepared.plan.graph
            if places is not None:
                places = {**dict.fromkeys(prepared.plan.parts.copied, "gpu"), **places}
            for node in graph.nodes if places is not None else ():
                if not views and node.key not in (places or {}):
                    continue
                root = prepared.plan.root(node.key)
                maker = graph.producer.get(root)
                default = "cpu" if root in graph.inputs else ""
                place = (places or {}).get(root if maker is None else maker.key, default)
                if place:
                    yield node, place
        for _, runner in self._bodies.values():
            yield from runner.executed(views)

    def adopt(self, stored: StoredPlan) -> None:
        """Takes a plan that was made earlier."""
        executor = Executor(stored.plan, self.device, self.constants)
        made = (stored.key, stored.make_passed, stored.options, stored.decided)
        self.prepared.append(Prepared(stored.plan, executor, *made))

    def bodies(self, graph: Graph) -> Iterator[tuple[tuple[str, ...], Graph, Plan | None]]:
        """Bodies of the control flow nodes of a plan's graph: where, as written, last plan."""
        for node in graph.nodes:
            for name, body in node.bodies.items():
                runner = self._bodies.get(id(body), (body, None))[1]
                plan = runner.prepared[0].plan if runner is not None and runner.prepared else None
                path = (node.key, name)
                yield path, body, plan
                inner = (
                    self.bodies(body)
                    if runner is None or plan is None
                    else runner.bodies(plan.graph)
                )
                yield from (((*path, *rest), graph, found) for rest, graph, found in inner)

    def _known(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Inputs whose content the plan of this call may count on; none for too many contents."""
        found: dict[str, Array] = {}
        for name in self.planning:
            fed = feeds.get(name)
            if not isinstance(fed, np.ndarray) or fed.dtype.kind not in "iuf":
                continue
            if fed.ndim <= 1 and fed.size <= MAX_CONTENT_SIZE:
                found[name] = fed
        if not found:
            return found
        content = tuple((n, a.dtype.str, a.shape, a.tobytes()) for n, a in found.items())
        if content not in self._contents:
            if len(self._contents) >= MAX_CONTENTS:
                return {}
            self._contents.add(content)
        return found

    def _prepare(
        self,
        feeds: Mapping[str, Any],
        options: Options,
        around: Mapping[str, int],
        stand_ins: bool = False,
        ahead: bool = True,
    ) -> tuple[Prepared, dict[str, int]]:
        known = {} if stand_ins else self._known(feeds)
        signature = tuple(
            (*kind(feeds.get(n)), known[n].tobytes() if n in known else None)
            for n in self.graph.inputs
        )
        key = (
            signature,
            options.wide_inputs,
            options.held_inputs,
            frozenset(options.refused),
            options.growing,
        )
        fitting = []
        for prepared in self.prepared:
            if prepared.key == key:
                try:
                    binding = bind_inputs(prepared.plan.graph, feeds, around)
                except InputError:  # a plan for other sizes alone, unless these fit none
                    continue
                if not prepared.executor.binder.guards.broken(binding):
                    fitting.append((prepared.distance(binding), prepared, binding))
        if fitting:
            distance, prepared, binding = min(fitting, key=lambda found: found[0])
            if distance <= FAR or not self._improves(prepared, options, binding):
                self._use(prepared, binding)
                return prepared, binding
        device = self.device if ahead else None
        with device.compiling() if device is not None else nullcontext(_ignored) as written:
            return self._compile(feeds, known, options, around, signature, key, written)

    def _improves(self, prepared: Prepared, options: Options, binding: Mapping[str, int]) -> bool:
        """Whether another split is predicted to be better at sizes far from those that decided."""
        if options.device != "auto" or self.device is None:
            return False
        if len(prepared.decided) >= MAX_DECIDED:
            return False
        from engine.splits import split_ms

        target = self.device.target
        kept_ms, best_ms = split_ms(
            prepared.passed, options, target, self.profile, binding, prepared.on_gpu
        )
        if best_ms >= GAIN * kept_ms:
            prepared.decided.append(dict(binding))
            return False
        log.info("planning anew: %.3f ms predicted instead of %.3f ms", best_ms, kept_ms)
        return True

    @held_back()
    def _compile(
        self,
        feeds: Mapping[str, Any],
        known: Mapping[str, Array],
        options: Options,
        around: Mapping[str, int],
        signature: tuple[Any, ...],
        key: tuple[Any, ...],
        written: Callable[[Kernel], object],
    ) -> tuple[Prepared, dict[str, int]]:
        from engine.compiler import optimise

        whole = self.graph if self._whole is None else self._whole()
        graph = with_contents(typed(whole, feeds), known)
        binding = bind_inputs(graph, feeds, around)
        software = self.device is not None and self.device.target.software
        on_cpu = software or options.device == "cpu"
        passed = self._passed.get(signature)
        if passed is None or GuardTable(passed.guards).broken(binding):
            passed = optimise(graph, options, binding, on_cpu)
            self._passed[signature] = passed
        plan, used = self._planned(passed, options, binding, around, written)
        if GuardTable(plan.guards).broken(binding):
            fixed = specialised(graph, binding)
            passed = optimise(fixed, options, binding, on_cpu)
            plan, used = self._planned(passed, options, binding, around, written)
            binding = bind_inputs(plan.graph, feeds, around)
            for guard in GuardTable(plan.guards).broken(binding):
                raise PlanError(f"no plan fits these sizes: it would need that {guard}")
        executor = Executor(plan, self.device, self.constants)
        prepared = Prepared(plan, executor, key, lambda: passed, used, [dict(binding)], binding)
        self.compiled += 1
        self.prepared.insert(0, prepared)
        if len(self.prepared) > MAX_PLANS:
            del self.prepared[MAX_PLANS:]
            self._drop_bodies()
        return prepared, binding

    def _drop_bodies(self) -> None:
        """Drops the runners of bodies that belong to no plan any more."""
        graphs = [p.plan.graph for p in self.prepared]
        kept = {id(body) for g in graphs for node in g.nodes for body in node.bodies.values()}
        self._bodies = {key: pair for key, pair in self._bodies.items() if key in kept}

    def _planned(
        self,
        passed: PipelineResult,
        options: Options,
        binding: Mapping[str, int],
        around: Mapping[str, int],
        written: Callable[[Kernel], object],
    ) -> tuple[Plan, Options]:
        """The plan of a graph, without the kernels that no size makes fit the device, and the
        options that leave them out."""
        from engine.compiler import compile_graph

        target = self.device.target if self.device is not None else Target.baseline()
        while True:
            try:
                settled = options, target, self.profile, binding, around, written
                return compile_graph(passed, *settled), options
            except LimitError as error:
                options = _without(options, error)

    def _run_body(
        self,
        body: Graph,
        feeds: Mapping[str, Any],
        capture: Callable[[str], Any],
        around: Mapping[str, int],
    ) -> list[Any]:
        if id(body) not in self._bodies:
            made = Runner(body, self.options, self.device, self.profile, self.constants, True)
            self._bodies[id(body)] = (body, made)
        runner = self._bodies[id(body)][1]
        values = {**feeds, **{name: capture(name) for name in runner.captured}}
        results, _ = runner.run(values, around=around, recording=self._recording, probe=self._probe)
        return [results[name] for name in body.outputs]


def _ignored(kernel: Kernel) -> None:
    """Is told kernels that no call is about to run."""


def _scan(plan: Plan, feeds: Mapping[str, Any]) -> None:
    """Raises: WideInputError if an int64 input is not what the plan takes it for."""
    low, high = CHECKED
    for name in plan.checked_inputs:
        fed = feeds.get(name)
        if isinstance(fed, np.ndarray) and fed.size and not low <= fed.min() <= fed.max() <= high:
            raise WideInputError(name, f"values from {fed.min()} to {fed.max()} are too large")


def _to_blame(plan: Plan, name: str) -> frozenset[str]:
    """The int64 inputs whose range a plan assumed, where `name` turned out not to fit int32."""
    if name in plan.graph.inputs:
        return frozenset([name])
    return frozenset(plan.checked_inputs)


def _without(options: Options, error: LimitError) -> Options:
    """Options that keep the nodes of a limit off the GPU. Raises: `error` if they are already."""
    if options.refused.keys() >= set(error.nodes):
        raise error
    log.info("nodes %s go to the CPU: %s", error.nodes, error)
    refused = {**options.refused, **dict.fromkeys(error.nodes, str(error))}
    return replace(options, refused=refused)
