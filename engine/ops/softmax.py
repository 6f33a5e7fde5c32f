"""Softmax, LogSoftmax and Hardmax along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from engine.dims import Dim, Guard, at_least, ceildiv, divisible, product
from engine.ops import (
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    linear,
    register,
    yes_if,
)
from engine.ops._loads import times
from engine.ops._shapes import infer_same
from engine.ops._variants import MAX_TRIPS, choose
from engine.ops._work import FLOAT_NBYTES, SUM_PASSES, in_shape, whole_passes
from engine.ops.reduce import WORKGROUP, lanes_of
from engine.records import dataclass
from engine.work import GpuWork


@dataclass(frozen=True)
class _Rows:
    """The tensor as [rows / stride, count, stride]."""

    rows: Dim
    count: Dim
    stride: Dim


def _rows(view: NodeView) -> _Rows:
    shape = view.shape(0)
    axis = view.axis(len(shape), -1)
    if not shape:
        return _Rows(1, 1, 1)
    stride = product(shape[axis + 1 :])
    return _Rows(product(shape[:axis]) * stride, shape[axis], stride)


def _lower(view: Lowering) -> Sequence[Stage]:
    found = _rows(view)
    flags = frozenset({"LOG"}) if view.node.op_type == "LogSoftmax" else frozenset()
    contiguous = found.stride == 1
    vectors = divisible(found.count, 4)

    def call(lanes: int, wide: bool, *when: Guard) -> KernelCall:
        width = (4 if wide else 1) * lanes
        return KernelCall(
            "softmax_workgroup" if lanes > 1 else "softmax",
            {"input": view.node.inputs[0], "output": view.node.outputs[0]},
            {"rows": found.rows, "count": found.count, "stride": found.stride},
            linear(found.rows * lanes, WORKGROUP),
            flags | ({"VEC4"} if wide else set()),
            overrides={"LANES": lanes} if lanes > 1 else {},
            trips=ceildiv(found.count, width) * 3,
            when=(vectors, *when) if wide else when,
        )

    widths = (True, False) if contiguous else (False,)
    orders = lanes_of(found.rows, found.count, contiguous, view.target)
    return [choose([call(lanes, wide, *when) for lanes, when in orders for wide in widths])]


def _lower_hardmax(view: Lowering) -> Sequence[Stage]:
    found = _rows(view)
    call = KernelCall(
        "softmax_hardmax",
        {"input": view.node.inputs[0], "output": view.node.outputs[0]},
        {"rows": found.rows, "count": found.count, "stride": found.stride},
        linear(found.rows, WORKGROUP),
        trips=found.count * 2,
    )
    return [(call,)]


def _supports(view: NodeView) -> Support:
    found = _rows(view)
    limit = MAX_TRIPS // 3 * WORKGROUP
    return yes_if(at_least(limit, found.count, f"a row has at most {limit} elements"))


def _supports_hardmax(view: NodeView) -> Support:
    limit = MAX_TRIPS // 2
    return yes_if(at_least(limit, _rows(view).count, f"a row has at most {limit} elements"))


def _gpu(view: NodeView) -> GpuWork:
    """Two passes of loads for the largest element and the sum, and one that stores."""
    count = prod(in_shape(view, 0))
    return GpuWork(1, loads=3 * count, ops=40 * count, nbytes=count * FLOAT_NBYTES)


for _op in ("Softmax", "LogSoftmax"):
    register(
        OpDef(
            _op,
            since=13,
            infer=infer_same,
            lower=_lower,
            supports=_supports,
            limits="rows over a loop's length",
            loads=times(3),
            epilogue=True,
            flops=lambda view: product(view.shape(0)) * 40,
            cpu=lambda view: whole_passes(view, 9, 2 * SUM_PASSES + 2, 2, functions=1),
            gpu=_gpu,
            tolerance=2e-6,
        )
    )
register(
    OpDef(
        "Hardmax",
        since=13,
        infer=infer_same,
        lower=_lower_hardmax,
        supports=_supports_hardmax,
        limits="rows over a loop's length",
        epilogue=True,
        flops=lambda view: product(view.shape(0)) * 3,
        tolerance=0.0,
    )
)
