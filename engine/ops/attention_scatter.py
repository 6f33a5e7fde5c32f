"""TensorScatter: new keys or values written into a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.dims import Guard, at_least, product
from engine.ops import (
    ALL,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    linear,
    no,
    register,
    yes_if,
)
from engine.ops._fit import alike
from engine.ops.shape import keep_type


def _axis(view: NodeView) -> int:
    return view.axis(len(view.shape(0)), -2)


def _supports(view: NodeView) -> Support:
    axis = _axis(view)
    if axis == 0:
        return no("it writes along the batch")
    if str(view.attr("mode", "linear")) not in ("linear", "circular"):
        return no("its mode is unknown")
    return yes_if(at_least(view.shape(0)[axis], view.shape(1)[axis], "the update fits the cache"))


def _lower(view: Lowering) -> Sequence[Stage]:
    shape, axis = view.shape(0), _axis(view)
    size = product(shape)
    flags = {"CIRCULAR"} if str(view.attr("mode", "linear")) == "circular" else set()
    tensors = {
        "past_cache": view.node.inputs[0],
        "update": view.node.inputs[1],
        "present_cache": view.node.outputs[0],
    }
    if view.has(2):
        tensors["write_indices"] = view.node.inputs[2]
        flags.add("INDICES")
    call = KernelCall(
        "attention_scatter",
        tensors,
        {
            "size": size,
            "capacity": shape[axis],
            "length": view.shape(1)[axis],
            "inner": product(shape[axis + 1 :]),
            "per_batch": product(shape[1:]),
        },
        linear(size),
        flags=frozenset(flags),
        text={"T": view.dtype(0).wgsl},
    )
    return [(call,)]


def _agree(view: NodeView) -> Iterator[Guard]:
    """An update is like the cache but in length, and is written at one place for each entry."""
    cache, update = view.shape(0), view.shape(1)
    axis = view.axis(len(cache), -2)
    yield from alike(view, cache, (*update[:axis], cache[axis], *update[axis + 1 :]))
    if view.has(2):
        yield from alike(view, view.shape(2), cache[:1])


register(
    OpDef(
        "TensorScatter",
        24,
        infer=keep_type,
        agree=_agree,
        lower=_lower,
        supports=_supports,
        limits="updates longer than the cache",
        dtypes=ALL,
        epilogue=True,
        tolerance=0.0,
    )
)
