"""Others: a node of which ONNX Runtime or onnx.reference makes something else than NumPy does.

Usually NumPy, or the import, is wrong. Where ONNX Runtime sides with NumPy, onnx.reference is: it
takes BatchNormalization of the operator set 9 for training, for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import EngineError
from engine.exporter import to_model
from engine.ir import Graph
from engine.runtime.session import InferenceSession
from engine.tools.compare.finding import Finding, describe
from engine.tools.compare.kernels import Rerun, with_case
from engine.tools.compare.passes import MAX_TRIED, Locator, all_ok, maker
from engine.tools.compare.runs import (
    NAMES,
    OPTIONAL_PASSES,
    Place,
    Reference,
    collect,
    named_outputs,
)
from engine.tools.compare.tolerance import difference, model_tolerance

NUDGE = 1e-5
"""By how much of themselves inputs are moved to see how much a node's result depends on it."""
SHARE = 0.5
"""What of a difference such a movement must explain to be told."""


def locate_numpy(locator: Locator, folder: Path, progress: Callable[[str], None]) -> Finding | None:
    """The first node that NumPy, without passes, computes otherwise than the reference from the
    same inputs; None if there is none that shows it alone."""
    with locator.setup.plain() as session:
        for number, (place, pair) in enumerate(locator.wrong(session, progress)):
            node = maker(session, place)
            if node is None:
                continue
            got = collect(session, locator.feeds, [place])[place]
            case = locator.extract(place, node.origin)
            mine = case and _numpy_value(*case, place.name)
            right = locator.reference.values(locator.feeds, [place])[place]
            if case is not None and mine is not None and not _agree(locator, mine, right):
                graph, inputs = case
                found = Finding(
                    "numpy",
                    node.op_type,
                    describe([node], place.path, place.turn),
                    (node.op_type,),
                    node.origin,
                    "cpu",
                    (pair,),
                )
                against = ["--against", locator.reference.kind]
                again = Rerun(locator.setup, (), locator.tolerance, against)
                found = with_case(found, folder, graph, inputs, ([right], [got]), again)
                found = _if_alone(found, locator, inputs, mine)
                if _onnxruntime_agrees(locator, place, got):
                    return replace(found, kind="reference").note(
                        "ONNX Runtime agrees with NumPy, and not with onnx.reference"
                    )
                return _if_rounded(found, own_movement(graph, inputs, place.name))
            if number + 1 >= MAX_TRIED:
                break
    return None


def _numpy_value(graph: Graph, inputs: Mapping[str, Any], name: str) -> Any:
    """What NumPy makes of a node's inputs; None if it does not run."""
    try:
        with InferenceSession(to_model(graph), device="cpu", disable=OPTIONAL_PASSES) as session:
            return named_outputs(session, session.run(None, dict(inputs)))[name]
    except EngineError:
        return None


def _agree(locator: Locator, got: Any, want: Any) -> bool:
    return all_ok({"": got}, {"": want}, locator.tolerance)[0]


def _if_alone(found: Finding, locator: Locator, inputs: Mapping[str, Any], mine: Any) -> Finding:
    """The finding, with what the reference makes of the model that was written for it."""
    if found.model is None:
        return found
    kind = locator.reference.kind
    written = Reference(kind, replace(locator.setup, model=found.model))
    try:
        (right,) = written.outputs(inputs).values()
    except EngineError:
        return replace(found, alone=False)
    if not _agree(locator, mine, right):
        return found
    return replace(found, alone=False).note(
        f"written is the newest form of the node, and {NAMES[kind]} agrees with NumPy about that"
    )


def _onnxruntime_agrees(locator: Locator, place: Place, got: Any) -> bool:
    """Whether ONNX Runtime, where it is installed, makes what NumPy does of a value of the model;
    False if it is the reference itself."""
    if locator.reference.kind == "onnxruntime":
        return False
    try:
        right = Reference("onnxruntime", locator.setup).values(locator.feeds, [place])[place]
    except EngineError:
        return False
    return _agree(locator, got, right)


def _if_rounded(found: Finding, moved: float) -> Finding:
    if moved < SHARE * found.differences[0].max_abs:
        return found
    return found.note(
        f"NumPy's own result moves by {moved:.3g} when its inputs move by {NUDGE:g} of "
        "themselves: something is rounded on the way, and both may be right"
    )


def own_movement(graph: Graph, inputs: Mapping[str, Any], name: str) -> float:
    """How far NumPy's value `name` moves, at most, when float inputs move by `NUDGE` of themselves.

    0 if there is nothing to move, or if it does not run.
    """
    rng = np.random.default_rng(0)
    results = []
    try:
        with InferenceSession(to_model(graph), device="cpu", disable=OPTIONAL_PASSES) as session:
            for scale in (0.0, NUDGE, NUDGE, NUDGE):
                feeds = {n: _nudged(v, scale, rng) for n, v in inputs.items()}
                results.append(named_outputs(session, session.run(None, feeds))[name])
    except EngineError:
        return 0.0
    first, *others = results
    return max(
        difference(name, other, first, model_tolerance(first, None)).max_abs for other in others
    )


def _nudged(value: Any, scale: float, rng: np.random.Generator) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    return (value * (1 + scale * rng.uniform(-1, 1, value.shape))).astype(value.dtype)
