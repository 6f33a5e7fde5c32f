"""Kernels: which node or fusion rule is to blame for a group that is wrong, and its test folder."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from engine import fusion_rules
from engine.errors import EngineError
from engine.exporter import to_model
from engine.ir import Graph
from engine.tools.compare.extract import DATA, reference_outputs, subgraph, write_case
from engine.tools.compare.finding import Finding, describe, origin_of
from engine.tools.compare.groups import Failure, GroupCheck, MissingValueError, evaluate_nodes
from engine.tools.compare.runs import OPTIONAL_PASSES, Setup
from engine.tools.compare.tolerance import difference, group_tolerance

RULES = tuple(name for name, _ in fusion_rules.RULES)


def blame_kernel(
    setup: Setup,
    failure: Failure,
    tolerance: float | None,
    folder: Path,
    progress: Callable[[str], None],
) -> Finding:
    """What is to blame for a group that failed; writes its test folder into `folder`."""
    finding = Finding(
        "kernel",
        ", ".join(f"{s}.wgsl" for s in failure.shaders),
        describe(failure.nodes, failure.path, failure.turn),
        tuple(n.op_type for n in failure.nodes),
        origin_of(failure.nodes),
        "gpu",
        failure.differences,
    )
    if failure.changed and all(d.ok for d in failure.differences):
        return _changed(finding, failure)
    progress("running the group alone")
    graph, disable = _reproduce(setup, failure, tolerance)
    inputs = {n: failure.inputs[n] for n in graph.inputs}
    values = (list(failure.want.values()), list(failure.got.values()))
    command = Rerun(setup, disable or (), tolerance)
    finding = with_case(finding, folder, graph, inputs, values, command)
    finding = replace(finding, alone=disable is not None)
    if disable is None:
        if failure.changed:
            return _changed(finding, failure)
        return finding.note("alone it is right: only this plan makes it wrong")
    progress("asking onnx.reference")
    if _numpy_is_wrong(failure, graph):
        return replace(finding, kind="numpy", blame=", ".join(finding.op_types), device="cpu").note(
            "onnx.reference agrees with the GPU, and not with NumPy"
        )
    if len(failure.nodes) > 1:
        progress("looking for the node or the rule")
        finding = _inside(finding, setup, failure, graph, tolerance, disable)
    return finding


def _numpy_is_wrong(failure: Failure, graph: Graph) -> bool:
    """Whether onnx.reference makes of the inputs what the GPU does, and NumPy does not."""
    right = reference_outputs(graph, failure.inputs)
    if right is None:
        return False
    allowed = group_tolerance(failure.plan.graph, failure.nodes)
    wrong = {d.name for d in failure.differences if not d.ok}

    def agree(values: Mapping[str, Any]) -> bool:
        return all(difference(n, values[n], right[n], allowed).ok for n in wrong)

    return agree(failure.got) and not agree(failure.want)


def _changed(finding: Finding, failure: Failure) -> Finding:
    names = ", ".join(map(repr, failure.changed))
    return replace(finding, kind="memory", blame=names).note(
        f"{names} is not what was written to it: a buffer was reused too early, or a conversion "
        "on the way to the GPU is wrong"
    )


def _reproduce(
    setup: Setup, failure: Failure, tolerance: float | None
) -> tuple[Graph, tuple[str, ...] | None]:
    """The group as a graph that fails alone, and the passes to leave out for that; None: it does
    not."""
    graph = failure.plan.graph
    forms = [
        subgraph(graph, failure.nodes, failure.inputs, failure.want, dynamic, failure.sizes)
        for dynamic in (False, True)
    ]
    for form in forms:
        for disable in ((), OPTIONAL_PASSES):
            if _fails(setup, form, failure.inputs, tolerance, disable):
                return form, disable
    return forms[0], None


def _fails(
    setup: Setup,
    graph: Graph,
    inputs: Mapping[str, Any],
    tolerance: float | None,
    disable: Collection[str],
) -> bool:
    """Whether a kernel is wrong in a graph by itself. What can't be run alone does not count."""
    check = GroupCheck(tolerance)
    try:
        with setup.session(disable, model=to_model(graph)) as session:
            check.run(session, {n: inputs[n] for n in graph.inputs})
    except EngineError:
        return False
    return check.found.failure is not None


def _inside(
    finding: Finding,
    setup: Setup,
    failure: Failure,
    graph: Graph,
    tolerance: float | None,
    disable: tuple[str, ...],
) -> Finding:
    """Names the node of a group that is wrong by itself, or else the rule that joined them."""
    try:
        values = evaluate_nodes(failure.plan, failure.nodes, failure.inputs, failure.binding)
    except MissingValueError:
        values = {}
    known = {**failure.inputs, **values}
    for node in failure.nodes:
        single = subgraph(failure.plan.graph, [node], known, node.writes, sizes=failure.sizes)
        if set(node.reads) <= single.values.keys() and _fails(
            setup, single, known, tolerance, disable
        ):
            blame = finding.blame
            if fusion_rules.is_elementwise(node):
                blame = f"{node.op_type}, an expression in {blame}"
            node_text = describe([node], failure.path, failure.turn)
            return replace(finding, blame=blame, node=node_text, origin=origin_of([node])).note(
                f"{node.op_type} is wrong by itself too, without what is fused to it"
            )
    rules = [r for r in RULES if r not in setup.disable]
    fixing = [
        r for r in rules if not _fails(setup, graph, failure.inputs, tolerance, (*disable, r))
    ]
    if fixing:
        return replace(finding, kind="fusion", blame=fixing[0]).note(
            f"its nodes are right one by one, and together without {' or '.join(fixing)}"
        )
    return finding.note("its nodes are right one by one, and wrong together without any rule too")


class Rerun(NamedTuple):
    """How a test folder is compared again: as `setup` says, but for `disable` and `more`."""

    setup: Setup
    disable: Collection[str] = ()
    tolerance: float | None = None
    more: Sequence[str] = ()

    def command(self, model: Path) -> str:
        """The command, as the shell takes it."""
        words = ["onnx-wgpu", "compare", str(model), "--data", str(model.parent / DATA)]
        for name in sorted({*self.setup.disable, *self.disable}):
            words += ["--disable", name]
        if self.setup.adapter is not None:
            words += ["--adapter", str(self.setup.adapter)]
        if isinstance(self.setup.target, str):
            words += ["--target", self.setup.target]
        if self.tolerance is not None:
            words += ["--tolerance", f"{self.tolerance:g}"]
        words += self.more
        return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def with_case(
    finding: Finding,
    folder: Path,
    graph: Graph,
    inputs: Mapping[str, Any],
    values: tuple[Sequence[Any], Sequence[Any]],
    rerun: Rerun,
) -> Finding:
    """The finding with its test folder; with a note where that cannot be written.

    Args:
        finding: what was found.
        folder: where the test folder goes.
        graph: its model. inputs: what that is fed.
        values: what is right of its outputs, and what came instead.
        rerun: how it is compared again.
    """
    try:
        model = write_case(folder, graph, inputs, *values)
    except OSError as error:
        return finding.note(
            f"it could not be written to {error.filename or folder} ({error.strerror}): "
            "see --output DIR"
        )
    return replace(finding, model=model, alone=True, command=rerun.command(model))
