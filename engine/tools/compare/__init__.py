"""Compare: the GPU against NumPy, ONNX Runtime or onnx.reference; what is wrong first, and why.

1. The outputs of the whole model are compared (`runs.py`, `tolerance.py`).
2. The call runs once more as planned, and each kernel is compared with NumPy on the inputs that it
   had in its buffers (`groups.py`): errors do not add up, and the plan is not changed by looking.
   The first that is wrong is run alone, its nodes one by one, and without each fusion rule
   (`kernels.py`).
3. If every kernel is right and the outputs are not, passes are bisected, and the first value that
   differs from the reference tells where (`passes.py`, `bisect.py`).
4. If it is not a pass, NumPy without passes is compared with the other reference, value by value.

`extract.py` writes what was found as a test folder of ONNX; `onset.py` looks for NaN and infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.tools.compare.finding import Finding
from engine.tools.compare.groups import Checked, GroupCheck
from engine.tools.compare.kernels import blame_kernel
from engine.tools.compare.onset import find_onset
from engine.tools.compare.passes import Locator, all_ok, blame_pass, locate_numpy, locate_pass
from engine.tools.compare.runs import Reference, Setup, named_outputs
from engine.tools.compare.tolerance import Difference

__all__ = ["Comparison", "Finding", "Setup", "compare", "find_nan"]

BUDGET = 256 << 20
"""Bytes of values in between that are held at a time."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        device: the adapter. against: what was taken to be right.
        outputs: how the outputs of the model differ, the worst first.
        finding: what is wrong first; None if nothing is.
        checked: kernels that were compared with NumPy; failed: operators of those that are wrong.
        skipped: kernels that were not compared, in later turns of bodies.
        worst: the largest error of a kernel within tolerance, over what is allowed, and which.
    """

    device: str
    against: str
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
            check = GroupCheck(tolerance, progress)
            check.run(session, feeds)
            device = session.device_name
        found = check.found
        finding = _finding(
            setup, feeds, reference, want, ok, found, tolerance, folder, progress, budget
        )
    finally:
        reference.close()
    return Comparison(
        device,
        against,
        tuple(outputs),
        finding,
        found.groups,
        tuple(found.failed),
        found.skipped,
        found.worst,
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
        return blame_kernel(setup, found.failure, tolerance, folder, progress)
    if found.lost:
        return Finding("memory", ", ".join(map(repr, found.lost))).note(
            "outputs are not what was written to their buffers: a buffer was reused too early, "
            "or the conversion on the way back is wrong"
        )
    if ok:
        return None
    culprit = blame_pass(setup, feeds, want, tolerance, progress)
    locator = Locator(setup, feeds, reference, tolerance, budget)
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


def find_nan(
    setup: Setup,
    feeds: Mapping[str, Any],
    *,
    folder: Path,
    progress: Progress = lambda text: None,
) -> Finding | None:
    """Where NaN or infinity begins when the model runs; None if it never does.

    Args: as of `compare`. Raises: EngineError if the model can't be run.
    """
    with setup.session() as session:
        return find_onset(setup, session, feeds, folder, progress)
