"""ReverseSequence; types of what joins and splits strings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.dims import Guard, product
from engine.dtypes import INT64, STRING
from engine.ir import TensorType, ValueType
from engine.ops import (
    ALL,
    YES,
    InferView,
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
from engine.ops._fit import alike
from engine.ops._shapes import infer_broadcast
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


def _agree(view: NodeView) -> Iterator[Guard]:
    """A length for each entry."""
    yield from alike(view, view.shape(1), (view.shape(0)[int(view.attr("batch_axis", 1))],))


register(
    OpDef(
        "ReverseSequence",
        10,
        infer=keep_type,
        agree=_agree,
        lower=_lower,
        supports=_supports,
        limits="axes other than 0 and 1",
        dtypes=ALL,
        epilogue=True,
        tolerance=0.0,
    )
)


def _infer_string_split(view: InferView) -> list[ValueType]:
    shape = view.type(0).shape
    parts = None if shape is None else (*shape, view.fresh("parts"))
    return [TensorType(STRING, parts), TensorType(INT64, shape)]


def _infer_normalizer(view: InferView) -> list[ValueType]:
    """Stop words are left out, at least one string stays."""
    shape = view.shape(0)
    return [TensorType(STRING, (*shape[:-1], view.fresh("words")))]


register(OpDef("StringConcat", 20, infer=infer_broadcast(STRING)))
register(OpDef("StringNormalizer", 10, infer=_infer_normalizer))
register(OpDef("StringSplit", 20, infer=_infer_string_split))
