"""Pooling: maximum, mean and p-norm of sliding windows and of whole planes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from math import prod

import numpy as np

from engine.dims import Dim, at_least, bounds, ceildiv, divisible, dmin, product
from engine.dtypes import INT64
from engine.ir import TensorType
from engine.ops import (
    FLOATS,
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
    yes_if,
)
from engine.ops._loads import per_output, times
from engine.ops._variants import choose
from engine.ops._work import FLOAT_NBYTES, SUM_PASSES, in_nbytes, in_shape, integers, out_nbytes
from engine.target import MAX_WORKGROUPS
from engine.windows import Windows, windows
from engine.work import CpuWork, GpuWork


def _windows(view: NodeView) -> Windows:
    return windows(
        view.shape(0)[2:],
        view.attr("kernel_shape"),
        auto_pad=view.attr("auto_pad", "NOTSET"),
        strides=view.attr("strides"),
        dilations=view.attr("dilations"),
        pads=view.attr("pads"),
        ceil_mode=int(view.attr("ceil_mode", 0)),
    )


def _infer(view: InferView) -> list[TensorType]:
    shape = (*view.shape(0)[:2], *_windows(view).out)
    types = [TensorType(view.dtype(0), shape)]
    if view.wants(1):
        types.append(TensorType(INT64, shape))
    return types


def _trips(win: Windows) -> Dim:
    d, h, w = win.kernel
    return d * (1 + h * (1 + w)) + 4


def _supports(view: NodeView) -> Support:
    if len(view.shape(0)) > 5:
        return no("kernels have at most three spatial axes")
    if (bounds(_trips(_windows(view).lead(3)))[1] or 0) > view.target.max_loop_trips:
        return no("its window is longer than a loop may be")
    return YES


def _power(p: int) -> str:
    """The term of `v` in the sum of a p-norm."""
    return {1: "abs(v)", 2: "v * v"}.get(p) or _or_nan(f"pow(abs(v), {p}.0)", "u32")


def _root(p: int, wide: bool) -> str:
    """The norm of which `v`, four sums if `wide`, is the power."""
    kind, bits = ("vec4<f32>", "vec4<u32>") if wide else ("f32", "u32")
    return {1: "v", 2: "sqrt(v)"}.get(p) or _or_nan(f"pow(v, {kind}(1.0 / {p}.0))", bits)


def _or_nan(found: str, bits: str) -> str:
    """`found`, or `v` if that is NaN, of which the built-in `pow` makes anything."""
    return f"select({found}, v, (bitcast<{bits}>(v) & {bits}(0x7fffffffu)) > {bits}(0x7f800000u))"


def _unrolled(kernel: int, stride: int, begin: int | None) -> str:
    """A row of windows `kernel` wide: every pixel is loaded once, and used by several windows.

    Args:
        begin: pixels of padding before the row where those of a row may be loaded by fours.
    """
    pixels = range(3 * stride + kernel)
    fours = itertools.groupby(pixels, lambda i: i if begin is None else (i - begin) // 4)
    lines = []
    for four, found in fours:
        members = list(found)
        if begin is None or len(members) == 1:
            lines += [f"let p{i} = pixel(row, first + {i});" for i in members]
            continue
        name, place = f"q{members[0]}", begin + 4 * four
        lines.append(f"let {name} = quad(row, first + {place});")
        lines += [f"let p{i} = {name}[{i - place}];" for i in members]
    for j in range(4):
        joined = f"m{j}"
        for tap in range(kernel):
            joined = f"join({joined}, p{j * stride + tap})"
        lines.append(f"m{j} = {joined};")
    return "\n".join(" " * 12 + line for line in lines)


def _looped(indices: bool) -> str:
    """A row of windows of any width, stride and dilation."""
    lines = [
        "for (var kx = 0u; kx < params.kernel_w; kx++) {",
        "    let start = first + i32(kx * params.dilation_w);",
    ]
    for j in range(4):
        lines.append(f"    let at{j} = start + {j} * i32(params.stride_w);")
        lines.append(f"    let p{j} = pixel(row, at{j});")
        if not indices:
            lines.append(f"    m{j} = join(m{j}, p{j});")
            continue
        lines += [
            f"    if (u32(at{j}) < params.in_w && (found[{j}] < 0 || p{j} > m{j}",
            f"        || (is_nan(p{j}) && !is_nan(m{j})))) {{",
            f"        m{j} = p{j};",
            f"        found[{j}] = i32(u32(iz) * params.place_d + u32(ih) * params.place_h"
            f" + u32(at{j}) * params.place_w);",
            "    }",
        ]
    return "\n".join(" " * 12 + line for line in [*lines, "}"])


def _store(wide: bool, indices: bool, kind: str) -> str:
    if wide:
        lines = [f"store4_y(place, vec4<{kind}>(v));"] + ["store4_indices(place, index);"] * indices
    else:
        lines = []
        for j in range(4):
            calls = f"store_y(place + {j}u, {kind}(v[{j}]));"
            if indices:
                calls += f" store_indices(place + {j}u, index[{j}]);"
            lines.append(f"if (column + {j}u < params.out_w) {{ {calls} }}" if j else calls)
    return "\n".join(" " * 4 + line for line in lines)


def _taps(win: Windows, indices: bool, quads: bool) -> str:
    width, stride, begin = win.kernel[2], win.strides[2], win.begin[2]
    if _is_unrolled(win, indices) and isinstance(width, int):
        return _unrolled(width, stride, begin if quads and isinstance(begin, int) else None)
    return _looped(indices)


def _is_unrolled(win: Windows, indices: bool) -> bool:
    width = win.kernel[2]
    short = isinstance(width, int) and win.strides[2] <= 2 and width <= 13
    return short and win.dilations[2] == 1 and not indices


def _pool(
    view: Lowering,
    flags: frozenset[str],
    text: dict[str, str],
    outside: float,
    more: dict[str, Dim | float],
) -> list[Stage]:
    win = _windows(view).without_units()
    indices, kind = "INDICES" in flags, view.dtype(0).wgsl
    planes = product(view.shape(0)[:2])
    tiles_w = ceildiv(win.out[2], 4)
    count = planes * win.out[0] * win.out[1] * tiles_w
    tensors = {"x": view.node.inputs[0], "y": view.node.outputs[0]}
    if indices:
        tensors["indices"] = view.node.outputs[1]
    by_fours = divisible(win.out[2], 4), divisible(win.size[2], 4)
    if "AVERAGE" in flags and any(d != 1 for d in win.dilations):
        flags |= {"DILATED"}

    def call(wide: bool, quads: bool) -> KernelCall:
        return KernelCall(
            "pool",
            tensors,
            {"tiles": count, "tiles_w": tiles_w, "outside": outside, **win.params(), **more},
            linear(count),
            flags=flags | ({"QUADS"} if quads else set()),
            text={
                **text,
                "TAPS": _taps(win, indices, quads),
                "STORE": _store(wide, indices, kind),
            },
            trips=_trips(win),
            when=tuple(g for g, four in zip(by_fours, (wide, quads), strict=True) if four),
        )

    loads = (
        (True, False) if _is_unrolled(win, indices) and isinstance(win.begin[2], int) else (False,)
    )
    return [choose([call(wide, quads) for quads in loads for wide in (True, False)])]


def _max_pool(view: Lowering) -> list[Stage]:
    flags = {"MAX"}
    more: dict[str, Dim | float] = {}
    if view.wants(1):
        flags.add("INDICES")
        d, h, w = _windows(view).without_units().size
        places = (1, d, d * h) if view.attr("storage_order", 0) else (h * w, w, 1)
        more = {f"place_{axis}": n for axis, n in zip("dhw", places, strict=True)}
    dtype = view.dtype(0)
    least = -math.inf if dtype.is_float else float(np.iinfo(dtype.numpy).min)
    return _pool(view, frozenset(flags), {}, least, more)


def _average_pool(view: Lowering) -> list[Stage]:
    win = _windows(view).without_units()
    padded = bool(view.attr("count_include_pad", 0))
    more: dict[str, Dim | float] = {}
    for axis, n, begin, end in zip("dhw", win.size, win.begin, win.end, strict=True):
        more[f"low_{axis}"] = -begin if padded else 0
        more[f"high_{axis}"] = n + end if padded else n
    return _pool(view, frozenset({"AVERAGE"}), {"POWER": "v", "ROOT": "v"}, 0.0, more)


def _lp_pool(view: Lowering) -> list[Stage]:
    p = int(view.attr("p", 2))
    return _pool(view, frozenset(), {"POWER": _power(p), "ROOT": _root(p, wide=True)}, 0.0, {})


def _norm_supports(view: NodeView) -> Support:
    p = int(view.attr("p", 2))
    return _supports(view) if p >= 1 else no(f"its kernel needs p >= 1, not {p}")


def _flops(view: NodeView) -> Dim:
    return product(view.out_shape()) * product(view.attr("kernel_shape"))


def _cpu(view: NodeView) -> CpuWork:
    """One axis after the other, a pass for each tap: in steps where the windows are apart."""
    win, planes = _windows(view), prod(in_shape(view, 0)[:2])
    size, out, kernel = integers(win.size), integers(win.out), integers(win.kernel)
    found = CpuWork(6)
    for axis, taps in enumerate(kernel):
        count = planes * prod(out[: axis + 1]) * prod(size[axis + 1 :])
        moved = 2 * FLOAT_NBYTES * count
        calls, last = 2 * taps + 4, axis == len(kernel) - 1
        padded = (moved,) if taps > 1 and win.begin[axis] != 0 else ()
        if last and win.strides[axis] > 1:
            found += CpuWork(calls, strided=taps * count, passes=padded)
        else:
            found += CpuWork(calls, passes=(*padded, *(moved,) * taps))
    return found


CHECKED = 2
"""A load that may lie outside takes as long as so many others."""


def _gpu(view: NodeView) -> GpuWork:
    """Rows of four windows: each pixel is loaded once for all of them where that is known."""
    win = _windows(view).without_units()
    depth, height, width = integers(win.kernel)
    out = integers(win.out)
    rows = prod(in_shape(view, 0)[:2]) * out[0] * out[1] * -(-out[2] // 4)
    stride = win.strides[2]
    seen = 3 * stride + width if stride <= 2 and width <= 13 else 4 * width
    loads = CHECKED * rows * depth * height * seen
    joins = rows * 4 * depth * height * width
    return GpuWork(1, loads=loads, ops=4 * joins, nbytes=out_nbytes(view))


def _global_infer(view: InferView) -> list[TensorType]:
    shape = view.shape(0)
    return [TensorType(view.dtype(0), (*shape[:2], *(1,) * (len(shape) - 2)))]


def _global_supports(view: NodeView) -> Support:
    p = int(view.attr("p", 2))
    if p < 1:
        return no(f"its kernel needs p >= 1, not {p}")
    size = product(view.shape(0)[2:])
    limit = 64 * view.target.max_loop_trips
    guard = at_least(limit, size, f"planes have at most {limit} elements")
    if guard.known is False:
        return no("its planes are longer than a loop may be")
    return YES if guard.known else yes_if(guard)


def _global_pool(
    view: Lowering, flags: frozenset[str], text: dict[str, str], start: float
) -> list[Stage]:
    shape = view.shape(0)
    planes, size = product(shape[:2]), product(shape[2:])
    tensors = {"x": view.node.inputs[0], "y": view.node.outputs[0]}
    params: dict[str, Dim | float] = {"planes": planes, "size": size, "start": start}
    shared = KernelCall(
        "pool_global",
        tensors,
        params,
        (dmin(planes, MAX_WORKGROUPS), ceildiv(planes, MAX_WORKGROUPS), 1),
        flags=flags | {"SHARED"},
        text=text,
        trips=ceildiv(size, 128) + 8,
        when=(at_least(size, 1024),),
    )
    alone = KernelCall(
        "pool_global",
        tensors,
        params,
        linear(planes),
        flags=flags,
        text=text,
        trips=ceildiv(size, 2),
    )
    return [choose([shared, alone])]


def _global_lp(view: Lowering) -> list[Stage]:
    p = int(view.attr("p", 2))
    text = {"POWER": _power(p), "ROOT": _root(p, wide=False)}
    return _global_pool(view, frozenset(), text, 0.0)


def _global_average(view: Lowering) -> list[Stage]:
    return _global_pool(view, frozenset(), {"POWER": "v", "ROOT": "v / f32(params.size)"}, 0.0)


def _global_max(view: Lowering) -> list[Stage]:
    return _global_pool(view, frozenset({"MAX"}), {}, -math.inf)


def _global_flops(view: NodeView) -> Dim:
    return product(view.shape(0))


def _register_windowed(
    op_type: str,
    lower: Callable[[Lowering], list[Stage]],
    supports: Callable[[NodeView], Support] = _supports,
    limits: str = "",
    dtypes: frozenset[str] = FLOATS,
) -> None:
    register(
        OpDef(
            op_type,
            infer=_infer,
            dtypes=dtypes,
            supports=supports,
            limits=f"more than three spatial axes; windows over a loop's length{limits}",
            lower=lower,
            loads=per_output(lambda view: prod(view.attr("kernel_shape"))),
            epilogue=True,
            flops=_flops,
            cpu=_cpu,
            gpu=_gpu,
        )
    )


def _register_global(op_type: str, lower: Callable[[Lowering], list[Stage]]) -> None:
    register(
        OpDef(
            op_type,
            infer=_global_infer,
            supports=_global_supports,
            limits="planes over a loop's length",
            lower=lower,
            loads=times(1),
            epilogue=True,
            flops=_global_flops,
            cpu=lambda view: CpuWork(6, passes=(SUM_PASSES * in_nbytes(view, 0),)),
            gpu=lambda view: GpuWork(1, loads=prod(in_shape(view, 0)), nbytes=out_nbytes(view)),
        )
    )


_register_windowed("MaxPool", _max_pool, dtypes=FLOATS | {"int8", "uint8"})
_register_windowed("AveragePool", _average_pool)
_register_windowed("LpPool", _lp_pool, _norm_supports, limits="; p below 1")
_register_global("GlobalAveragePool", _global_average)
_register_global("GlobalMaxPool", _global_max)
_register_global("GlobalLpPool", _global_lp)
