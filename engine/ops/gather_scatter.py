"""ScatterElements and ScatterND: updates to elements by index.

Without a reduction the last update to a place wins, as on the CPU: unless the indices are constants
that do not repeat a place, a dispatch finds the winners first. With one, each element looks through
all updates that may reach it, in their order, so that results are the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from engine.dims import Dim, Guard, at_least, ceildiv, product
from engine.dtypes import UINT32
from engine.indexing import index_map, row_major
from engine.ir import Array
from engine.ops import (
    ALL,
    YES,
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
from engine.ops._variants import MAX_TRIPS
from engine.ops.gather import (
    agree_coordinates,
    agree_elements,
    index_depth,
    supports_nd,
    tuple_lines,
    word_fields,
)
from engine.ops.layout import copy_stage
from engine.ops.shape import keep_type
from engine.records import dataclass

DATA, INDICES, UPDATES = range(3)


def _reduction(view: NodeView) -> str:
    found = view.attr("reduction", "none")
    return found.decode() if isinstance(found, bytes) else str(found)


def _next(view: NodeView) -> str:
    """The expression of `total` and an update `v`."""
    is_float = view.dtype(DATA).wgsl == "f32"
    extremes = {name: f"{name}(total, v)" for name in ("max", "min")}
    if is_float:
        extremes = {
            "max": "select(total, v, v > total || is_nan(v))",
            "min": "select(total, v, v < total || is_nan(v))",
        }
    return {"add": "total + v", "mul": "total * v", **extremes}[_reduction(view)]


def _is_nd(view: NodeView) -> bool:
    return view.node.op_type == "ScatterND"


def _count(view: NodeView) -> Dim:
    """Updates that may reach one element."""
    picked = view.shape(INDICES)
    return product(picked[:-1]) if _is_nd(view) else picked[view.axis(len(picked))]


def _supports(view: NodeView) -> Support:
    if _is_nd(view) and not supports_nd(view).ok:
        return supports_nd(view)
    if not _is_nd(view) and not view.shape(DATA):
        return no("it has no axis")
    if _reduction(view) == "none":
        return YES
    if _reduction(view) not in ("add", "mul", "max", "min"):
        return no(f"the reduction {_reduction(view)!r} is unknown")
    if view.dtype(DATA).name == "bool":
        return no("its kernel reduces numbers")
    guard = at_least(MAX_TRIPS, _count(view), f"at most {MAX_TRIPS} updates reach an element")
    if guard.known is False:
        return no(f"more than {MAX_TRIPS} updates may reach an element, which are read in turn")
    return YES if guard.known else yes_if(guard)


def _may_repeat(view: NodeView) -> bool:
    """Whether indices may name a place twice (negative ones counted from the front)."""
    shape, indices = view.type(DATA).static_shape, view.const(INDICES)
    if _count(view) in (0, 1):
        return False
    if shape is None or indices is None:
        return True
    if _is_nd(view):
        depth = indices.shape[-1]
        places: Array = (indices % np.maximum(shape[:depth], 1)).reshape(-1, depth)
    else:
        axis = view.axis(len(shape))
        grid = np.moveaxis(np.indices(indices.shape), 0, -1).copy()
        grid[..., axis] = indices % max(shape[axis], 1)
        places = grid.reshape(-1, len(shape))
    return len(np.unique(places, axis=0)) < len(places)


@dataclass(frozen=True)
class _Places:
    """How an update finds its row of y.

    Attributes:
        rows, inner: y as a matrix; one update writes one row.
        items: updates.
        body: WGSL that adds to `place` and clears `inside`, for update `item`.
    """

    rows: Dim
    inner: Dim
    items: Dim
    body: str
    map_text: str
    words: Mapping[str, Dim]


def _places(view: NodeView) -> _Places:
    shape, picked = view.shape(DATA), view.shape(INDICES)
    if _is_nd(view):
        depth = index_depth(view) or 0
        rows, inner = product(shape[:depth]), product(shape[depth:])
        body, words = tuple_lines(
            depth, f"item * {depth}u", "place", shape, row_major(shape[:depth])
        )
        return _Places(rows, inner, product(picked[:-1]), body, "", words)
    axis, strides = view.axis(len(shape)), row_major(shape)
    base = index_map("base", picked, [s * (k != axis) for k, s in enumerate(strides)])
    body, words = tuple_lines(1, "item", "place", [shape[axis]], [strides[axis]])
    body = body.replace("item + 0u", "item") + "\n    place += base(item);"
    words |= dict(base.params)
    return _Places(product(shape), 1, product(picked), body, base.text, words)


def _lower(view: Lowering) -> Sequence[Stage]:
    if _reduction(view) != "none":
        return [(_reduce_call(view),)]
    indices, updates, y = view.node.inputs[INDICES], view.node.inputs[UPDATES], view.node.outputs[0]
    found = _places(view)

    def call(size: Dim, inner: Dim, tensors: Mapping[str, str], *flags: str) -> KernelCall:
        return KernelCall(
            "gather_scatter",
            tensors,
            {"size": size, "inner": inner, **found.words},
            linear(size),
            frozenset(flags),
            {"BODY": found.body, "MAP": found.map_text},
            extra_params=word_fields(found.words),
        )

    stages: list[Stage] = [copy_stage(view, [product(view.shape(DATA))], [1])]
    tensors = {"indices": indices, "updates": updates, "y": y}
    size = found.items * found.inner
    if not _may_repeat(view):
        return [*stages, (call(size, found.inner, tensors),)]
    winners = view.scratch(UINT32, (found.rows,))
    clear = KernelCall(
        "shape_fill",
        {"y": winners},
        {"size": found.rows, "bits": 0},
        linear(ceildiv(found.rows, 4)),
        text={"VALUE": "params.bits"},
    )
    claim = call(found.items, 1, {"indices": indices, "winners": winners}, "CLAIM")
    write = call(size, found.inner, {**tensors, "winners": winners}, "WINNERS")
    return [*stages, (clear,), (claim,), (write,)]


def _reduce_call(view: Lowering) -> KernelCall:
    starts, body, words = (_nd_lines if _is_nd(view) else _element_lines)(view)
    shape, count = view.shape(DATA), _count(view)
    size = product(shape)
    inner = product(shape[index_depth(view) or 0 :]) if _is_nd(view) else 1
    names = ("data", "indices", "updates")
    return KernelCall(
        "gather_reduce",
        {**dict(zip(names, view.node.inputs, strict=True)), "y": view.node.outputs[0]},
        {"size": size, "inner": inner, "count": count, **words},
        linear(size),
        text={"STARTS": starts, "BODY": body, "NEXT": _next(view)},
        extra_params=word_fields(words),
        trips=count,
    )


def _nd_lines(view: NodeView) -> tuple[str, str, dict[str, Dim]]:
    shape, depth = view.shape(DATA), index_depth(view) or 0
    body, words = tuple_lines(depth, f"k * {depth}u", "place", shape, row_major(shape[:depth]))
    starts = "    let fits = true;\n    let row = i / params.inner;"
    lines = [
        "var place = 0u;",
        "var inside = true;",
        *(line.strip() for line in body.splitlines()),
        "let hits = inside && place == row;",
        "let at = k * params.inner + i % params.inner;",
    ]
    return starts, "\n".join(" " * 8 + line for line in lines), words


def _element_lines(view: NodeView) -> tuple[str, str, dict[str, Dim]]:
    shape, picked = view.shape(DATA), view.shape(INDICES)
    axis, steps = view.axis(len(shape)), row_major(picked)
    words: dict[str, Dim] = {"axis_size": shape[axis], "step": steps[axis]}
    starts = ["var fits = true;", "var first = 0u;", "var rest = i;"]
    for d in reversed(range(len(shape))):
        words[f"size{d}"] = shape[d]
        place = "own" if d == axis else f"place{d}"
        starts += [f"let {place} = rest % params.size{d};", f"rest /= params.size{d};"]
        if d != axis:
            words |= {f"picked{d}": picked[d], f"step{d}": steps[d]}
            starts += [
                f"fits = fits && {place} < params.picked{d};",
                f"first += {place} * params.step{d};",
            ]
    lines = [
        "let at = first + k * params.step;",
        "let hits = wrap_index(i32(load_indices(at)), params.axis_size) == own;",
    ]
    text = "\n".join(" " * 4 + line for line in starts)
    return text, "\n".join(" " * 8 + line for line in lines), words


def _flops(view: NodeView) -> Dim:
    if _reduction(view) == "none":
        return product(view.shape(DATA)) + product(view.shape(UPDATES)) * 4
    return product(view.shape(DATA)) * (_count(view) * 6 + 1)


def _launches(view: NodeView) -> Dim:
    if _reduction(view) != "none":
        return 1
    return 4 if _may_repeat(view) else 2


def _agree_elements(view: NodeView) -> Iterator[Guard]:
    yield from alike(view, view.shape(1), view.shape(2))
    yield from agree_elements(view)


def _agree_nd(view: NodeView) -> Iterator[Guard]:
    data, indices, updates = view.shape(0), view.shape(1), view.shape(2)
    depth = indices[-1]
    if isinstance(depth, int):
        yield from alike(view, (*indices[:-1], *data[depth:]), updates)
    yield from agree_coordinates(view)


for _name, _rule in (("ScatterElements", _agree_elements), ("ScatterND", _agree_nd)):
    register(
        OpDef(
            _name,
            11,
            infer=keep_type,
            agree=_rule,
            lower=_lower,
            supports=_supports,
            limits="reductions of more updates to an element than a loop takes; of bool",
            dtypes=ALL,
            scratch=1,
            flops=_flops,
            launches=_launches,
            tolerance=1e-6,
        )
    )
