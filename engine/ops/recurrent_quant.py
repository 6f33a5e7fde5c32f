"""DynamicQuantizeLSTM: inputs and states are rounded to 256 levels, weights are of 8 bits.

What is rounded stays a float, and the weights are made floats once: the products are those of the
integers, but for the order in which scales are multiplied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from engine.dims import at_least, ceildiv, product
from engine.dtypes import FLOAT32, UINT8
from engine.ir import Array, TensorType, ValueType
from engine.ops import (
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
    yes_if,
)
from engine.ops._quant import every
from engine.ops._recurrence import agree, recurrence, supports
from engine.ops._recurrent_stages import Stages, packed
from engine.ops._variants import MAX_TRIPS
from engine.ops._work import in_shape
from engine.ops.quant import MICROSOFT, range_stages
from engine.ops.recurrent import flops, recurrent_cpu, recurrent_gpu
from engine.work import CpuWork

X, W, R = range(3)
W_SCALE, W_ZERO, R_SCALE, R_ZERO = range(8, 12)


def _infer(view: InferView) -> list[ValueType]:
    found, dtype = recurrence(view), view.dtype(X)
    state = TensorType(dtype, (found.directions, found.sequences, found.hidden))
    y = (found.steps, found.directions, found.sequences, found.hidden)
    return [TensorType(dtype, y), state, state]


def _supports(view: NodeView) -> Support:
    fixed = (W, R, W_SCALE, W_ZERO, R_SCALE, R_ZERO)
    if any(view.has(i) and view.const(i) is None for i in fixed):
        return no("its weights are not constants")
    if view.dtype(X) != FLOAT32:
        return no(f"its kernels compute in float32, not in {view.dtype(X)}")
    found = recurrence(view)
    count = product(view.shape(X))
    states = found.sequences * found.padded
    sizes = (
        at_least(count, 1, "there are elements to take the range of"),
        at_least(MAX_TRIPS // 5 * 256, count, "the range is found in loops that are short enough"),
        at_least(MAX_TRIPS // 2, states, f"there are at most {MAX_TRIPS // 2} states"),
    )
    if any(guard.known is False for guard in sizes):
        return no("it has no input, or its range is that of too many elements")
    return every(supports(view), yes_if(*(g for g in sizes if g.known is None)))


def _floats(view: NodeView, scale: int, zero: int) -> Callable[[Array], Array]:
    """Makes floats of weights [directions, inputs, columns]."""
    scales, points = view.const(scale), view.const(zero)

    def spread(values: Array) -> Array:
        """For each direction, or each of its columns."""
        return values.reshape(values.shape[0], 1, -1).astype(np.float32)

    def make(weights: Array) -> Array:
        found = weights.astype(np.float32)
        if points is not None:
            found = found - spread(points)
        return found if scales is None else found * spread(scales)

    return make


def _recipe(view: NodeView, name: str, *indices: int) -> str:
    """A name for what is made with the help of constants."""
    hasher = hashlib.blake2b(digest_size=8)
    for index in indices:
        array = view.const(index)
        hasher.update(b"-" if array is None else array.tobytes())
    return f"{name}{hasher.hexdigest()}"


def _lower(view: Lowering) -> Sequence[Stage]:
    stages = Stages(view)
    inputs, states = _floats(view, W_SCALE, W_ZERO), _floats(view, R_SCALE, R_ZERO)

    def columns_last(weights: Array) -> Array:
        """[inputs, directions * columns]."""
        wide = inputs(weights)
        rows = wide.transpose(1, 0, 2)
        return np.ascontiguousarray(rows.reshape(len(rows), rows.shape[1] * rows.shape[2]))

    def by_unit(weights: Array) -> Array:
        return packed(4)(np.ascontiguousarray(states(weights).transpose(0, 2, 1)))

    stages.input_weights = view.derived(
        W, _recipe(view, "floats_last", W_SCALE, W_ZERO), columns_last, FLOAT32
    )
    stages.weights = view.derived(
        R, _recipe(view, "floats_packed", R_SCALE, R_ZERO), by_unit, FLOAT32
    )
    stages.rounded = True
    size = product(view.shape(X))
    scale, zero = view.scratch(FLOAT32, ()), view.scratch(UINT8, ())
    stages.x = view.scratch(FLOAT32, view.shape(X))
    tensors = {"x": view.node.inputs[X], "scale": scale, "zero_point": zero, "y": stages.x}
    rounding = KernelCall("recurrent_round", tensors, {"size": size}, linear(ceildiv(size, 4)))
    return [
        *range_stages(view, view.node.inputs[X], scale, zero, size),
        (rounding,),
        *stages.stages(),
    ]


QUANTIZED_CALLS = 28
"""Calls of NumPy that quantise the states of an LSTM and scale the sums, in a step."""


def _cpu(view: NodeView) -> CpuWork:
    """An LSTM whose weights become floats in each call, and its states levels in each step."""
    x, w, r = (in_shape(view, i) for i in range(3))
    hidden, rows = r[1], r[2]
    found = recurrent_cpu(x[0], x[1], r[0], rows, x[2], hidden, 16 + QUANTIZED_CALLS)
    weights = prod(w) + prod(r)
    return found + CpuWork(20, passes=(12 * weights,) * 3)


register(
    OpDef(
        "DynamicQuantizeLSTM",
        domain=MICROSOFT,
        infer=_infer,
        agree=agree,
        lower=_lower,
        supports=_supports,
        limits="weights that are not constants; activations that are not ONNX's",
        dtypes=frozenset({"float32", "int8", "uint8", "int32"}),
        variadic=True,
        epilogue=True,
        flops=flops,
        launches=lambda view: 6 + recurrence(view).steps,
        cpu=_cpu,
        gpu=recurrent_gpu,
        tolerance=2e-3,
    )
)
