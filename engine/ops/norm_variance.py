"""MeanVarianceNormalization: any axes, in two dispatches."""

from __future__ import annotations

from collections.abc import Sequence

from engine.dims import Dim, at_least, ceildiv, product
from engine.dtypes import FLOAT32
from engine.indexing import index_map, row_major
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
from engine.ops._shapes import infer_same
from engine.ops._variants import MAX_TRIPS

WORKGROUP = 64
EPSILON = 1e-9


def _axes(view: NodeView) -> tuple[list[int], list[int]]:
    """The axes that are kept, and those that moments are taken over."""
    rank = len(view.shape(0))
    over = view.normal_axes(view.attr("axes", [0, 2, 3]), rank)
    return [i for i in range(rank) if i not in over], sorted(over)


def _count(view: NodeView) -> Dim:
    shape = view.shape(0)
    return product(shape[i] for i in _axes(view)[1])


def _lower(view: Lowering) -> Sequence[Stage]:
    shape, strides = view.shape(0), row_major(view.shape(0))
    rest, over = _axes(view)
    sizes = [shape[i] for i in rest]
    size, count = product(sizes), _count(view)
    moments = view.scratch(FLOAT32, (size, 2))
    kept = index_map("kept", sizes, [strides[i] for i in rest])
    along = index_map("along", [shape[i] for i in over], [strides[i] for i in over])
    steps = dict(zip(rest, row_major(sizes), strict=True))
    group = index_map("group_of", shape, [steps.get(i, 0) * 2 for i in range(len(shape))])
    first = KernelCall(
        "norm_moments",
        {"x": view.node.inputs[0], "moments": moments},
        {"size": size, "count": count, "epsilon": EPSILON, **dict(kept.params + along.params)},
        linear(size * WORKGROUP, WORKGROUP),
        text={"MAPS": f"{kept.text}\n{along.text}"},
        extra_params=kept.fields + along.fields,
        trips=ceildiv(count, WORKGROUP) * 2,
    )
    second = KernelCall(
        "norm_apply",
        {"x": view.node.inputs[0], "moments": moments, "y": view.node.outputs[0]},
        {"size": product(shape), **dict(group.params)},
        linear(product(shape), WORKGROUP),
        text={"MAPS": group.text},
        extra_params=group.fields,
    )
    return [(first,), (second,)]


def _supports(view: NodeView) -> Support:
    limit = MAX_TRIPS // 2 * WORKGROUP
    return yes_if(at_least(limit, _count(view), f"a group has at most {limit} elements"))


register(
    OpDef(
        "MeanVarianceNormalization",
        since=9,
        infer=infer_same,
        lower=_lower,
        supports=_supports,
        limits="groups over a loop's length",
        epilogue=True,
        scratch=1,
        flops=lambda view: product(view.shape(0)) * 6,
    )
)
