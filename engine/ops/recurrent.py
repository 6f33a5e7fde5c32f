"""LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Sequence

from engine.dims import Dim
from engine.ir import TensorType, ValueType
from engine.ops import FLOATS, InferView, Lowering, NodeView, OpDef, Stage, register
from engine.ops._recurrence import CELLS, agree, recurrence, supports
from engine.ops._recurrent_stages import IN_WORKGROUP, Stages
from engine.ops._work import integers
from engine.work import CpuWork, GpuWork, Products


def _infer(view: InferView) -> Sequence[ValueType]:
    found = recurrence(view)
    dtype = view.dtype(0)
    lead: tuple[Dim, ...] = (found.directions, found.sequences)
    y: tuple[Dim, ...] = (found.steps, *lead, found.hidden)
    if found.batch_first:
        lead = (found.sequences, found.directions)
        y = (found.sequences, found.steps, found.directions, found.hidden)
    state = TensorType(dtype, (*lead, found.hidden))
    return [TensorType(dtype, y), state, state][: len(view.node.outputs)]


def _lower(view: Lowering) -> Sequence[Stage]:
    return Stages(view).stages()


def flops(view: NodeView) -> Dim:
    """Of the products, and a few for each gate."""
    found = recurrence(view)
    rows = found.steps * found.sequences * found.directions * found.cell.gates * found.hidden
    return 2 * rows * (found.inputs + found.hidden + 8)


def _launches(view: NodeView) -> Dim:
    """Two where a workgroup runs whole sequences, else one for each step and the states."""
    found = recurrence(view)
    if isinstance(found.hidden, int) and found.hidden <= IN_WORKGROUP:
        return 2
    two = view.node.op_type == "GRU" and not view.attr("linear_before_reset", 0)
    return 3 + found.steps * (2 if two else 1)


_STEP_CALLS = {"LSTM": 16, "GRU": 18, "RNN": 6}
"""Calls of NumPy in a time step of one direction."""


def recurrent_cpu(
    steps: int, sequences: int, directions: int, rows: int, inputs: int, hidden: int, calls: int
) -> CpuWork:
    """A product for all inputs, then in each step one with the states, and `calls` more."""
    once = CpuWork(20, (Products(1, steps * sequences, inputs, rows),))
    step = CpuWork(calls, (Products(1, sequences, hidden, rows),))
    return (once + step.times(steps)).times(directions)


def _cpu(view: NodeView) -> CpuWork:
    found = recurrence(view)
    sizes = (found.steps, found.sequences, found.directions)
    steps, sequences, directions, hidden, inputs = integers((*sizes, found.hidden, found.inputs))
    rows, calls = found.cell.gates * hidden, _STEP_CALLS[view.node.op_type]
    return recurrent_cpu(steps, sequences, directions, rows, inputs, hidden, calls)


def recurrent_gpu(view: NodeView) -> GpuWork:
    """Products of one row a sequence: weights are loaded by fours, and used once."""
    (count,) = integers((flops(view),))
    return GpuWork(1, loads=count // 8)


for _name in CELLS:
    register(
        OpDef(
            _name,
            since=7,
            infer=_infer,
            agree=agree,
            lower=_lower,
            supports=supports,
            limits="activations that are not ONNX's; products over a loop's length",
            dtypes=FLOATS | {"int32"},
            variadic=True,
            epilogue=True,
            flops=flops,
            launches=_launches,
            cpu=_cpu,
            gpu=recurrent_gpu,
            tolerance=5e-6,
        )
    )
