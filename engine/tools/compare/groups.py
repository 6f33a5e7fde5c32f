"""Groups: each kernel of a call against NumPy on the inputs that it had, as they lay in buffers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from engine.dims import evaluate
from engine.errors import EngineError
from engine.ir import Array, Node
from engine.plan import Plan
from engine.records import dataclass
from engine.runtime.host import HostNode
from engine.runtime.probe import Observed, Probe
from engine.runtime.session import InferenceSession
from engine.tools.compare.tolerance import (
    Difference,
    Tolerance,
    difference,
    group_tolerance,
    is_float,
)

MAX_TURNS = 64
"""How often a group of a body is checked; a loop may run it for ever."""

_TRIALS = 3
_MARGIN = 10.0
"""How much larger an error may be than what inputs that differ in the last bit do."""


@dataclass(frozen=True)
class Failure:
    """A group whose outputs are not what NumPy makes of its inputs, or an input that changed.

    Attributes:
        plan, path, nodes: the group.
        turn: which run of it in the call, from 0.
        dispatches: (index, variant) that ran.
        inputs: what it read.
        got, want: what it wrote, and what NumPy makes of `inputs`.
        differences: of the outputs, worst first.
        binding: the sizes. sizes: inputs that are in no buffer, because they only hold sizes.
        changed: inputs that are not what was written to them.
    """

    plan: Plan
    path: tuple[str, ...]
    nodes: tuple[Node, ...]
    turn: int
    dispatches: tuple[tuple[int, int], ...]
    inputs: Mapping[str, Any]
    got: Mapping[str, Any]
    want: Mapping[str, Any]
    differences: tuple[Difference, ...]
    binding: Mapping[str, int]
    sizes: Mapping[str, Array]
    changed: tuple[str, ...] = ()

    @property
    def shaders(self) -> tuple[str, ...]:
        """The files that its kernels were made from."""
        variants = (self.plan.dispatches[i].variants[v] for i, v in self.dispatches)
        return tuple(dict.fromkeys(self.plan.kernels[v.kernel].stem for v in variants))


@dataclass
class Checked:
    """What the check of a call found.

    Attributes:
        failure: the first, in the order of execution.
        failed: labels of all groups that failed.
        groups, skipped: how many were checked, and how many not (see `MAX_TURNS`).
        worst: the largest error within tolerance, over what is allowed, and of which group.
        lost: outputs of the model that are not what was written to their buffers.
    """

    failure: Failure | None = None
    failed: list[str] = field(default_factory=list)
    groups: int = 0
    skipped: int = 0
    worst: tuple[float, str] = (0.0, "")
    lost: list[str] = field(default_factory=list)


class MissingValueError(Exception):
    """A value that NumPy needs is in no buffer, and no constant."""


def evaluate_nodes(
    plan: Plan, nodes: Sequence[Node], inputs: Mapping[str, Any], binding: Mapping[str, int]
) -> dict[str, Any]:
    """Everything that `nodes` write, by NumPy. Raises: MissingValueError."""
    return _evaluate(plan, nodes, inputs, binding, lambda value: value)


def _sizes(group: Observed, made: Mapping[str, Any]) -> dict[str, Array]:
    """What the nodes read that is neither in a buffer, nor made by them, nor constant."""
    names = {n for node in group.nodes for n in node.reads} - made.keys() - group.inputs.keys()
    names = {n for n in names if group.plan.graph.constant(n) is None}
    return {n: _value(group.plan, n, {}, {}, group.binding) for n in names}


def with_views(plan: Plan, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes of a group, and those between them that only give a value another shape."""
    found = {n.key: n for n in nodes}
    made = {name for n in nodes for name in n.writes}
    stack = [name for n in nodes for name in n.reads]
    while stack:
        name = stack.pop()
        producer = plan.graph.producer.get(name)
        inside = name not in made and plan.root(name) != name and plan.root(name) in made
        if producer is not None and inside and producer.key not in found:
            found[producer.key] = producer
            stack += producer.reads
    return tuple(n for n in plan.graph.nodes if n.key in found)


def _evaluate(
    plan: Plan,
    nodes: Sequence[Node],
    inputs: Mapping[str, Any],
    binding: Mapping[str, int],
    change: Callable[[Any], Any],
) -> dict[str, Any]:
    """`evaluate_nodes`, where `change` is applied to every value that is computed."""
    values: dict[str, Any] = {}
    with np.errstate(all="ignore"):
        for node in nodes:
            given = [_value(plan, n, values, inputs, binding) if n else None for n in node.inputs]
            try:
                outputs = HostNode(plan, node).call(given)
            except Exception as error:
                raise EngineError(
                    f"NumPy does not compute {node.op_type} {node.name or node.key!r}: {error}"
                ) from error
            for name, output in zip(node.outputs, outputs, strict=False):
                if name:
                    values[name] = change(output)
    return values


def _value(
    plan: Plan,
    name: str,
    values: Mapping[str, Any],
    inputs: Mapping[str, Any],
    binding: Mapping[str, int],
) -> Any:
    for known in (values, inputs):
        if name in known:
            return known[name]
    constant = plan.graph.constant(name)
    if constant is not None:
        return constant
    dims, tensor = plan.graph.values[name].dims, plan.graph.tensor(name)
    if dims is None or tensor is None:
        raise MissingValueError(name)
    sizes = [evaluate(d, binding) for d in dims.reshape(-1)]
    return np.array(sizes, dtype=tensor.dtype.numpy).reshape(dims.shape)


class GroupCheck:
    """Checks every group of a call while it runs.

    Args:
        tolerance: instead of that by type and operator.
        progress: is told the group that is being checked.
    """

    def __init__(
        self, tolerance: float | None = None, progress: Callable[[str], None] = lambda text: None
    ) -> None:
        self.tolerance = tolerance
        self.progress = progress
        self.found = Checked()
        self._written: dict[tuple[tuple[str, ...], str], bytes] = {}
        self._turns: Counter[tuple[tuple[str, ...], str]] = Counter()

    def run(self, session: InferenceSession, feeds: Mapping[str, Any]) -> list[Any]:
        """One call, observed; its outputs."""
        for name, value in feeds.items():
            self._written[(), name] = _digest(value)
        with session.probed(Probe(self.visit)):
            results = session.run(None, feeds)
        plan = session.plan()
        for arg, value in zip(session.get_outputs(), results, strict=True):
            written = self._written.get(((), plan.root(arg.name)))
            if written is not None and written != _digest(value):
                self.found.lost.append(arg.name)
        return results

    def visit(self, group: Observed) -> None:
        """Checks one group, if there is one."""
        key = (group.path, group.nodes[-1].key)  # the first may be in other groups too
        turn = self._turns[key]
        self._turns[key] += 1
        if turn >= MAX_TURNS:
            self.found.skipped += 1
            return
        changed = self._changed(group)
        got = {name: group.read(name) for name in group.writes}
        for name, value in got.items():
            self._written[group.path, group.plan.root(name)] = _digest(value)
        if group.on_gpu:
            self._check(group, turn, got, changed)

    def _changed(self, group: Observed) -> tuple[str, ...]:
        """Inputs that do not read as they were written."""
        found = []
        for name, value in group.inputs.items():
            written = self._written.get((group.path, group.plan.root(name)))
            if written is not None and written != _digest(value):
                found.append(name)
        return tuple(found)

    def _check(
        self, group: Observed, turn: int, got: Mapping[str, Any], changed: tuple[str, ...]
    ) -> None:
        label = " + ".join(n.op_type for n in group.nodes)
        self.progress(f"checking {label}")
        group = replace(group, nodes=with_views(group.plan, group.nodes))
        try:
            everything = evaluate_nodes(group.plan, group.nodes, group.inputs, group.binding)
        except MissingValueError:
            self.found.skipped += 1
            return
        self.found.groups += 1
        want = {name: everything[name] for name in got}
        allowed = group_tolerance(group.plan.graph, group.nodes)
        if self.tolerance is not None:
            allowed = Tolerance(self.tolerance, allowed.flips)
        pairs = [difference(name, got[name], want[name], allowed) for name in got]
        if not all(d.ok for d in pairs) and self.tolerance is None:
            pairs = self._conditioned(group, got, want, allowed, pairs)
        ranked = tuple(sorted(pairs, key=lambda d: (d.ok, -d.score)))
        if all(d.ok for d in ranked) and not changed:
            score = max((d.score for d in ranked), default=0.0)
            self.found.worst = max(self.found.worst, (score, label))
            return
        self.found.failed.append(label)
        if self.found.failure is None:
            self.found.failure = Failure(
                group.plan,
                group.path,
                group.nodes,
                turn,
                group.dispatches,
                dict(group.inputs),
                dict(got),
                want,
                ranked,
                dict(group.binding),
                _sizes(group, everything),
                changed,
            )

    def _conditioned(
        self,
        group: Observed,
        got: Mapping[str, Any],
        want: Mapping[str, Any],
        allowed: Tolerance,
        pairs: Sequence[Difference],
    ) -> list[Difference]:
        """The differences once more, where rounding as such does as much."""
        spread = dict.fromkeys(got, 0.0)
        for seed in range(_TRIALS):
            change = _Jitter(seed)
            inputs = {name: change(value) for name, value in group.inputs.items()}
            moved = _evaluate(group.plan, group.nodes, inputs, group.binding, change)
            for name in got:
                spread[name] = max(spread[name], _largest(moved[name], want[name]))
        found = []
        for pair in pairs:
            scale = _largest(np.zeros(1), want[pair.name])
            wider = _MARGIN * spread[pair.name] / scale if scale else 0.0
            if not pair.ok and 0 < wider < np.inf:
                tolerance = replace(allowed, relative=max(allowed.relative, wider))
                pair = difference(pair.name, got[pair.name], want[pair.name], tolerance)
            found.append(pair)
        return found


class _Jitter:
    """Changes floats by about a unit in the last place."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or not is_float(value) or not value.size:
            return value
        epsilon = 2.0 ** -{2: 10, 4: 23, 8: 52}.get(value.dtype.itemsize, 4)
        noise = self._rng.uniform(-epsilon, epsilon, value.shape)
        with np.errstate(all="ignore"):
            return (value.astype(np.float64) * (1 + noise)).astype(value.dtype)


def _largest(a: Any, b: Any) -> float:
    """The largest finite difference of two float tensors."""
    if not (isinstance(b, np.ndarray) and is_float(b) and isinstance(a, np.ndarray)):
        return 0.0
    with np.errstate(all="ignore"):
        error = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float(error[np.isfinite(error)].max(initial=0.0))


def _digest(value: Any) -> bytes:
    """Tells values apart; NaNs count as equal."""
    if isinstance(value, list):
        return b"".join(map(_digest, value))
    array: Array = np.asarray(value)
    if array.dtype.kind in "OSUT":
        return repr(array.tolist()).encode()
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    if is_float(array):
        array = np.where(np.isnan(array.astype(np.float32)), np.nan, array).astype(array.dtype)
    return hashlib.blake2b(array.tobytes(), digest_size=16).digest()
