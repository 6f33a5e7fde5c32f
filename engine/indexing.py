"""Index maps: from the flat index of one tensor to that of another, as generated WGSL.

A map is a list of axes (size, stride): the flat row-major index over the sizes is unravelled, and
each coordinate multiplied by its stride. Broadcasting is a stride of 0, transposing an order of
strides, slicing a stride and an offset. Sizes and strides are words of Params, so one text serves
every shape of a rank; neighbouring axes that are provably one are merged first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.dims import Dim, at_least, evaluate, is_equal, mod, product
from engine.ir import Array
from engine.records import dataclass


@dataclass(frozen=True)
class IndexMap:
    """A generated function `fn <name>(i: u32) -> u32` and the Params words that it reads.

    Attributes:
        identity: the function would return i itself; no text is needed.
        constant: every index maps to the offset (all strides 0); text returns it.
    """

    name: str
    text: str
    params: tuple[tuple[str, Dim], ...]
    identity: bool = False
    constant: bool = False

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """(name, kind) of the words, as `KernelCall.extra_params` wants them."""
        return tuple((name, "u32") for name, _ in self.params)


@dataclass(frozen=True)
class Place:
    """Where the elements of a part lie in its whole: element i at `begin` + i, and a `gap` further
    on after each `row` elements, for every run (row, gap)."""

    begin: Dim = 0
    runs: tuple[tuple[Dim, Dim], ...] = ()

    def within(self, other: Place) -> Place | None:
        """The place of a part of a part, which `other` is the place of; None if it is no `Place`.

        With j the place in the middle part, j // row has to be a sum of such terms in i. It is
        where rows of both end together, or one's rows are made of whole rows of the other: those
        of its own begin so early in the first that none goes on in the next.
        """
        begin, runs = self.begin + other.begin, dict(self.runs)
        if any(row == 0 for row, _ in (*self.runs, *other.runs)):
            return Place(begin)  # nothing lies there
        for row, gap in other.runs:
            if not self.runs and mod(self.begin, row) == 0:
                begin = begin + self.begin // row * gap
                runs[row] = runs.get(row, 0) + gap
                continue
            if len(self.runs) != 1:
                return None
            inner, own = self.runs[0]
            pitch = inner + own
            early = self.begin == 0 or bool(at_least(own, self.begin).known)
            passed = 0 if early else self.begin // row
            if mod(row, pitch) == 0 and (early or at_least(own, self.begin - passed * row).known):
                begin = begin + passed * gap
                key = row // pitch * inner
                runs[key] = runs.get(key, 0) + gap
            elif all(mod(d, row) == 0 for d in (self.begin, inner, pitch)):
                begin = begin + self.begin // row * gap
                runs[row] = runs.get(row, 0) + gap
                runs[inner] = runs.get(inner, 0) + (pitch - inner) // row * gap
            else:
                return None
        return Place(begin, tuple(runs.items()))

    def indices(self, size: int, binding: Mapping[str, int]) -> Array:
        """Where the `size` elements lie, in order."""
        i = np.arange(size)
        found = i + evaluate(self.begin, binding)
        for row, gap in self.runs:
            found += i // max(evaluate(row, binding), 1) * evaluate(gap, binding)
        return found


def cut_place(shape: Sequence[Dim], axis: int, start: Dim, count: Dim) -> Place:
    """The place of `count` indices along `axis`, from `start` on, in a value of `shape`."""
    inner, outer = product(shape[axis + 1 :]), product(shape[:axis])
    row, gap = count * inner, (shape[axis] - count) * inner
    return Place(start * inner, ((row, gap),) if outer != 1 and gap != 0 else ())


def row_major(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """Strides in elements of a contiguous tensor: (12, 4, 1) for [2, 3, 4]."""
    return tuple(product(shape[axis + 1 :]) for axis in range(len(shape)))


def broadcast_strides(shape: Sequence[Dim], onto: Sequence[Dim]) -> tuple[Dim, ...]:
    """Strides that read a tensor of `shape` as one of shape `onto`: 0 where its dim is 1.

    First axes of size 1 may be more than `onto` has: a scale of shape [1] fits a scalar.
    """
    shape = shape[max(len(shape) - len(onto), 0) :]
    strides = row_major(shape)
    lead = len(onto) - len(shape)
    return (0,) * lead + tuple(
        s * (1 - is_equal(d, 1)) if d != target else s
        for d, s, target in zip(shape, strides, onto[lead:], strict=True)
    )


def is_by_plane(strides: Sequence[Dim]) -> bool:
    """Whether a walk over [N, channels, ...] stays where it is within a channel of an image."""
    return len(strides) > 2 and all(s == 0 for s in strides[2:])


def axes_of_plane(sizes: Sequence[Dim], strides: Sequence[Dim], channels: bool) -> slice:
    """The axes of a walk `is_by_plane` that tell where it is: batch and channels, or only the
    latter if all images are alike, where `channels` are known and the plane would be divided.

    Otherwise the plane is as good: what the channel tells is the same for a wave, and of such
    values a GPU's multiply-add takes one.
    """
    both = slice(0, 2)
    divides = channels and index_map("at", sizes[both], strides[both]).params
    return slice(1, 2) if divides and strides[0] == 0 else both


def merge_axes(
    sizes: Sequence[Dim], strides: Sequence[Dim]
) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """Sizes and strides with axes of size 1 dropped and neighbours joined where provable."""
    out: list[tuple[Dim, Dim]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if size == 1:
            continue
        if out and out[-1][1] == stride * size:
            out[-1] = (out[-1][0] * size, stride)
        else:
            out.append((size, stride))
    return tuple(a for a, _ in out), tuple(b for _, b in out)


def index_map(
    name: str,
    sizes: Sequence[Dim],
    strides: Sequence[Dim],
    offset: Dim = 0,
    any_strides: bool = False,
) -> IndexMap:
    """The map over row-major `sizes` to `offset + sum(coordinate * stride)`.

    Strides may be negative: indices wrap in u32 and come out right. All in elements. With
    `any_strides` the text is the same for all of them: only axes of size 1 are left out.
    """
    if any_strides:
        axes = [axis for axis, size in enumerate(sizes) if size != 1]
        sizes, strides = [sizes[a] for a in axes], [strides[a] for a in axes]
    else:
        sizes, strides = merge_axes(sizes, strides)
    if not sizes or all(s == 0 for s in strides):
        params = ((f"{name}_offset", offset),) if offset != 0 else ()
        value = f"params.{name}_offset" if params else "0u"
        return IndexMap(name, _function(name, [f"return {value};"]), params, constant=True)
    if len(sizes) == 1 and strides[0] == 1 and offset == 0:
        return IndexMap(name, _function(name, ["return i;"]), (), identity=True)
    params_list: list[tuple[str, Dim]] = []
    lines: list[str] = []
    terms = []
    for axis in reversed(range(len(sizes))):
        coordinate = "i" if len(sizes) == 1 else "rest"
        if axis > 0:
            size = f"{name}_size{axis}"
            params_list.append((size, sizes[axis]))
            if strides[axis] != 0:
                lines.append(f"let c{axis} = rest % params.{size};")
                coordinate = f"c{axis}"
            if any(strides[outer] != 0 for outer in range(axis)):
                lines.append(f"rest = rest / params.{size};")
        if strides[axis] == 0:
            continue
        if strides[axis] == 1 and not any_strides:
            terms.append(coordinate)
        else:
            stride = f"{name}_stride{axis}"
            params_list.append((stride, strides[axis]))
            terms.append(f"{coordinate} * params.{stride}")
    if offset != 0:
        params_list.append((f"{name}_offset", offset))
        terms.append(f"params.{name}_offset")
    lines.append(f"return {' + '.join(reversed(terms))};")
    if any("rest" in line for line in lines):
        declare = "var" if any(line.startswith("rest =") for line in lines) else "let"
        lines.insert(0, f"{declare} rest = i;")
    text = _function(name, lines)
    used = tuple((n, d) for n, d in params_list if f"params.{n}" in text)
    return IndexMap(name, text, used)


def _function(name: str, lines: Sequence[str]) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"fn {name}(i: u32) -> u32 {{\n{body}\n}}\n"
