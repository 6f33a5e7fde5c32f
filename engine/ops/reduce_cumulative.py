"""CumSum and CumProd."""

from __future__ import annotations

from collections.abc import Sequence

from engine.dims import Dim, at_least, product
from engine.errors import ShapeError
from engine.ops import (
    NUMBERS,
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
from engine.ops._shapes import infer_same
from engine.ops._variants import MAX_TRIPS


def _lines(view: NodeView) -> tuple[Dim, Dim, Dim]:
    """Lines, their elements, and how far apart these are."""
    shape, axes = view.shape(0), view.ints(1)
    if axes is None or len(axes) != 1 or not shape:
        raise ShapeError(f"{view.describe()}: it takes one known axis of a tensor that has some")
    axis = view.normal_axis(axes[0], len(shape))
    stride = product(shape[axis + 1 :])
    return product(shape[:axis]) * stride, shape[axis], stride


def _lower(view: Lowering) -> Sequence[Stage]:
    lines, count, stride = _lines(view)
    is_sum = view.node.op_type == "CumSum"
    flags = {name.upper() for name in ("exclusive", "reverse") if view.attr(name, 0)}
    flags |= {"PARTIAL"} if is_sum else set()
    call = KernelCall(
        "reduce_cumulative",
        {"x": view.node.inputs[0], "y": view.node.outputs[0]},
        {"lines": lines, "count": count, "stride": stride},
        linear(lines),
        frozenset(flags),
        {
            "T": view.dtype(0).wgsl,
            "START": "0" if is_sum else "1",
            "JOIN": "+" if is_sum else "*",
        },
        trips=count,
    )
    return [(call,)]


def _supports(view: NodeView) -> Support:
    count = _lines(view)[1]
    return yes_if(at_least(MAX_TRIPS, count, f"a line has at most {MAX_TRIPS} elements"))


for _op, _since in (("CumSum", 11), ("CumProd", 26)):
    register(
        OpDef(
            _op,
            _since,
            infer=infer_same,
            lower=_lower,
            supports=_supports,
            limits="lines over a loop's length",
            dtypes=NUMBERS,
            shape_inputs=(1,),
            epilogue=True,
        )
    )
