"""Runs: the two sides of a comparison, their outputs, and values in between in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from engine.errors import EngineError, UsageError
from engine.ir import Array
from engine.passes import PIPELINE
from engine.records import dataclass
from engine.runtime.probe import Observed, Probe
from engine.runtime.session import InferenceSession
from engine.target import Target

OPTIONAL_PASSES = tuple(step.name for step in PIPELINE if not step.required)

NAMES = {
    "cpu": "NumPy without passes",
    "onnxruntime": "ONNX Runtime",
    "reference": "onnx.reference",
}
"""What a comparison can be against, in words."""
AGAINST = tuple(NAMES)

MAX_PROTO_NBYTES = 1 << 31


@dataclass(frozen=True)
class Setup:
    """How the side that is examined runs the model: as `InferenceSession` takes it."""

    model: Path
    device: str = "gpu"
    require_gpu: bool = False
    adapter: int | str | None = None
    target: Target | str | None = None
    disable: frozenset[str] = frozenset()

    def session(
        self, disable: Collection[str] = (), device: str | None = None, model: Any = None
    ) -> InferenceSession:
        """A session, with more passes and rules left out, on another device, of another model."""
        device = device or self.device
        return InferenceSession(
            str(self.model) if model is None else model,
            device=device,
            require_gpu=self.require_gpu and device != "cpu" and not disable and model is None,
            adapter=self.adapter,
            disable=self.disable | set(disable),
            target=self.target,
        )

    def plain(self) -> InferenceSession:
        """NumPy, with no pass but those that are required."""
        return InferenceSession(str(self.model), device="cpu", disable=OPTIONAL_PASSES)


class Place(NamedTuple):
    """One value of a call: in which bodies, in which run of its maker, and its name."""

    path: tuple[str, ...]
    turn: int
    name: str


def trail(session: InferenceSession, feeds: Mapping[str, Any]) -> dict[Place, int]:
    """Every value that a call computes and its bytes, in the order in which they are computed."""
    found: dict[Place, int] = {}

    def note(place: Place, read: Callable[[], Any], group: Observed) -> None:
        found[place] = _nbytes(read()) if not group.on_gpu else _device_nbytes(group, place.name)

    _walk(session, feeds, note)
    return found


def _device_nbytes(group: Observed, name: str) -> int:
    from engine.dims import evaluate

    tensor = group.plan.tensor(name)
    size = 1 if tensor.size is None else evaluate(tensor.size, group.binding)
    return size * tensor.dtype.nbytes


def collect(
    session: InferenceSession, feeds: Mapping[str, Any], wanted: Collection[Place]
) -> dict[Place, Any]:
    """Some values of a call. Those that no group writes as a value of its own are missing."""
    found: dict[Place, Any] = {}

    def note(place: Place, read: Callable[[], Any], group: Observed) -> None:
        if place in wanted:
            value = read()
            found[place] = value.copy() if isinstance(value, np.ndarray) else value

    _walk(session, feeds, note)
    return found


def _walk(
    session: InferenceSession,
    feeds: Mapping[str, Any],
    note: Callable[[Place, Callable[[], Any], Observed], None],
) -> None:
    turns: Counter[tuple[tuple[str, ...], str]] = Counter()

    def visit(group: Observed) -> None:
        for name in group.writes:
            turn = turns[group.path, name]
            turns[group.path, name] += 1
            note(Place(group.path, turn, name), lambda name=name: group.read(name), group)  # type: ignore[misc]

    with session.probed(Probe(visit, inputs=False)):
        session.run(None, feeds)


def _nbytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    return sum(map(_nbytes, value)) if isinstance(value, list) else 0


def slices(
    places: Sequence[Place], nbytes: Mapping[Place, int], budget: int
) -> Iterator[list[Place]]:
    """`places` in order, as many at a time as `budget` bytes hold, one at least."""
    chosen: list[Place] = []
    left = budget
    for place in places:
        if chosen and nbytes[place] > left:
            yield chosen
            chosen, left = [], budget
        chosen.append(place)
        left -= nbytes[place]
    if chosen:
        yield chosen


class Reference:
    """The side that is taken to be right.

    Args:
        kind: one of `AGAINST`.
        setup: names the model.

    Raises: EngineError if there is no such reference, or it cannot load the model.
    """

    def __init__(self, kind: str, setup: Setup) -> None:
        if kind not in AGAINST:
            raise EngineError(f"a comparison is against one of {list(AGAINST)}, not {kind!r}")
        self.kind = kind
        self.setup = setup
        self._plain = setup.plain() if kind == "cpu" else None

    def outputs(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The model's outputs by name."""
        if self._plain is not None:
            names = [a.name for a in self._plain.get_outputs()]
            return dict(zip(names, self._plain.run(None, feeds), strict=True))
        return self._foreign(feeds, ())

    def places(self, feeds: Mapping[str, Any]) -> list[Place]:
        """The values in between that it can give, in order."""
        if self._plain is not None:
            return list(trail(self._plain, feeds))
        proto = onnx.load(self.setup.model, load_external_data=False)
        return [Place((), 0, n) for node in proto.graph.node for n in node.output if n]

    def values(self, feeds: Mapping[str, Any], wanted: Collection[Place]) -> dict[Place, Any]:
        """Some of these values."""
        if self._plain is not None:
            return collect(self._plain, feeds, wanted)
        names = [p.name for p in wanted]
        found = self._foreign(feeds, names)
        return {Place((), 0, n): found[n] for n in names if n in found}

    def close(self) -> None:
        """Frees what it holds."""
        if self._plain is not None:
            self._plain.close()

    def _foreign(self, feeds: Mapping[str, Any], more: Sequence[str]) -> dict[str, Any]:
        """Outputs of another engine, and values that are made outputs of the model."""
        proto = onnx.load(self.setup.model)
        known = {o.name for o in proto.graph.output}
        added = [n for n in more if n not in known]
        proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in added)
        names = [o.name for o in proto.graph.output]
        run = self._onnxruntime if self.kind == "onnxruntime" else self._evaluator
        return dict(zip(names, run(proto, names, feeds), strict=True))

    def _onnxruntime(
        self, proto: onnx.ModelProto, names: Sequence[str], feeds: Mapping[str, Any]
    ) -> list[Any]:
        try:
            runtime = import_module("onnxruntime")
        except ImportError as error:
            raise UsageError(
                f"--against onnxruntime needs `pip install onnxruntime`: {error}"
            ) from None
        if proto.ByteSize() >= MAX_PROTO_NBYTES:
            raise UsageError("a model over 2 GiB can only be compared against cpu")
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = runtime.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            return list(session.run(list(names), dict(feeds)))
        except Exception as error:
            raise EngineError(f"ONNX Runtime does not run the model: {_line(error)}") from error

    def _evaluator(
        self, proto: onnx.ModelProto, names: Sequence[str], feeds: Mapping[str, Any]
    ) -> list[Any]:
        reference = import_module("onnx.reference")
        try:
            return list(reference.ReferenceEvaluator(proto).run(list(names), dict(feeds)))
        except Exception as error:
            raise EngineError(f"onnx.reference does not run the model: {_line(error)}") from error


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def named_outputs(session: InferenceSession, results: Sequence[Any]) -> dict[str, Any]:
    """Results of a call by name."""
    return {a.name: r for a, r in zip(session.get_outputs(), results, strict=True)}


def shapes_text(values: Mapping[str, Any]) -> str:
    """Names, dtypes and shapes in one line."""
    parts = []
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            array: Array = value
            parts.append(f"{name} {array.dtype}{list(array.shape)}")
        else:
            parts.append(f"{name} {'nothing' if value is None else f'{len(value)} values'}")
    return ", ".join(parts)
