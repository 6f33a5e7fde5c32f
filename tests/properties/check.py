"""Cases on both devices: equal to the oracle's numbers, and run where the verdict says."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx

import engine
from engine import ops
from tests.properties.cases import Case, strategies
from tests.properties.drawing import Array, Data, Drawn, Form, is_float
from tests.properties.models import build, feeds
from tests.properties.oracles import expected

CALLS = 2
"""Calls, each of other sizes, that a model is drawn for."""


@dataclass
class Tally:
    """What the cases of an operator came to.

    Attributes:
        calls, on_gpu: how many, and how many of them ran on the GPU.
        others: why others did not.
    """

    calls: int = 0
    on_gpu: int = 0
    others: set[str] = field(default_factory=set)


def describe(operator: str, case: Case) -> str:
    """A case in a line."""
    inputs = ", ".join(
        "-" if v is None else f"{v.dtype}{list(v.shape)}" + (f"={v.tolist()}" if v.size < 9 else "")
        for v in case.inputs
    )
    return f"{operator}-{case.opset}({inputs}) {dict(case.attrs)}"


def tolerance(operator: str, case: Case) -> float:
    """The case's own, or its operator's."""
    if case.tol is not None:
        return case.tol
    definition = definition_of(operator, case)
    return 1e-5 if definition is None else definition.tolerance


def definition_of(operator: str, case: Case) -> ops.OpDef | None:
    """The rules of the operator of a case, if it has any."""
    domain, _, op = operator.rpartition(":")
    if domain:
        return ops.lookup(op, domain=domain)
    return ops.lookup(op, onnx.defs.get_schema(op, case.opset).since_version)


def check_draws(operator: str, drawn: Drawn, tally: Tally) -> None:
    """Draws a model and runs it with arrays of several sizes."""
    form, draw = Form(drawn), strategies()[operator]
    with ExitStack() as stack:
        sessions: dict[bytes, tuple[engine.InferenceSession, engine.InferenceSession]] = {}
        for _ in range(CALLS):
            form.again()
            symbolic, fed = not form.chance(0.15), form.chance(0.1)
            target = "adapter" if form.chance(0.25) else "baseline"
            case = draw(operator, form, Data(drawn))
            definition = definition_of(operator, case)
            planned = () if definition is None else definition.shape_inputs
            made = {case.behind} if case.ahead else set()
            constants = case.constants
            if constants is None:
                constants = () if fed else sorted({*planned} - made)
            sized = {*case.sized, *planned} - made
            model = build(operator, case, constants, symbolic=symbolic, sized=sized)
            key = model.SerializeToString(deterministic=True)
            if key not in sessions:
                gpu = engine.InferenceSession(model, device="gpu", target=target)
                cpu = engine.InferenceSession(model, device="cpu")
                sessions[key] = stack.enter_context(gpu), stack.enter_context(cpu)
            try:
                _check(operator, case, constants, *sessions[key], tally)
            except Exception as error:
                error.add_note(f"{describe(operator, case)}, {symbolic=}, {constants=}, {target}")
                raise


def _check(
    operator: str,
    case: Case,
    constants: Sequence[int],
    gpu: engine.InferenceSession,
    cpu: engine.InferenceSession,
    tally: Tally,
) -> None:
    given = feeds(case, constants)
    tol = tolerance(operator, case)
    right = expected(operator, case)
    on_cpu = cpu.run(None, given)
    on_gpu = gpu.run(None, given)
    tally.calls += 1
    places = _placed(operator, gpu, [np.size(y) for y in on_gpu])
    tally.on_gpu += places == {"gpu"}
    tally.others |= places - {"gpu"}
    for index, (mine, other) in enumerate(zip(on_gpu, on_cpu, strict=True)):
        if right is not None:
            agree(other, right[index], tol, case, f"output {index}: the CPU and the oracle")
            agree(mine, right[index], tol, case, f"output {index}: the GPU and the oracle")
        assert mine.dtype == other.dtype, f"{mine.dtype} on the GPU, {other.dtype} on the CPU"
        agree(mine, other, 2 * tol, case, f"output {index}: the GPU and the CPU")


def _placed(operator: str, session: engine.InferenceSession, sizes: Sequence[int]) -> set[str]:
    """Of nodes that write outputs, of so many elements: "gpu", or why they ran elsewhere.

    Fails if they ran elsewhere than the verdicts said.

    What has no element is not computed, and a view of an input is where that lies.
    """
    plan = session.plan()
    places = {node.key: place for node, place in session.executed()}
    filled = {name for name, size in zip(plan.graph.outputs, sizes, strict=True) if size}
    found = set()
    for node in plan.graph.nodes:
        verdict = plan.partition.verdicts[node.key]
        place = places.get(node.key, "")
        if verdict.device != "gpu":
            assert verdict.reason, f"no reason why {node.op_type} is not on the GPU"
        elif plan.root(node.key) not in plan.graph.inputs and filled & {*node.outputs}:
            assert place == "gpu", f"{operator}: {node.op_type} is {place or 'not run'}, not on it"
        if filled & {*node.outputs}:
            found.add("gpu" if place == "gpu" else verdict.reason or "a view of an input")
    return found


def agree(got: Any, want: Any, tol: float, case: Case, what: str) -> None:
    """Fails unless shapes are equal, NaN and infinities sit alike and errors are within bounds."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{what}: shapes {got.shape} and {want.shape}"
    if not is_float(got.dtype):
        apart = np.abs(got.astype(np.float64) - want.astype(np.float64)) > case.steps
        same = got == want if not case.steps else ~apart
        assert same.all(), f"{what}: {_worst(got, want, ~same)}"
        return
    assert is_float(want.dtype), f"{what}: dtypes {got.dtype} and {want.dtype}"
    limits = ml_dtypes.finfo(got.dtype)
    with np.errstate(invalid="ignore"):
        mine, wide = got.astype(np.float64), want.astype(np.float64)
    if tol == 0:
        bits = (mine == wide) & (np.signbit(mine) == np.signbit(wide)) | np.isnan(mine) & (
            np.isnan(wide)
        )
        assert bits.all(), f"{what}: {_worst(got, want, ~bits)}"
        return
    overflown = (np.abs(wide) > float(limits.max) * (1 - tol)) & np.isinf(mine)
    wide = np.where(overflown & np.isfinite(wide), np.copysign(np.inf, wide), wide)
    finite = np.isfinite(wide)
    alike = (mine == wide) | (np.isnan(mine) & np.isnan(wide))
    assert alike[~finite].all(), f"{what}: {_worst(got, want, ~finite & ~alike)}"
    sizes = np.where(finite, np.abs(wide), 0)
    scale = np.maximum(sizes, 1) if case.each else max(float(sizes.max(initial=0)), 1e-30)
    ulp = float(limits.eps) if got.dtype != np.float32 else 0.0
    bound = tol * scale + ulp * sizes + float(limits.tiny) * ulp
    with np.errstate(invalid="ignore"):
        wrong = finite & ~(np.abs(mine - wide) <= bound)
    assert not wrong.any(), f"{what}: {_worst(got, want, wrong)}"


def _worst(got: Array, want: Array, wrong: Array) -> str:
    """Where two arrays differ first."""
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{got[place]!r} and {want[place]!r} at {place}, {int(wrong.sum())} of {wrong.size}"
