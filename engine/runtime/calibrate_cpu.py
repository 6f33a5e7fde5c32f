"""Measures the figures of NumPy, and of the engine's Python around it.

In a model every node finds the caches full of something else. So overheads are those of small
nodes between large ones, and matrices come from memory, not from the call before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cpu_fallback.products import product
from engine.dtypes import FLOAT32
from engine.ir import Array, Graph, TensorType, Value
from engine.rates import CpuRates, DeviceProfile
from engine.runtime.calibrate_lab import Chain, Lab, fastest_ns, less, rate, usual_ns, usual_of_ns
from engine.runtime.host import blas_of_one
from engine.work import time_ns

_SHARE_S = 0.015
_BETWEEN = 8
_WEIGHTS = (128, 192)
"""So small that a product is not cut."""
_NEARBY, _ROTATED = 40, 400
"""Operands in turn that a shared cache holds, and that none does."""
_SQUARES = (96, 512)
"""The smaller product is one piece of work, the larger one several."""
_MORE_STEPS = 13
"""Calls of NumPy that a LayerNormalization makes and a Relu does not."""
_WIDE = 1 << 18
_NEAR = 1 << 14
_FAR = 1 << 20


def measure_cpu() -> CpuRates:
    """Every figure of NumPy, products on as many threads as in a call."""
    with blas_of_one():
        return CpuRates(**_overheads(), **_products(), **_passes())


def _overheads() -> dict[str, int]:
    lab = Lab(None, DeviceProfile.builtin())
    call, plain, short, long = usual_of_ns(
        [
            lab.call(Chain.start(16).add("Neg").graph()),
            lab.call(_between("")),
            lab.call(_between("Relu")),
            lab.call(_between("LayerNormalization", np.ones(16, np.float32))),
        ]
    )
    step = less((long - short) // _BETWEEN) // _MORE_STEPS
    node = less((short - plain) // _BETWEEN, 2 * step)
    return {"call_ns": less(call, node), "node_ns": node, "step_ns": step}


def _between(op_type: str, *constants: Array) -> Graph:
    """Small nodes between passes over large arrays; without an operator, only the latter."""
    large = Chain.start(_WIDE).add("Floor")
    small = Chain((16,), large.values, large.nodes, "small")
    large.values["small"] = Value("small", TensorType(FLOAT32, (16,)))
    for index in range(_BETWEEN):
        large.add("Neg" if index % 2 else "Floor")
        if op_type:
            small.add(op_type, *constants)
    return large.graph(small.last, large.last, inputs=("x", "small"))


def _products() -> dict[str, int]:
    """Products whose size is one extreme each, from the most figures that are known already."""
    tiny = _matrices(64, 8, 8, 8)
    few = [_matrices(1, 8, *_WEIGHTS) for _ in range(_ROTATED)]
    vectors = [_matrices(1, 1, *_WEIGHTS) for _ in range(_NEARBY)]
    weights = _WEIGHTS[0] * _WEIGHTS[1]
    product_ns = usual_ns(lambda: np.matmul(*tiny)) // 64
    flops_per_s = max(_square(size) for size in _SQUARES)
    few_ns = _in_turn(lambda pair: np.matmul(*pair), few)
    computed = time_ns(2 * 8 * weights, flops_per_s)
    touched = 4 * (8 * _WEIGHTS[0] + weights + 8 * _WEIGHTS[1])
    vector_ns = _in_turn(lambda pair: np.matmul(*pair), vectors)
    return {
        "product_ns": product_ns,
        "flops_per_s": flops_per_s,
        "panel_bytes_per_s": rate(touched, less(few_ns, computed)),
        "row_bytes_per_s": rate(4 * weights, vector_ns),
    }


def _square(size: int) -> int:
    """Operations a second of a square product."""
    pair = _matrices(1, size, size, size)
    return rate(2 * size**3, fastest_ns(lambda: product(*pair), _SHARE_S))


def _matrices(count: int, rows: int, inner: int, columns: int) -> tuple[Array, Array]:
    lead = (count,) if count > 1 else ()
    return (
        np.full((*lead, rows, inner), 0.5, np.float32),
        np.full((*lead, inner, columns), 0.5, np.float32),
    )


def _in_turn(action: Callable[[Any], object], operands: Sequence[Any]) -> int:
    """The usual time of an action on operands that the caches have lost since the last turn."""
    turns = itertools.cycle(operands)
    return usual_ns(lambda: action(next(turns)))


def _passes() -> dict[str, int]:
    """Passes over arrays, results in new memory as those of nodes are."""
    near, far = (np.full(n, 0.5, np.float32) for n in (_NEAR, _FAR))
    apart, room = np.full((64, 128, 128), 0.5, np.float32), np.empty((64, 64, 64), np.float32)
    places = np.random.default_rng(0).permutation(_NEAR)
    out, other = np.empty_like(near), near.copy()
    others = [np.full(_FAR, 0.5, np.float32) for _ in range(4)]
    return {
        "cache_bytes_per_s": rate(3 * near.nbytes, usual_ns(lambda: np.add(near, other, out=out))),
        "memory_bytes_per_s": rate(3 * far.nbytes, _in_turn(lambda x: np.add(far, x), others)),
        "strided_per_s": rate(
            room.size,
            usual_ns(lambda: np.copyto(room, apart[:, ::2, ::2])),
        ),
        "gathers_per_s": rate(_NEAR, usual_ns(lambda: near[places])),
        "functions_per_s": rate(
            _NEAR,
            less(
                usual_ns(lambda: np.exp(near, out=out)),
                usual_ns(lambda: np.negative(near, out=out)),
            ),
        ),
    }
