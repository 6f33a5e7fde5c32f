"""ReverseSequence."""

from __future__ import annotations

from collections.abc import Sequence

from engine.dims import product
from engine.ops import (
    ALL,
    YES,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    linear,
    no,
    register,
)
from engine.ops.shape import keep_type


def _axes(view: NodeView) -> tuple[int, int]:
    """The axes of time and batch."""
    rank = len(view.shape(0))
    return view.axis(rank, 0, "time_axis"), view.axis(rank, 1, "batch_axis")


def _supports(view: NodeView) -> Support:
    if set(_axes(view)) != {0, 1}:
        return no("its axes of time and batch are not 0 and 1")
    return YES


def _lower(view: Lowering) -> Sequence[Stage]:
    shape = view.shape(0)
    size = product(shape)
    time, _ = _axes(view)
    call = KernelCall(
        "misc_reverse",
        {
            "x": view.node.inputs[0],
            "sequence_lens": view.node.inputs[1],
            "y": view.node.outputs[0],
        },
        {"size": size, "second": shape[1], "steps": shape[time], "inner": product(shape[2:])},
        linear(size),
        flags=frozenset({"TIME_FIRST"} if time == 0 else ()),
    )
    return [(call,)]


register(
    OpDef(
        "ReverseSequence",
        10,
        infer=keep_type,
        lower=_lower,
        supports=_supports,
        limits="axes other than 0 and 1",
        dtypes=ALL,
        epilogue=True,
        tolerance=0.0,
    )
)
