"""Onset: where NaN and infinity come from in a call.

Inputs and constants may hold them from the start. Groups that write NaN, or infinity, and read it
pass it on; one that reads none makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine.explain.sizes import count_text
from engine.ir import Array
from engine.records import dataclass
from engine.runtime.probe import Observed, Probe
from engine.runtime.session import InferenceSession
from engine.tools.compare.extract import subgraph
from engine.tools.compare.finding import Finding, describe, origin_of
from engine.tools.compare.groups import MissingValueError, evaluate_nodes, with_views
from engine.tools.compare.kernels import Rerun, with_case
from engine.tools.compare.runs import Setup, named_outputs
from engine.tools.compare.tolerance import difference, group_tolerance, is_float

KINDS = ("NaN", "infinity")


@dataclass(frozen=True)
class Held:
    """A value that holds NaN or infinity.

    Attributes:
        what: "input", "constant" or "output".
        name: its name.
        nan, infinity: how many of each. size: of how many elements.
    """

    what: str
    name: str
    nan: int
    infinity: int
    size: int

    @property
    def text(self) -> str:
        counts = zip((self.nan, self.infinity), KINDS, strict=True)
        held = " and ".join(f"{count} times {kind}" for count, kind in counts if count)
        return f"{self.what} {self.name} holds {held} in {count_text(self.size, 'element')}"


@dataclass(frozen=True)
class Onset:
    """Where NaN and infinity come from in a call.

    Attributes:
        given: inputs, and constants that groups read, which hold some from the start.
        passed_on: how many groups write what they read of it.
        finding: the first group that makes some; None if none does. What follows it is not looked
            at.
        outputs: the model's that hold some; unknown after a finding.
    """

    given: tuple[Held, ...]
    passed_on: int
    finding: Finding | None
    outputs: tuple[Held, ...]

    @property
    def ok(self) -> bool:
        """Whether no input or output holds any and nothing makes any; constants may, as masks."""
        calm = all(held.what != "input" for held in self.given)
        return calm and self.finding is None and not self.outputs


class _FoundError(BaseException):
    """Ends a call when what is looked for was seen, as an interrupt: no node around it failed."""


def find_onset(
    setup: Setup,
    session: InferenceSession,
    feeds: Mapping[str, Any],
    folder: Path,
    progress: Callable[[str], None],
) -> Onset:
    """What holds NaN or infinity, and the first group that writes some and reads none.

    Its test folder is written into `folder`.
    """
    found: list[Finding] = []
    given = {n: h for n, v in feeds.items() if (h := _held("input", n, v)) is not None}
    passed_on = 0

    def visit(group: Observed) -> None:
        nonlocal passed_on
        progress(f"looking at {' + '.join(n.op_type for n in group.nodes)}")
        written = {n: group.read(n) for n in group.writes}
        bad = _counts(written)
        constants = {n: group.plan.graph.constant(n) for node in group.nodes for n in node.reads}
        for name, value in constants.items():
            held = None if name in given or value is None else _held("constant", name, value)
            given.update({name: held} if held is not None else {})
        before = _counts({**group.inputs, **{n: c for n, c in constants.items() if c is not None}})
        fresh = [kind for kind in KINDS if bad[kind] and not before[kind]]
        control = bool(group.nodes[0].bodies) and not group.on_gpu
        if fresh and not control:
            found.append(_finding(setup, group, written, fresh, bad, folder))
            raise _FoundError
        passed_on += any(bad.values())

    try:
        with session.probed(Probe(visit)):
            results = session.run(None, feeds)
    except _FoundError:
        return Onset(tuple(given.values()), passed_on, found[0], ())
    outputs = (_held("output", n, v) for n, v in named_outputs(session, results).items())
    return Onset(tuple(given.values()), passed_on, None, tuple(h for h in outputs if h is not None))


def _held(what: str, name: str, value: Any) -> Held | None:
    """What a value holds of NaN and infinity; None if there is none."""
    counts = _counts({name: value})
    if not any(counts.values()):
        return None
    size = sum(array.size for array in _floats(value))
    return Held(what, name, counts["NaN"], counts["infinity"], size)


def _counts(values: Mapping[str, Any]) -> dict[str, int]:
    counts = dict.fromkeys(KINDS, 0)
    for value in values.values():
        for array in _floats(value):
            counts["NaN"] += int(np.isnan(array).sum())
            counts["infinity"] += int(np.isinf(array).sum())
    return counts


def _floats(value: Any) -> list[Array]:
    """The float tensors in a value."""
    if isinstance(value, list):
        return [array for item in value for array in _floats(item)]
    if isinstance(value, np.ndarray) and is_float(value):
        return [value.astype(np.float64)]
    return []


def _finding(
    setup: Setup,
    group: Observed,
    written: Mapping[str, Any],
    fresh: list[str],
    counts: Mapping[str, int],
    folder: Path,
) -> Finding:
    nodes, graph = with_views(group.plan, group.nodes), group.plan.graph
    found = " and ".join(f"{counts[kind]} times {kind}" for kind in fresh)
    notes = [f"it writes {found}, and reads none"]
    others = {kind for kind in KINDS if kind not in fresh and _counts(group.inputs)[kind]}
    notes += [f"it does read {kind}" for kind in others]
    notes += [f"reads {name}: {_range(value)}" for name, value in group.inputs.items()]
    differences = []
    try:
        want = evaluate_nodes(group.plan, nodes, group.inputs, group.binding)
    except MissingValueError:
        want = {}
    if want and group.on_gpu:
        allowed = group_tolerance(graph, nodes)
        differences = [difference(n, v, want[n], allowed) for n, v in written.items()]
        same = all(d.nan[0] == d.nan[1] and d.inf[0] == d.inf[1] for d in differences)
        notes.append(
            "NumPy makes the same of these inputs: it is what the model computes"
            if same
            else "NumPy makes something else of these inputs: see `compare` without --find"
        )
    for node in nodes if want and len(nodes) > 1 else ():
        bad = _counts({n: want[n] for n in node.writes})
        if any(bad[kind] for kind in fresh):
            notes.append(f"of its nodes, {describe([node], ())} is the first in NumPy")
            break
    finding = Finding(
        "nan",
        " and ".join(fresh),
        describe(nodes, group.path),
        tuple(n.op_type for n in nodes),
        origin_of(nodes),
        "gpu" if group.on_gpu else "cpu",
        tuple(differences),
        tuple(notes),
    )
    if group.inputs or all(graph.constant(n) is not None for node in nodes for n in node.reads):
        case = subgraph(graph, nodes, group.inputs, written)
        if {n for node in nodes for n in node.reads} <= case.values.keys() | want.keys():
            inputs = {n: group.inputs[n] for n in case.inputs}
            right = [want.get(n, v) for n, v in written.items()]
            again = Rerun(setup, more=["--find", "nan"])
            return with_case(finding, folder, case, inputs, (right, [*written.values()]), again)
    return finding


def _range(value: Any) -> str:
    arrays = _floats(value)
    if not arrays or not arrays[0].size:
        return "no floats"
    finite = arrays[0][np.isfinite(arrays[0])]
    if not finite.size:
        return "no finite float"
    smallest = np.abs(finite).min()
    return f"{finite.min():.4g} to {finite.max():.4g}, nearest to zero {smallest:.3g}"
