"""Passes: which pass makes a graph compute something else, and at which of the model's nodes.

Values keep their names through passes, so those of a session with passes are compared with those of
the reference, in slices that fit into memory, until the first one is beyond tolerance. What its
nodes are in the model as it was written becomes the test folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.dims import evaluate, symbols_of
from engine.errors import EngineError
from engine.exporter import to_model
from engine.importer import load_model
from engine.ir import Graph, Node
from engine.runtime.probe import Observed, Probe
from engine.runtime.session import InferenceSession
from engine.tools.compare.bisect import guilty
from engine.tools.compare.extract import subgraph
from engine.tools.compare.finding import Finding, describe
from engine.tools.compare.kernels import Rerun, with_case
from engine.tools.compare.runs import (
    OPTIONAL_PASSES,
    Place,
    Reference,
    Setup,
    collect,
    named_outputs,
    slices,
    trail,
)
from engine.tools.compare.tolerance import Difference, difference, model_tolerance

_DEPTHS = (0, 1, 2, 4, 8)

MAX_TRIED = 8
"""How many values beyond tolerance are tried out alone before the first one is named."""


def all_ok(
    got: Mapping[str, Any], want: Mapping[str, Any], tolerance: float | None
) -> tuple[bool, list[Difference]]:
    """Whether outputs of whole models agree, and how they differ, the worst first."""
    pairs = [difference(n, got[n], w, model_tolerance(w, tolerance)) for n, w in want.items()]
    return all(d.ok for d in pairs), sorted(pairs, key=lambda d: (d.ok, -d.score))


def blame_pass(
    setup: Setup, agrees: Callable[[InferenceSession], bool], progress: Callable[[str], None]
) -> tuple[str, str] | None:
    """The pass from which on a session does not agree, and the device on which that was found.

    NumPy runs the same passes, so they are bisected there if it shows the difference as well.
    """
    names = [n for n in OPTIONAL_PASSES if n not in setup.disable]

    def right_on(device: str) -> Callable[[frozenset[str]], bool]:
        def right(disabled: frozenset[str]) -> bool:
            progress(f"{device.upper()}, without {len(disabled)} of {len(names)} passes")
            with setup.session(disabled, device) as session:
                return agrees(session)

        return right

    for device in ("cpu", setup.device):
        found = guilty(names, right_on(device))
        if found is not None:
            return found, device
    return None


def outputs_agree(
    feeds: Mapping[str, Any], want: Mapping[str, Any], tolerance: float | None
) -> Callable[[InferenceSession], bool]:
    """Whether the outputs of a session are right."""

    def agrees(session: InferenceSession) -> bool:
        got = named_outputs(session, session.run(None, feeds))
        return all_ok(got, want, tolerance)[0]

    return agrees


class Locator:
    """Finds the first value beyond tolerance, and makes its nodes a test folder.

    Args:
        setup: the model.
        feeds: its inputs.
        reference: what is right.
        tolerance: as of whole models; None for that of the type.
        budget: bytes of values that are held at a time.
    """

    def __init__(
        self,
        setup: Setup,
        feeds: Mapping[str, Any],
        reference: Reference,
        tolerance: float | None,
        budget: int,
    ) -> None:
        self.setup = setup
        self.feeds = feeds
        self.reference = reference
        self.tolerance = tolerance
        self.budget = budget
        self.graph = load_model(setup.model, for_gpu=setup.device == "gpu").graph

    def wrong(
        self, session: InferenceSession, progress: Callable[[str], None]
    ) -> Iterator[tuple[Place, Difference]]:
        """Values of a session that are beyond tolerance, in the order of execution."""
        sizes = trail(session, self.feeds)
        known = set(self.reference.places(self.feeds))
        places = [p for p in sizes if p in known]
        done = 0
        for chosen in slices(places, sizes, self.budget):
            progress(f"comparing values {done + 1} to {done + len(chosen)} of {len(places)}")
            done += len(chosen)
            mine = collect(session, self.feeds, chosen)
            right = self.reference.values(self.feeds, chosen)
            for place in chosen:
                if place in mine and place in right:
                    allowed = model_tolerance(right[place], self.tolerance)
                    pair = difference(place.name, mine[place], right[place], allowed)
                    if not pair.ok:
                        yield place, pair

    def value_agrees(self, place: Place) -> Callable[[InferenceSession], bool]:
        """Whether one value of a session is right; what it does not compute counts as right."""
        right = self.reference.values(self.feeds, [place])[place]
        allowed = model_tolerance(right, self.tolerance)

        def agrees(session: InferenceSession) -> bool:
            found = collect(session, self.feeds, [place])
            return place not in found or difference("", found[place], right, allowed).ok

        return agrees

    def extract(
        self, place: Place, origin: Sequence[str], depth: int = 0
    ) -> tuple[Graph, dict[str, Any]] | None:
        """The model's own nodes behind a value as a graph, and its inputs.

        Args:
            origin: names of nodes that belong to it; the one that writes the value always does.
            depth: how many steps of what these nodes read belong to it too.

        Returns: None if the nodes, or values that they read, are not found.
        """
        graph = _body(self.graph, place.path)
        if graph is None or place.name not in graph.producer:
            return None
        nodes = {n.key: n for n in graph.nodes if set(n.origin) & set(origin)}
        nodes[graph.producer[place.name].key] = graph.producer[place.name]
        for _ in range(depth):
            read = {n for node in nodes.values() for n in node.reads}
            nodes |= {graph.producer[n].key: graph.producer[n] for n in read if n in graph.producer}
        values = self._inputs(graph, place, nodes)
        ordered = tuple(n for n in graph.nodes if n.key in nodes)
        model = subgraph(graph, ordered, values, (place.name,))
        if not {n for node in ordered for n in node.reads} <= model.values.keys():
            return None
        return model, {n: values[n] for n in model.inputs}

    def _inputs(self, graph: Graph, place: Place, nodes: dict[str, Node]) -> dict[str, Any]:
        """What `nodes` read from outside, by the reference; nodes whose results nobody computed
        (they only say sizes) are added."""
        values: dict[str, Any] = {}
        while True:
            inside = {n for node in nodes.values() for n in node.writes}
            read = {n for node in nodes.values() for n in node.reads}
            missing = read - inside - values.keys()
            missing = {n for n in missing if graph.constant(n) is None}
            if not missing:
                return values
            values |= self._known(place, missing)
            left = missing - values.keys()
            makers = {graph.producer[n].key: graph.producer[n] for n in left if n in graph.producer}
            if not makers:
                return values
            nodes |= makers

    def _known(self, place: Place, names: set[str]) -> dict[str, Any]:
        """Values that nodes at a place read or wrote, by the reference."""
        found = {n: self.feeds[n] for n in names if n in self.feeds}
        left = names - found.keys()
        if self.reference.kind != "cpu":
            places = [p for p in self.reference.places(self.feeds) if p.name in left]
            return found | {p.name: v for p, v in self.reference.values(self.feeds, places).items()}
        with self.setup.plain() as session:
            return found | _read(session, self.feeds, place, left)


def _read(
    session: InferenceSession, feeds: Mapping[str, Any], place: Place, names: set[str]
) -> dict[str, Any]:
    """Values by name in the bodies around a place, those of its own turn where they change."""
    found: dict[str, Any] = {}
    turn = 0

    def visit(group: Observed) -> None:
        nonlocal turn
        if place.path[: len(group.path)] != group.path or turn > place.turn:
            return
        for name, value in _named(group).items():
            if name in names:
                found[name] = value.copy() if isinstance(value, np.ndarray) else value
        if group.path == place.path and place.name in group.writes:
            turn += 1

    with session.probed(Probe(visit)):
        session.run(None, feeds)
    return found


def _named(group: Observed) -> dict[str, Any]:
    """Values of a group by name, and by the names of the views that share their buffers."""
    values = {**group.inputs, **{n: group.read(n) for n in group.writes}}
    by_root = {group.plan.root(n): v for n, v in values.items() if isinstance(v, np.ndarray)}
    for name, root in ((n, group.plan.root(n)) for n in group.plan.graph.values):
        tensor = group.plan.graph.tensor(name)
        if name in values or root not in by_root or tensor is None or tensor.shape is None:
            continue
        if frozenset().union(*map(symbols_of, tensor.shape)) <= group.binding.keys():
            shape = [evaluate(d, group.binding) for d in tensor.shape]
            values[name] = by_root[root].reshape(shape)
    return values


def _body(graph: Graph, path: Sequence[str]) -> Graph | None:
    """The body of a graph that a path leads to, by keys of control flow nodes."""
    if not path:
        return graph
    node = graph.producer.get(path[0])
    bodies = list(node.bodies.values()) if node is not None else []
    found = [_body(b, path[1:]) for b in bodies]
    kept = [b for b in found if b is not None]
    return kept[0] if kept else None


def locate_pass(
    locator: Locator,
    culprit: str,
    device: str,
    folder: Path,
    progress: Callable[[str], None],
) -> Finding:
    """Where a pass that is to blame does harm; writes the test folder if the place is found."""
    finding = Finding("pass", culprit, device=device)
    with locator.setup.session((), device) as session:
        first = None
        for number, (place, pair) in enumerate(locator.wrong(session, progress)):
            node = maker(session, place)
            if node is None:
                continue
            here = replace(
                finding,
                node=describe([node], place.path, place.turn),
                op_types=(node.op_type,),
                origin=node.origin,
                differences=(pair,),
            )
            first = first or here
            got = collect(session, locator.feeds, [place])[place]
            for depth in _DEPTHS:
                progress(f"running {node.op_type} alone, with {depth} steps before it")
                case = locator.extract(place, node.origin, depth)
                if case is None:
                    continue
                want = _pass_fails(locator.setup, *case, locator.tolerance, device)
                if want is not None:
                    graph, inputs = case
                    again = Rerun(locator.setup, (), locator.tolerance)
                    here = with_case(here, folder, graph, inputs, (want, [got]), again)
                    return _applied(here, session)
            if number + 1 >= MAX_TRIED:
                break
        if first is None:
            return finding.note("no value in between differs: only outputs do")
        return _applied(first, session)


def maker(session: InferenceSession, place: Place) -> Node | None:
    """The node of the session's plans that writes a value."""
    for node, _ in session.executed():
        if place.name in node.writes:
            return node
    return None


def _applied(finding: Finding, session: InferenceSession) -> Finding:
    """What the pass says that it did to the nodes of the finding."""
    changes = session.explain().changes.get(finding.blame)
    lines = changes.applied if changes is not None else ()
    names = {name.split("(")[0] for name in finding.origin if name} | set(finding.origin)
    names |= {difference.name for difference in finding.differences}
    about = [line for line in lines if any(repr(name) in line for name in names)]
    return finding.note(*(f"{finding.blame} says: {line}" for line in (about or list(lines))[:4]))


def _pass_fails(
    setup: Setup, graph: Graph, inputs: Mapping[str, Any], tolerance: float | None, device: str
) -> list[Any] | None:
    """What a graph gives without passes, if with them it gives something else."""
    try:
        model = to_model(graph)
        with InferenceSession(model, device="cpu", disable=OPTIONAL_PASSES) as plain:
            want = named_outputs(plain, plain.run(None, dict(inputs)))
        with setup.session((), device, model) as session:
            got = named_outputs(session, session.run(None, dict(inputs)))
    except EngineError:
        return None
    return None if all_ok(got, want, tolerance)[0] else list(want.values())
