"""Resize: by nearest element, linear or cubic interpolation along any axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod

import numpy as np

from engine.dims import (
    Dim,
    Guard,
    at_least,
    ceildiv,
    divisible,
    equal,
    floordiv,
    is_static,
    mod,
    product,
)
from engine.errors import ShapeError
from engine.indexing import row_major
from engine.ir import Array, TensorType
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
    yes_if,
)
from engine.ops._fit import alike
from engine.ops._loads import per_output
from engine.ops._resize_text import Sampler, Sampling
from engine.ops._variants import choose
from engine.ops._work import in_shape, out_shape
from engine.records import dataclass
from engine.work import CpuWork

MODES = frozenset({"nearest", "linear", "cubic"})
MOST = {"linear": 3, "cubic": 2}
"""Axes that a kernel interpolates at most."""
COORDINATES = frozenset(
    {
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_crop_and_resize",
    }
)


@dataclass(frozen=True)
class Axis:
    """One axis: `size` elements become `out`, by the factor p / q.

    Attributes:
        p, q: as integers or dims; None where the scale is no fraction of small numbers.
        scale: the factor as a number, where it is one.
        width: the output size before rounding, as numerator and denominator.
        roi: the part of the input that is sampled, from 0 to 1.
    """

    size: Dim
    out: Dim
    p: Dim | None = 1
    q: Dim | None = 1
    scale: float = 1.0
    width: tuple[Dim, Dim] = (0, 1)
    roi: tuple[float, float] = (0.0, 1.0)

    @property
    def kept(self) -> bool:
        """Whether every element stays where it is."""
        return self.size == self.out and self.p is not None and self.p == self.q


def exact_scale(value: float) -> Fraction | None:
    """The fraction with a small denominator that `value` is the float32 of, if there is one."""
    simple = Fraction(value).limit_denominator(1000)
    return simple if np.float32(simple) == np.float32(value) else None


def _numbers(view: NodeView) -> list[int]:
    rank = len(view.shape(0))
    axes = view.attr("axes")
    return view.normal_axes(axes, rank) if axes is not None else [*range(rank)]


def _roi(view: NodeView, count: int) -> list[tuple[float, float]]:
    roi = view.const(1)
    if roi is None or roi.size != 2 * count:
        return [(0.0, 1.0)] * count
    return [(float(roi[i]), float(roi[count + i])) for i in range(count)]


def _given(view: NodeView) -> tuple[Array | None, list[Dim] | None]:
    """The scales and the sizes as far as they are known; one of them is given."""
    scales = view.const(2)
    sizes = view.dim_list(3)
    return (scales if scales is not None and scales.size else None), (sizes or None)


def axes_of(view: NodeView, outs: Sequence[Dim] | None = None) -> list[Axis] | None:
    """What happens to each axis; None if it cannot be told before sizes or data are known.

    `outs` are output sizes, where they are known already.
    Raises: ShapeError if the inputs do not fit the shape.
    """
    shape = view.shape(0)
    numbers = _numbers(view)
    scales, sizes = _given(view)
    given = scales if scales is not None else sizes
    if given is None:
        return None
    if len(given) != len(numbers):
        raise ShapeError(f"{view.describe()}: {len(given)} factors or sizes, {len(numbers)} axes")
    extents = [shape[a] for a in numbers]
    changed: Sequence[Axis] | None
    if scales is not None:
        changed = _scaled(view, extents, scales, outs and [outs[a] for a in numbers])
    else:
        changed = _sized(view, extents, sizes or [])
    if changed is None:
        return None
    found = [Axis(n, n, width=(n, 1)) for n in shape]
    for number, axis, roi in zip(numbers, changed, _roi(view, len(numbers)), strict=True):
        if axis.size == 0 and axis.out != 0:
            raise ShapeError(f"{view.describe()}: an empty axis cannot be resized")
        found[number] = replace(axis, roi=roi)
    return found


def _scaled(
    view: NodeView, extents: Sequence[Dim], scales: Array, outs: Sequence[Dim] | None
) -> list[Axis] | None:
    found = []
    for number, (n, scale) in enumerate(zip(extents, scales, strict=True)):
        value = float(scale)
        if not value > 0:
            raise ShapeError(f"{view.describe()}: scale {value} is not positive")
        exact = exact_scale(value)
        if exact is not None:
            found.append(_by_fraction(n, exact))
        elif outs is not None or isinstance(n, int):
            out = outs[number] if outs is not None else int(Fraction(value) * int(n))  # type: ignore[arg-type]
            found.append(Axis(n, out, None, None, value, (0, 1)))
        else:
            return None
    return found


def _by_fraction(n: Dim, scale: Fraction) -> Axis:
    p, q = scale.numerator, scale.denominator
    return Axis(n, floordiv(n * p, q), p, q, float(scale), (n * p, q))


def _sized(view: NodeView, extents: Sequence[Dim], sizes: Sequence[Dim]) -> list[Axis] | None:
    policy = view.attr("keep_aspect_ratio_policy", "stretch")
    if policy not in ("stretch", "not_larger", "not_smaller"):
        raise ShapeError(f"{view.describe()}: keep_aspect_ratio_policy {policy!r} is unknown")
    if policy == "stretch":
        return [_stretched(n, out) for n, out in zip(extents, sizes, strict=True)]
    if not is_static(extents) or not is_static(sizes):
        return None
    ratios = [Fraction(int(s), int(n)) for s, n in zip(sizes, extents, strict=True) if n]  # type: ignore[arg-type]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    axes = [_by_fraction(n, scale) for n in extents]
    p, q = 2 * scale.numerator, 2 * scale.denominator
    return [replace(a, out=floordiv(a.size * p + scale.denominator, q)) for a in axes]


def _stretched(n: Dim, out: Dim) -> Axis:
    p, q = out, n
    if n != 0 and mod(out, n) == 0:
        p, q = floordiv(out, n), 1
    return Axis(n, out, p, q, 1.0, (out, 1))


def _infer(view: InferView) -> list[TensorType]:
    mode, coordinates = view.attr("mode", "nearest"), _coordinates(view)
    if mode not in MODES or coordinates not in COORDINATES:
        raise ShapeError(f"{view.describe()}: mode {mode!r} or {coordinates!r} is unknown")
    if coordinates == "tf_crop_and_resize" and view.has(1) and view.shape(1) != (0,):
        view.require(alike(view, view.shape(1), (2 * len(_numbers(view)),)))
    axes = axes_of(view)
    if axes is not None:
        return [TensorType(view.dtype(0), tuple(a.out for a in axes))]
    if any(given is not None for given in _given(view)):
        return [TensorType(view.dtype(0))]
    shape = list(view.shape(0))
    for number in _numbers(view):
        shape[number] = view.fresh(f"resized{number}")
    return [TensorType(view.dtype(0), tuple(shape))]


def _coordinates(view: NodeView) -> str:
    return str(view.attr("coordinate_transformation_mode", "half_pixel"))


def _is_resized(axis: Axis, coordinates: str) -> bool:
    return not axis.kept or (coordinates == "tf_crop_and_resize" and axis.roi != (0.0, 1.0))


def _assumed(axes: Sequence[Axis], mode: str, coordinates: str) -> tuple[list[Axis], list[Guard]]:
    """The axes, the outer ones kept as they are under guards where too many could be resized.

    Models give all sizes, those of batch and channels too; only sizes can turn out equal.
    """
    found, guards = list(axes), []
    for number, axis in enumerate(axes):
        if sum(_is_resized(a, coordinates) for a in found) <= MOST.get(mode, len(axes)):
            break
        guard = equal(axis.size, axis.out)
        if guard.known is None and axis.p == axis.out and axis.roi == (0.0, 1.0):
            found[number] = Axis(axis.size, axis.size)
            guards.append(guard)
    return found, guards


def _exact_guard(axis: Axis, coordinates: str) -> Guard | None:
    """That coordinates times denominators fit 32 bits."""
    if coordinates == "tf_crop_and_resize" or axis.p is None or axis.q is None:
        return None
    value = axis.out * axis.q
    if coordinates == "align_corners":
        value = axis.out * axis.size * axis.width[1]
    return at_least(1 << 29, value, f"{value} <= 2**29")


def _supports(view: NodeView) -> Support:
    mode, coordinates = view.attr("mode", "nearest"), _coordinates(view)
    if int(view.attr("antialias", 0)):
        return no("its kernel has no antialiasing")
    if mode != "nearest" and not view.dtype(0).is_float:
        return no(f"interpolation takes floats, not {view.dtype(0).name}")
    if coordinates == "tf_crop_and_resize":
        if not view.dtype(0).is_float:
            return no(f"tf_crop_and_resize takes floats, not {view.dtype(0).name}")
        if view.has(1) and view.const(1) is None:
            return no("its region of interest is not a constant")
    axes = axes_of(view, view.out().shape)
    if axes is None:
        return no("its scales or sizes are not known when planning")
    axes, guards = _assumed(axes, mode, coordinates)
    resized = [a for a in axes if _is_resized(a, coordinates)]
    if len(resized) > MOST.get(mode, len(axes)):
        return no(f"its kernel interpolates {MOST[mode]} axes, not {len(resized)}")
    guards += [g for a in resized if (g := _exact_guard(a, coordinates)) is not None]
    if any(g.known is False for g in guards):
        return no("its axes are too long for exact coordinates in 32 bits")
    open_guards = [g for g in guards if g.known is None]
    return yes_if(*open_guards) if open_guards else YES


def _merged(axes: Sequence[Axis], coordinates: str) -> list[tuple[Axis, bool]]:
    """Axes with whether they are resized; neighbours that keep their size become one."""
    found: list[tuple[Axis, bool]] = []
    for axis in axes:
        resized = _is_resized(axis, coordinates)
        if not resized and found and not found[-1][1]:
            n = found[-1][0].size * axis.size
            found[-1] = (Axis(n, n), False)
        elif resized or axis.size != 1:
            found.append((axis, resized))
    return found or [(Axis(1, 1), False)]


def _lower(view: Lowering) -> list[Stage]:
    coordinates = _coordinates(view)
    mode = str(view.attr("mode", "nearest"))
    known = axes_of(view, view.out().shape) or []
    axes = _merged(_assumed(known, mode, coordinates)[0], coordinates)
    crop = coordinates == "tf_crop_and_resize"
    samplers = [
        Sampler(number, resized, crop or axis.p is None)
        for number, (axis, resized) in enumerate(axes)
    ]
    sampling = Sampling(
        tuple(samplers),
        mode,
        coordinates,
        str(view.attr("nearest_mode", "round_prefer_floor")),
        bool(view.attr("exclude_outside", 0)),
    )
    out = [a.out for a, _ in axes]
    tiles_w = ceildiv(out[-1], 4)
    tiles = product(out[:-1]) * tiles_w
    params: dict[str, Dim | float] = {"tiles": tiles, "tiles_w": tiles_w, "out_w": out[-1]}
    words = _words(axes)
    words["extrapolation"] = float(view.attr("extrapolation_value", 0.0))
    words["cubic_a"] = float(view.attr("cubic_coeff_a", -0.75))
    calls = []
    for wide in (True, False):
        text = sampling.text(wide)
        fields = [n for n in words if f"params.{n}" in text["FUNCTIONS"] + text["BODY"]]
        kinds = tuple((n, "f32" if isinstance(words[n], float) else "u32") for n in fields)
        calls.append(
            KernelCall(
                "resize",
                {"x": view.node.inputs[0], "y": view.node.outputs[0]},
                {**params, **{n: words[n] for n in fields}},
                linear(tiles),
                flags=frozenset({"CUBIC"}) if sampling.mode == "cubic" else frozenset(),
                text=text,
                extra_params=kinds,
                when=(divisible(out[-1], 4),) if wide else (),
            )
        )
    return [choose(calls)]


def _words(axes: Sequence[tuple[Axis, bool]]) -> dict[str, Dim | float]:
    """Every parameter that generated text may read, by name."""
    words: dict[str, Dim | float] = {}
    strides = row_major([a.size for a, _ in axes])
    for number, (axis, _) in enumerate(axes):
        words[f"in{number}"] = axis.size
        words[f"out{number}"] = axis.out
        words[f"stride{number}"] = strides[number]
        words[f"p{number}"] = axis.p if axis.p is not None else 1
        words[f"q{number}"] = axis.q if axis.q is not None else 1
        words[f"width{number}"], words[f"parts{number}"] = axis.width
        words[f"scale{number}"] = float(axis.scale)
        words[f"from{number}"], words[f"to{number}"] = axis.roi
    return words


def _flops(view: NodeView) -> Dim:
    taps = {"nearest": 0, "linear": 4, "cubic": 16}[str(view.attr("mode", "nearest"))]
    return product(view.out_shape()) * (2 * taps + 8)


def _taps(view: NodeView) -> int:
    """Elements that one of the output is made of."""
    along = {"nearest": 1, "linear": 2, "cubic": 4}[str(view.attr("mode", "nearest"))]
    axes = zip(in_shape(view, 0), out_shape(view), strict=True)
    return prod(along for before, after in axes if before != after)


def _cpu(view: NodeView) -> CpuWork:
    """One axis after the other: rows are gathered, and weighed where it interpolates."""
    before, after = in_shape(view, 0), out_shape(view)
    taps = {"nearest": 1, "linear": 2, "cubic": 4}[str(view.attr("mode", "nearest"))]
    found, shape = CpuWork(6), list(before)
    resized = [a for a, (n, m) in enumerate(zip(before, after, strict=True)) if n != m]
    for axis in sorted(resized, key=lambda a: after[a] / max(before[a], 1)):
        shape[axis] = after[axis]
        count, last = prod(shape), axis == len(shape) - 1
        found += CpuWork(14, strided=taps * count if last else 0, passes=(8 * taps * count,))
        if taps > 1:
            found += CpuWork(16 + 4 * taps, passes=(20 * count,) * taps)
    return found


def _agree(view: NodeView) -> Iterator[Guard]:
    """Nothing can be taken from an empty axis."""
    for dim, out in zip(view.shape(0), view.out_shape(), strict=True):
        if dim != out:
            yield at_least(dim, 1)


register(
    OpDef(
        "Resize",
        since=11,
        infer=_infer,
        agree=_agree,
        supports=_supports,
        limits="antialiasing; interpolation of other types than float32, linear along more than "
        "three axes, cubic along more than two; scales not known when planning",
        lower=_lower,
        dtypes=ALL,
        shape_inputs=(1, 2, 3),
        loads=per_output(_taps),
        epilogue=True,
        flops=_flops,
        tolerance=1e-5,
        cpu=_cpu,
    )
)
