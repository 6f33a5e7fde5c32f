"""InferenceSession: a model ready to run, with the names and call shapes of ONNX Runtime."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from difflib import get_close_matches
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import proxy

from engine.errors import (
    DeviceError,
    EngineError,
    InputError,
    ModelError,
    ShapeError,
    UnsupportedOpError,
)
from engine.ir import Graph, Node, OptionalType, is_control_flow
from engine.options import Options, check_device, names_of
from engine.partition import check_all_gpu
from engine.plan import Plan
from engine.rates import DeviceProfile
from engine.runtime import cache, calibrate, start, tunings
from engine.runtime.constants import ConstantStore
from engine.runtime.device import Device, adapters, open_device
from engine.runtime.face import ModelMetadata, NodeArg, face_of
from engine.runtime.feeds import Feed, check_feed, has_static_inputs, stand_ins
from engine.runtime.garbage import held_back
from engine.runtime.native import HollowCalls
from engine.runtime.probe import Probe
from engine.runtime.recording import Recording, check_clock
from engine.runtime.runner import Runner
from engine.runtime.timing import CallTimes
from engine.target import Target
from engine.tuning import Tuning

if TYPE_CHECKING:
    from engine.explain import Measured, Report
    from engine.importer import Model

log = logging.getLogger(__name__)

GPU_PROVIDER, CPU_PROVIDER = "WgpuExecutionProvider", "CPUExecutionProvider"


class InferenceSession:
    """Runs one ONNX model.

    Args:
        model: path, bytes, or ModelProto.
        sess_options, provider_options: accepted for ONNX Runtime's sake; what they ask for is not
            used, and logged.
        providers: ONNX Runtime's list; one that names only the CPU means `device="cpu"`.
        device: "auto" takes the split with the least predicted time, "gpu" runs whatever has a
            kernel on the GPU, "cpu" runs everything in NumPy.
        require_gpu: refuse the model if any node would run on the CPU; "auto" then means "gpu".
        adapter: index or part of the name of the GPU; see `onnx-wgpu devices`.
        disable: names of passes and fusion rules to leave out; a string is one name.
        target: limits and features that kernels may use: a `Target`, "baseline" (what every
            WebGPU device guarantees) or "adapter" (all that this one offers; the default unless
            the environment variable ENGINE_TARGET says otherwise).
        tuning: styles of kernels; by default what is shipped for the adapter, and what
            `onnx-wgpu tune` measured on it; "off" takes the default style for all.
        profile: what "auto" decides by: the name of a profile that comes with the engine
            (`onnx-wgpu devices --profile` lists them), a JSON file, or a `DeviceProfile`; by
            default what was measured here, once, by the first session that is to decide. Of
            another device the target is "baseline" if none is given; results are the same.

    Raises: ModelError for a malformed model, UnsupportedOpError for an operator that nothing
        implements, InputError for options or providers of the wrong type, DeviceError if
        `device="gpu"` and there is no adapter.
    """

    @held_back()
    def __init__(
        self,
        model: str | PathLike[str] | bytes | Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        device: str = "auto",
        require_gpu: bool = False,
        adapter: int | str | None = None,
        disable: Collection[str] | str = (),
        target: Target | str | None = None,
        tuning: Tuning | str | None = None,
        profile: DeviceProfile | str | PathLike[str] | None = None,
    ) -> None:
        if isinstance(sess_options, (str, list, tuple)):
            raise InputError(
                f"sess_options are no options: {sess_options!r}; say device= or providers="
            )
        device = _from_providers(providers, device)
        if require_gpu and device == "auto":
            device = "gpu"
        if require_gpu and device == "cpu":
            raise EngineError("require_gpu is set, and so is that everything runs on the CPU")
        options = Options(device=check_device(device), disable=names_of(disable))
        if options.disable:
            from engine.compiler import check_options

            check_options(options)
        if sess_options is not None or provider_options is not None:
            log.info("options are accepted for compatibility; none of them changes the session")
        self._require_gpu = require_gpu
        self._adapter = adapter
        self._profile = _named(profile)
        if target is None and self._profile is not None:
            target = replace(Target.baseline(), software=self._profile.software)
        self._target = target
        self._tuning = tuning
        self._options = options
        self._closed = False
        self.times = CallTimes()
        self._unkept: str | None = None
        self._recording: Recording | None = None
        self._probe: Probe | None = None
        self._hollow: HollowCalls | None = None
        self._lock = threading.RLock()
        self._source, self._made_at = model, time.time()
        self._identity = start.identity(model, self._made_at)
        self._model: Model | None = None
        if self._identity is None:
            self._whole()
        elif not isinstance(model, bytes):
            self._source = os.path.abspath(model)  # the working directory may change
        self._device = self._open_device()
        self._runner = self._make_runner()
        if require_gpu and has_static_inputs(self._face.graph) and not self._runner.planning:
            check_all_gpu(self._runner.plan(stand_ins(self._face.graph)).partition)

    def _open_device(self) -> Device | None:
        if self._options.device == "cpu":
            return None
        if self._options.device == "auto" and self._adapter is None and not adapters():
            log.info("no GPU adapter was found; everything runs on the CPU")
            return None
        return open_device(self._adapter, self._target)

    def _whole(self) -> Graph:
        """The model's graph. Raises: ModelError if its file is another one by now."""
        if self._model is None:
            known = self._identity
            if known is not None and start.identity(self._source, self._made_at) != known:
                raise ModelError(f"{self._source!r} has changed since this session was made")
            from engine.importer import load_model

            self._model = load_model(self._source, for_gpu=self._options.device == "gpu")
            self._source = None
            _check_operators(self._model.graph)
        return self._model.graph

    def _make_runner(self) -> Runner:
        device, options = self._device, self._options
        constants = None
        about: tuple[object, ...] = ()
        if device is None:
            options = Options("cpu", options.device == "auto", options.disable)
            profile = self._profile or calibrate.cpu_profile()
            about = (profile,)
        else:
            with device.lock, device.guarded("measuring its speed"):
                decides = options.device == "auto"
                find = calibrate.device_profile if decides else calibrate.known_profile
                profile = self._profile or find(device)
            constants = ConstantStore(device)
            tuning = tunings.resolve(self._tuning, device.info, device.target)
            options = replace(options, tuning=tuning)
            about = (device.info.title, device.target, profile)
        kept = None
        if self._identity is not None and self._model is None:
            self._unkept = start.name(self._identity, options, *about)
            kept = start.load(self._unkept) if self._unkept is not None else None
        if kept is None:
            self._whole()
        if self._model is not None:
            self._face = face_of(self._model)
        elif kept is not None:
            self._face, self._unkept = kept.face, None
        graph, traits = self._face.graph, self._face.traits
        session = proxy(self)  # a runner that holds its session would keep both, and all buffers
        runner = Runner(
            graph,
            options,
            device,
            profile,
            constants,
            whole=lambda: session._whole(),
            traits=traits,
        )
        for found in kept.plans if kept is not None else ():
            runner.adopt(found)
        if constants is not None and kept is not None:
            constants.names(kept.names)
        return runner

    def _keep(self) -> None:
        """Has what the first call worked out kept for later processes."""
        if self._unkept is not None and self._model is not None and not self._model.files:
            start.keep(self._unkept, self._face, self._runner.prepared)
        self._unkept = None
        cache.flush()

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
        *,
        outputs_on_device: Collection[str] = (),
    ) -> list[Any]:
        """Runs the model.

        Args:
            output_names: which outputs, in which order; None or empty means all.
            input_feed: input name to array, DeviceValue, list (a sequence) or None (an optional).
            run_options: accepted for ONNX Runtime's sake, not used.
            outputs_on_device: outputs to return as DeviceValue, not downloaded.

        Raises: InputError for wrong names, dtypes, ranks or sizes; EngineError if a node fails;
            DeviceError if the device is lost or full: the next call makes a new one.
        """
        names = self._output_names(output_names)
        self._output_names(outputs_on_device)
        kept = [n for n in outputs_on_device if n in names]
        if kept and self._device is None:
            raise DeviceError(
                f"outputs {kept} cannot stay on a device: this session runs on the CPU, "
                + ("as device='cpu' asks" if self._options.device == "cpu" else "there is no GPU")
            )
        with self._lock, self._ready():
            feeds = self._check_feeds(input_feed)
            if self._require_gpu:
                check_all_gpu(self._runner.plan(feeds).partition)
            self._runner.forget()
            with self._device.guarded("a call") if self._device else nullcontext():
                if self._recording is not None:
                    self._recording.start()
                with self._device.made_by(self._hollow) if self._device else nullcontext():
                    results, self.times = self._runner.run(
                        feeds, names, kept, recording=self._recording, probe=self._probe
                    )
                if self._recording is not None:
                    self._recording.finish()
        self._keep()
        return [_owned(results[n]) for n in names]

    @contextmanager
    def recording(self, clock: str = "auto") -> Iterator[Recording]:
        """Records what calls in the block do, and when; it holds the events of the last one.

        Each dispatch then has a compute pass of its own, so that calls take a little longer.

        Args:
            clock: "auto" times kernels by the device's timestamps where it has them; "host", the
                other way, submits them singly and waits for each.

        Raises: EngineError for another clock.
        """
        before, self._recording = self._recording, Recording(check_clock(clock))
        try:
            yield self._recording
        finally:
            self._recording = before

    @contextmanager
    def hollow(self) -> Iterator[None]:
        """Calls in the block do all but the work of kernels, whose dispatches are empty.

        What such a call takes is the host's: feeding, recording, submitting and waiting, and
        transfers. Results are whatever lies in the buffers; nodes in NumPy may fail on them.
        """
        device = self._device
        before, self._hollow = self._hollow, HollowCalls(device.calls) if device else None
        try:
            yield
        finally:
            self._hollow = before

    def _ready(self) -> threading.RLock:
        """What a call holds besides `_lock`, for one at a time on a device; a lost one is replaced.

        Both are entered by `with` themselves: a generator would keep them for as long as the
        traceback of an interrupt is kept.
        """
        if self._closed:
            raise EngineError("the session is closed")
        for file in self._model.files if self._model is not None else ():
            file.check()
        if self._device is not None and self._device.lost:
            self._device = self._open_device()
        if self._device is not self._runner.device:
            self._runner = self._make_runner()
        return self._device.lock if self._device is not None else self._lock

    @contextmanager
    def probed(self, probe: Probe) -> Iterator[None]:
        """Tells `probe` of every group of nodes that calls in the block run, and shows values."""
        before, self._probe = self._probe, probe
        try:
            yield
        finally:
            self._probe = before

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that a call must give, as the model declares them."""
        return list(self._face.inputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs with a default that a call may give."""
        return list(self._face.overridable)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, as the model declares them."""
        return list(self._face.outputs)

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says of itself."""
        return self._face.metadata

    def get_providers(self) -> list[str]:
        """Where nodes may run, as ONNX Runtime would list it."""
        return [CPU_PROVIDER] if self._device is None else [GPU_PROVIDER, CPU_PROVIDER]

    @property
    def device_name(self) -> str:
        """The adapter in one line, or "CPU (NumPy)"."""
        return "CPU (NumPy)" if self._device is None else self._device.info.title

    def plan(self, input_feed: Mapping[str, Any] | None = None) -> Plan:
        """The plan of the last call, or of one with these inputs, or with sizes of 1.

        Raises: as `run`.
        """
        with self._lock, self._ready():
            if input_feed is None and self._runner.prepared:
                return self._runner.prepared[0].plan
            if input_feed is None:
                try:
                    return self._runner.plan(stand_ins(self._face.graph), stand_ins=True)
                except ShapeError as error:
                    raise ShapeError(
                        f"{error}; nothing ran yet, so that all sizes are taken to be 1: "
                        "run the model first, or give inputs here"
                    ) from error
            return self._runner.plan(self._check_feeds(input_feed))

    def explain(
        self, input_feed: Mapping[str, Any] | None = None, measured: Measured | None = None
    ) -> Report:
        """Where each node runs, why, and what it costs, for the last call or for these inputs.

        With a `profile`, and no GPU here, it is about what the device of that profile would run.

        `measured` has the times of calls; see `engine.tools.measure`. Raises: as `run`.
        """
        runner = self._runner
        no_gpu = self._device is None and self._options.device == "auto"
        if no_gpu and self._profile is not None and input_feed is not None:
            runner = Runner(self._whole(), self._options, None, self._profile, None)
            plan = runner.plan(self._check_feeds(input_feed))
        else:
            plan = self.plan(input_feed)
        found = runner.prepared_for(plan)
        from engine.explain import explain
        from engine.explain.build import body_row

        bodies = [body_row(*body) for body in runner.bodies(plan.graph)]
        where = self.device_name
        if self._profile is not None:
            where += f", planned as for {self._profile.name}"
        made = found.passed, where, found.options
        return explain(plan, *made, measured, bodies, found.binding)

    def executed(self, views: bool = True) -> list[tuple[Node, str]]:
        """Nodes that the last run computed, and where: "gpu" (in a dispatch) or "cpu".

        Without `views` those are left out that only give a value another shape, as in `explain`.
        Nodes of bodies are among them; what was folded or never needed is not.
        """
        return list(self._runner.executed(views))

    @property
    def plans_made(self) -> int:
        """How many plans this session has compiled so far."""
        return self._runner.compiled

    @property
    def device_nbytes(self) -> int:
        """Bytes on the GPU that this session holds now: weights, activations, staging."""
        constants = self._runner.constants
        return self._runner.nbytes + (constants.nbytes if constants is not None else 0)

    def close(self) -> None:
        """Frees buffers and plans; every later call raises EngineError."""
        with self._lock:
            self._closed = True
            self._runner.close()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _output_names(self, names: Collection[str] | None) -> Sequence[str]:
        known = self._face.graph.outputs
        if names is None:
            return known
        if isinstance(names, str):
            raise InputError(f"output names are a list of strings, not the string {names!r}")
        if not isinstance(names or (), Collection):
            raise InputError(f"output names are a list of strings, not {names!r}")
        unknown = [n for n in names or () if n not in known]
        if unknown:
            raise InputError(f"the model has no outputs {unknown}; it has {list(known)}")
        return tuple(names) if names else known

    def _check_feeds(self, input_feed: Mapping[str, Any]) -> dict[str, Feed]:
        graph = self._face.graph
        if not isinstance(input_feed, Mapping):
            raise InputError(
                f"inputs are a dict of arrays by name, not a {type(input_feed).__name__}; "
                f"the model has {list(graph.inputs)}"
            )
        unknown = [n for n in input_feed if n not in graph.inputs]
        if unknown:
            raise InputError(f"the model has no inputs {unknown}; it has {list(graph.inputs)}")
        feeds: dict[str, Feed] = {}
        for name in graph.inputs:
            declared = graph.values[name]
            if name in input_feed:
                feeds[name] = check_feed(name, declared.type, input_feed[name], self._device)
            elif declared.constant is None and not isinstance(declared.type, OptionalType):
                raise InputError(f"input {name!r} is missing; expected {declared.type}")
        return feeds


def _owned(result: Any) -> Any:
    """A result of the caller's own: items of sequences are those of inputs, weights, each other."""
    return [item.copy() for item in result] if isinstance(result, list) else result


def _named(profile: DeviceProfile | str | PathLike[str] | None) -> DeviceProfile | None:
    if profile is None or isinstance(profile, DeviceProfile):
        return profile
    return DeviceProfile.named(os.fspath(profile))


def _from_providers(providers: Sequence[Any] | None, device: str) -> str:
    """The device that ONNX Runtime's `providers` asks for."""
    if not providers:
        return device
    if isinstance(providers, str) or not all(isinstance(p, (str, tuple)) for p in providers):
        raise InputError(f"providers are a list of names, or of names with options: {providers!r}")
    names = [p if isinstance(p, str) else p[0] for p in providers]
    if all(n == CPU_PROVIDER for n in names):
        return "cpu"
    ignored = [n for n in names if n not in (GPU_PROVIDER, CPU_PROVIDER)]
    if ignored:
        log.warning("providers %s are not this engine's; device=%r is used", ignored, device)
    return device


def _check_operators(graph: Graph) -> None:
    from cpu_fallback import registry
    from engine.ops._fit import is_fits

    for _, node in graph.walk():
        if is_control_flow(node) or is_fits(node):
            continue
        if registry.exists(node.op_type, node.domain, node.since_version) is None:
            domain = node.domain or "ai.onnx"
            raise UnsupportedOpError(
                f"node {node.name or node.key!r}: nothing implements {domain} "
                f"{node.op_type}-{node.since_version}{_next_step(node)}"
            )


def _next_step(node: Node) -> str:
    """What a user can do about an operator that nothing implements."""
    from engine import ops

    known = {op.op_type for op in ops.registered() if op.domain == node.domain}
    near = get_close_matches(node.op_type, known, 1, cutoff=0.8)
    if near:
        return f"; is {near[0]} meant?"
    if node.domain:
        return "; operators of one's own run if the model brings them as functions (FunctionProto)"
    return "; `onnx-wgpu ops` lists what there is"
