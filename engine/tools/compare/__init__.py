"""Compare: the GPU against NumPy, ONNX Runtime or onnx.reference; what is wrong first, and why.

1. The outputs of the whole model are compared (`runs.py`, `tolerance.py`).
2. The call runs once more as planned, and each kernel is compared with NumPy on the inputs that it
   had in its buffers (`groups.py`): errors do not add up, and the plan is not changed by looking.
   The first that is wrong is run alone, its nodes one by one, and without each fusion rule
   (`kernels.py`).
3. If every kernel is right, values in between are compared with those of the reference by name, as
   passes keep names. If outputs or these differ, passes are bisected, and the first value that
   differs tells where (`passes.py`, `bisect.py`).
4. If it is not a pass, NumPy without passes is compared with the other reference, value by value.

`extract.py` writes what was found as a test folder of ONNX; `onset.py` looks for NaN and infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from engine.errors import EngineError
from engine.ir import Graph
from engine.ops import is_random
from engine.records import dataclass
from engine.runtime import cache
from engine.tools.compare.finding import Finding
from engine.tools.compare.groups import Checked, GroupCheck
from engine.tools.compare.kernels import blame_kernel
from engine.tools.compare.onset import Onset, find_onset
from engine.tools.compare.others import locate_numpy
from engine.tools.compare.passes import (
    Locator,
    all_ok,
    blame_pass,
    locate_pass,
    outputs_agree,
)
from engine.tools.compare.runs import Reference, Setup, named_outputs
from engine.tools.compare.tolerance import Difference

__all__ = ["Comparison", "Finding", "Onset", "Setup", "compare", "find_nan"]

BUDGET = 256 << 20
"""Bytes of values in between that are held at a time."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        device: the adapter. against: what was taken to be right.
        gpu_nodes: how many nodes the call ran on the adapter.
        outputs: how the outputs of the model differ, the worst first.
        finding: what is wrong first; None if nothing is.
        checked: kernels that were compared with NumPy; failed: operators of those that are wrong.
        skipped: kernels that were not compared: later turns of bodies, values in no buffer.
        worst: the largest error of a kernel within tolerance, over what is allowed, and which.
    """

    device: str
    against: str
    gpu_nodes: int
    outputs: tuple[Difference, ...]
    finding: Finding | None
    checked: int
    failed: tuple[str, ...]
    skipped: int
    worst: tuple[float, str]

    @property
    def ok(self) -> bool:
        return self.finding is None


def compare(
    setup: Setup,
    feeds: Mapping[str, Any],
    *,
    against: str = "cpu",
    tolerance: float | None = None,
    folder: Path,
    budget: int = BUDGET,
    progress: Progress = lambda text: None,
) -> Comparison:
    """Compares a model on the GPU with a reference, node by node.

    Args:
        setup: the model, and how the GPU runs it.
        feeds: its inputs by name.
        against: "cpu" (NumPy, without passes), "onnxruntime" or "reference" (onnx.reference).
        tolerance: largest error over the largest magnitude; None takes those of `tolerance.py`.
        folder: where the test folder of what is wrong goes; made only then.
        budget: bytes of values in between that are held at a time.
        progress: is told what is being done.

    Raises: EngineError if either side can't run the model.
    """
    progress(f"running the model on the reference ({against})")
    reference = Reference(against, setup)
    try:
        want = reference.outputs(feeds)
        with setup.session() as session:
            progress("running the model on the GPU")
            got = named_outputs(session, session.run(None, feeds))
            ok, outputs = all_ok(got, want, tolerance)
            if not ok:
                _refuse_random(session.plan().graph, against)
            check = GroupCheck(tolerance, progress)
            check.run(session, feeds)
            gpu_nodes = sum(where == "gpu" for _, where in session.executed(views=False))
            device = session.device_name if gpu_nodes else "NumPy with passes"
        found = check.found
        finding = _finding(
            setup, feeds, reference, want, ok, found, tolerance, folder, progress, budget
        )
    finally:
        reference.close()
    return Comparison(
        device,
        against,
        gpu_nodes,
        tuple(outputs),
        finding,
        found.groups,
        tuple(found.failed),
        found.skipped,
        found.worst,
    )


def _refuse_random(graph: Graph, against: str) -> None:
    """Raises: EngineError if a node draws other numbers in each call, or than the reference."""
    own = against == "cpu"
    nodes = (n for _, n in graph.walk() if is_random(n))
    drawn = [n.title for n in nodes if not (own and "seed" in n.attrs)]
    if drawn:
        problem = "draw other numbers in each call: give them a seed"
        other = "draw other numbers there: give them a seed, and compare against cpu,"
        raise EngineError(
            f"results differ, and nodes {drawn} {problem if own else other} to compare the rest"
        )


def _finding(
    setup: Setup,
    feeds: Mapping[str, Any],
    reference: Reference,
    want: Mapping[str, Any],
    ok: bool,
    found: Checked,
    tolerance: float | None,
    folder: Path,
    progress: Progress,
    budget: int,
) -> Finding | None:
    """What is to blame; None if everything agrees."""
    if found.failure is not None:
        finding = blame_kernel(setup, found.failure, tolerance, folder, progress)
        return (
            finding if finding.alone else _unless_kept(setup, feeds, finding, tolerance, progress)
        )
    if found.lost:
        return Finding("memory", ", ".join(map(repr, found.lost))).note(
            "outputs are not what was written to their buffers: a buffer was reused too early, "
            "or the conversion on the way back is wrong"
        )
    locator = Locator(setup, feeds, reference, tolerance, budget)
    if ok:
        return _hidden(locator, folder, progress)
    culprit = blame_pass(setup, outputs_agree(feeds, want, tolerance), progress)
    if culprit is not None:
        return locate_pass(locator, *culprit, folder, progress)
    if reference.kind != "cpu":
        numpy = locate_numpy(locator, folder, progress)
        if numpy is not None:
            return numpy
    score, label = found.worst
    finding = Finding("rounding", "")
    if label:
        finding = finding.note(
            f"every kernel is right on its inputs; the largest error is {score:.2f} of what is "
            f"allowed ({label})"
        )
    return finding


def _hidden(locator: Locator, folder: Path, progress: Progress) -> Finding | None:
    """A pass that makes values in between wrong, though outputs agree; None if there is none."""
    with locator.setup.session() as session:
        place, _ = next(locator.wrong(session, progress), (None, None))
    if place is None:
        return None
    culprit = blame_pass(locator.setup, locator.value_agrees(place), progress)
    if culprit is None:
        return None
    finding = locate_pass(locator, *culprit, folder, progress)
    return finding.note("later nodes take the difference back: the outputs agree")


def _unless_kept(
    setup: Setup,
    feeds: Mapping[str, Any],
    finding: Finding,
    tolerance: float | None,
    progress: Progress,
) -> Finding:
    """The finding, or that a plan kept from an earlier start is what is wrong."""
    place = cache.folder()
    if place is None:
        return finding
    progress("planning anew")
    check = GroupCheck(tolerance, progress)
    with setup.session(model=onnx.load(setup.model)) as session:
        check.run(session, feeds)
    if check.found.failure is not None or check.found.lost:
        return finding
    return replace(finding, kind="cache", blame=str(place)).note(
        "planned anew it is right: remove that folder, or set ENGINE_CACHE=off"
    )


def find_nan(
    setup: Setup,
    feeds: Mapping[str, Any],
    *,
    folder: Path,
    progress: Progress = lambda text: None,
) -> Onset:
    """Where NaN or infinity comes from when the model runs.

    Args: as of `compare`. Raises: EngineError if the model can't be run.
    """
    with setup.session() as session:
        return find_onset(setup, session, feeds, folder, progress)
