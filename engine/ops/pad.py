"""Borders: Pad."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.dims import Dim, Guard, at_least, dmax, equal, product
from engine.errors import ShapeError
from engine.indexing import row_major
from engine.ir import Array, TensorType, ValueType
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
    object_array,
    register,
    yes_if,
)
from engine.ops._fit import alike
from engine.ops._loads import times
from engine.ops._work import out_nbytes
from engine.ops.shape import as_content, content, fresh_dims
from engine.records import dataclass
from engine.work import CpuWork


def pad_amounts(view: NodeView, rank: int) -> list[tuple[Dim, Dim]] | None:
    """(before, after) of each axis of a Pad; None where data decide."""
    pads = view.dim_list(1)
    axes = list(range(rank)) if not view.has(3) else view.ints(3)
    if pads is None or axes is None:
        return None
    if len(pads) != 2 * len(axes):
        raise ShapeError(f"{view.describe()}: {len(pads)} pads for {len(axes)} axes")
    amounts: list[tuple[Dim, Dim]] = [(0, 0)] * rank
    for k, axis in enumerate(view.normal_axes(axes, rank)):
        amounts[axis] = (pads[k], pads[k + len(axes)])
    return amounts


def _infer_pad(view: InferView) -> list[ValueType]:
    x = view.type(0)
    if x.shape is None:
        return [x]
    amounts = pad_amounts(view, len(x.shape))
    if amounts is None:
        return [TensorType(x.dtype, fresh_dims(view, "pad", len(x.shape)))]
    dims = tuple(d + a + b for d, (a, b) in zip(x.shape, amounts, strict=True))
    if any(isinstance(d, int) and d < 0 for d in dims):
        raise ShapeError(f"{view.describe()}: pads leave sizes {list(dims)}")
    return [TensorType(x.dtype, dims)]


def _pad_mode(view: NodeView) -> str:
    return str(view.attr("mode", "constant"))


def _evaluate_pad(view: NodeView) -> list[Array | None] | None:
    x = content(view, 0)
    amounts = None if x is None else pad_amounts(view, x.ndim)
    value = content(view, 2) if view.has(2) else object_array(0)
    if x is None or amounts is None or value is None or _pad_mode(view) != "constant":
        return None
    sizes = [int(d) for pair in amounts for d in pair if isinstance(d, int) and d >= 0]
    if len(sizes) < 2 * x.ndim:
        return None
    pairs = list(zip(sizes[::2], sizes[1::2], strict=True))
    shape = [d + before + after for d, (before, after) in zip(x.shape, pairs, strict=True)]
    padded = np.full(shape, value.reshape(-1)[0], dtype=object)
    padded[tuple(slice(p[0], p[0] + d) for d, p in zip(x.shape, pairs, strict=True))] = x
    return [as_content(padded)]


@dataclass(frozen=True)
class PadAxis:
    """One axis of a Pad: sizes in y and x, stride in x, and what is added or cut on each side."""

    out: Dim
    size: Dim
    stride: Dim
    before: Dim
    after: Dim

    @property
    def plain(self) -> bool:
        return self.before == 0 and self.after == 0


def pad_axes(view: NodeView) -> list[PadAxis]:
    """The axes of a Pad, neighbours that are not padded joined."""
    shape, out = view.shape(0), view.out_shape()
    amounts = pad_amounts(view, len(shape)) or []
    axes: list[PadAxis] = []
    for o, d, s, (a, b) in zip(out, shape, row_major(shape), amounts, strict=True):
        axis = PadAxis(o, d, s, a, b)
        if axis.plain and axes and axes[-1].plain:
            axes[-1] = PadAxis(axes[-1].out * o, axes[-1].size * d, s, 0, 0)
        else:
            axes.append(axis)
    return axes


_FOLD = {
    "edge": ("let c{k} = clamp(p{k}, 0, n{k} - 1);",),
    "wrap": ("let c{k} = ((p{k} % n{k}) + n{k}) % n{k};",),
    "reflect": (
        "let period{k} = max(2 * (n{k} - 1), 1);",
        "let m{k} = ((p{k} % period{k}) + period{k}) % period{k};",
        "let c{k} = min(m{k}, period{k} - m{k});",
    ),
}


def _pad_lines(axes: Sequence[PadAxis], mode: str) -> tuple[list[str], dict[str, tuple[str, Dim]]]:
    """The body of pad.wgsl, and the words it reads: name to kind and dim."""
    lines: list[str] = []
    words: dict[str, tuple[str, Dim]] = {}

    def word(name: str, dim: Dim, kind: str = "u32") -> str:
        words[name] = (kind, dim)
        return f"params.{name}"

    for k in reversed(range(len(axes))):
        axis = axes[k]
        out, stride = word(f"out{k}", axis.out), word(f"stride{k}", axis.stride)
        lines += [f"let o{k} = rest % {out};", f"rest = rest / {out};"]
        if axis.plain:
            lines.append(f"index += o{k} * {stride};")
        elif mode == "constant":
            lines.append(f"let c{k} = o{k} - {word(f'before{k}', axis.before)};")
            lines.append(f"inside = inside && c{k} < {word(f'size{k}', axis.size)};")
            lines.append(f"index += c{k} * {stride};")
        else:
            cut = dmax(0 - axis.before, 0)
            left = axis.size - cut - dmax(0 - axis.after, 0)
            lines.append(f"let n{k} = {word(f'size{k}', left, 'i32')};")
            before = word(f"before{k}", dmax(axis.before, 0), "i32")
            lines.append(f"let p{k} = i32(o{k}) - {before};")
            lines += [line.format(k=k) for line in _FOLD[mode]]
            lines.append(f"index += (u32(c{k}) + {word(f'cut{k}', cut)}) * {stride};")
    return lines, words


def _lower_pad(view: Lowering) -> Sequence[Stage]:
    lines, words = _pad_lines(pad_axes(view), _pad_mode(view))
    size = product(view.out_shape())
    tensors = {"x": view.node.inputs[0], "y": view.node.outputs[0]}
    value = view.has(2) and _pad_mode(view) == "constant"
    if value:
        tensors["constant_value"] = view.node.inputs[2]
    call = KernelCall(
        "pad",
        tensors,
        {"size": size} | {name: dim for name, (_, dim) in words.items()},
        linear(size),
        flags=frozenset({"VALUE"} if value else ()),
        text={
            "BORDER": "load_constant_value(0u)" if value else f"{view.dtype(0).wgsl}()",
            "BODY": "\n".join(f"    {line}" for line in lines),
        },
        extra_params=tuple((name, kind) for name, (kind, _) in words.items()),
    )
    return [(call,)]


def least_size(mode: str, before: Dim, after: Dim) -> Dim:
    """How long an axis has to be at least to be padded without repeating an element twice."""
    far = dmax(before, after)
    return dmax({"edge": 1, "reflect": far + 1, "wrap": far}[mode], 1)


def _supports_pad(view: NodeView) -> Support:
    """Only a constant can fill the border of an axis without elements.

    Where convolutions read it, which may do it themselves, an axis of open size is to be as long as
    they need it: calls with shorter ones get another plan.
    """
    mode = _pad_mode(view)
    if mode == "constant":
        return YES
    if mode not in _FOLD:
        return no(f"the mode {mode!r} is unknown")
    readers = view.graph.consumers.get(view.node.key, ())
    by_convs = bool(readers) and all(r.op_type == "Conv" for r in readers)
    guards = []
    for axis in pad_axes(view):
        left = axis.size - dmax(0 - axis.before, 0) - dmax(0 - axis.after, 0)
        least = least_size(mode, axis.before, axis.after)
        if not axis.plain and by_convs and not isinstance(left, int) and least != 1:
            guards.append(at_least(left, least, f"an axis is longer than what Pad adds, {mode}"))
        elif not axis.plain:
            guards.append(at_least(left, 1, "an axis that Pad repeats has elements"))
    if any(g.known is False for g in guards):
        return no("an axis to be padded by its own elements has none")
    return yes_if(*(g for g in guards if g.known is None))


def _cpu(view: NodeView) -> CpuWork:
    calls = 6 if view.attr("mode", "constant") == "constant" else 30
    return CpuWork(calls, passes=(3 * out_nbytes(view),))


def _infer_crop(view: InferView) -> list[ValueType]:
    """The type of a CenterCropPad: the sizes of some axes are the content of its second input."""
    x = view.shape(0)
    axes = view.normal_axes(view.attr("axes", range(len(x))), len(x))
    view.require(alike(view, view.shape(1), (len(axes),)))
    sizes: list[Dim] | None = view.dim_list(1)
    if sizes is None:
        sizes = list(fresh_dims(view, "cropped", len(axes)))
    shape = list(x)
    for axis, size in zip(axes, sizes, strict=True):
        view.require([at_least(size, 0, f"the size {size} is not negative")])
        shape[axis] = size
    return [TensorType(view.dtype(0), tuple(shape))]


# it is run as its function body, in Pad and Slice
register(OpDef("CenterCropPad", 18, infer=_infer_crop))


def _agree(view: NodeView) -> Iterator[Guard]:
    if view.has(2):
        yield equal(product(view.shape(2)), 1, f"{view.describe()} pads with one value")


register(
    OpDef(
        "Pad",
        11,
        infer=_infer_pad,
        agree=_agree,
        evaluate=_evaluate_pad,
        lower=_lower_pad,
        supports=_supports_pad,
        limits="an empty axis padded by its own elements",
        dtypes=ALL,
        shape_inputs=(1, 3),
        loads=times(1),
        epilogue=True,
        tolerance=0.0,
        cpu=_cpu,
    )
)
