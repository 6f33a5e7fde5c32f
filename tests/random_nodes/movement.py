"""Operators that cut, join, reshape and index."""

from __future__ import annotations

import numpy as np

from tests.choices import factors
from tests.random_graphs import Array, Candidate, RandomGraph
from tests.random_nodes.makers import axis_of, maker, need


@maker
def concat(g: RandomGraph) -> Candidate:
    a = g.pick("fiub", lambda a: a.ndim > 0)
    first = g.array(a)
    axis = axis_of(g, first.ndim)
    at = axis % first.ndim

    def fits(b: Array) -> bool:
        same = b.dtype == first.dtype and b.ndim == first.ndim
        return same and all(b.shape[i] == first.shape[i] for i in range(b.ndim) if i != at)

    names = [n for n, k in g.known.items() if fits(k.array)]
    chosen = [a, *(g.one_of(names) for _ in range(g.int(0, 3)))]
    if g.chance(0.4):
        shape = tuple(g.size() if i == at else s for i, s in enumerate(first.shape))
        chosen.append(g.new(g.content(str(first.dtype), shape)))
    g.rng.shuffle(chosen)
    return Candidate("Concat", chosen, {"axis": axis})


@maker
def split(g: RandomGraph) -> Candidate:
    x = g.pick("fib", lambda a: a.ndim > 0)
    axis = axis_of(g, g.array(x).ndim)
    size = g.array(x).shape[axis]
    if g.chance(0.5) and size:
        count = g.int(1, min(size, 4))
        return Candidate("Split", [x], {"axis": axis, "num_outputs": count}, outputs=count)
    first = g.int(0, size)
    parts = [first, size - first]
    return Candidate("Split", [x, g.constant(parts)], {"axis": axis}, outputs=2)


@maker
def slicing(g: RandomGraph) -> Candidate:
    x = g.pick("fiub", lambda a: a.ndim > 0)
    rank = g.array(x).ndim
    axes = [int(a) for a in g.rng.permutation(rank)[: g.int(1, rank)]]
    steps = [g.one_of([1, 1, 1, 2, -1, -2, 3]) for _ in axes]
    starts = [g.one_of([0, 1, -1, -2, 2, 100, -100]) for _ in axes]
    ends = [g.one_of([0, 1, 3, -1, 100, 2**31 - 1, -(2**31), 2**63 - 1]) for _ in axes]
    # ONNX Runtime takes the largest integer for "all" going backwards too, the standard does not
    ends = [-(2**31) if s < 0 and e > 100 else e for e, s in zip(ends, steps, strict=True)]
    axes = [a - rank if g.chance(0.3) else a for a in axes]
    return Candidate("Slice", [x, *(g.constant(v) for v in (starts, ends, axes, steps))])


@maker
def pad(g: RandomGraph) -> Candidate:
    x = g.pick("ffi", lambda a: a.ndim > 0)
    array = g.array(x)
    mode = g.one_of(["constant", "constant", "edge", "reflect", "wrap"])
    low = -1 if mode == "constant" else 0
    pads = [g.int(low, 2) for _ in range(2 * array.ndim)]
    for axis, size in enumerate(array.shape):
        most = {"reflect": size - 1, "constant": 9}.get(mode, 9 if size else 0)
        pads[axis] = min(pads[axis], max(most, 0))
        pads[axis + array.ndim] = min(pads[axis + array.ndim], max(most, 0))
        need(size + pads[axis] + pads[axis + array.ndim] >= 0)
    names = [x, g.constant(pads)]
    if mode == "constant" and g.chance(0.5):
        names.append(g.constant(2, str(array.dtype)))
    return Candidate("Pad", names, {"mode": mode})


@maker
def transpose(g: RandomGraph) -> Candidate:
    x = g.pick("fiub")
    perm = [int(p) for p in g.rng.permutation(g.array(x).ndim)]
    return Candidate("Transpose", [x], {"perm": perm} if perm and g.chance(0.8) else {})


@maker
def reshape(g: RandomGraph) -> Candidate:
    x = g.pick("fiub", lambda a: a.size > 0)
    array = g.array(x)
    target = factors(g, array.size, g.int(0, 3))
    if g.chance(0.5):
        target[g.int(0, len(target) - 1)] = -1
    if array.ndim and target[0] == array.shape[0] and g.chance(0.7):
        target[0] = 0
    return Candidate("Reshape", [x, g.constant(target)])


@maker
def dynamic_reshape(g: RandomGraph) -> Candidate:
    """Reshape to what another tensor's shape says: sizes stay symbols."""
    names = [n for n, k in g.known.items() if n.startswith("t") and k.array.dtype == np.int64]
    x = g.pick("f")
    fit = [n for n in names if g.array(n).ndim == 1 and g.array(n).size < 6]
    fit = [n for n in fit if np.prod(g.array(n)) == g.array(x).size and np.all(g.array(n) > 0)]
    need(bool(fit))
    return Candidate("Reshape", [x, g.one_of(fit)])


@maker
def shape_of(g: RandomGraph) -> Candidate:
    if g.chance(0.2):
        return Candidate("Size", [g.pick("fib")])
    attrs = {"start": g.int(-2, 1)} if g.chance(0.3) else {}
    return Candidate("Shape", [g.pick("fib", lambda a: a.ndim > 0)], attrs)


@maker
def expand(g: RandomGraph) -> Candidate:
    x = g.pick("fib")
    shapes = [n for n, k in g.known.items() if k.array.dtype == np.int64 and k.array.ndim == 1]
    shapes = [n for n in shapes if g.array(n).size < 6 and np.all(g.array(n) >= 0)]
    shapes = [n for n in shapes if np.prod(g.array(n)) < 512]
    if shapes and g.chance(0.4):
        return Candidate("Expand", [x, g.one_of(shapes)])
    if g.chance(0.3) and shapes:
        return Candidate("ConstantOfShape", [g.one_of(shapes)])
    shape = [g.int(1, 3) if s == 1 else (1 if g.chance(0.3) else s) for s in g.array(x).shape]
    return Candidate("Expand", [x, g.constant([*([2] if g.chance(0.3) else []), *shape])])


@maker
def views(g: RandomGraph) -> Candidate:
    x = g.pick("fib")
    array = g.array(x)
    if g.chance(0.4):
        ones = [i for i, s in enumerate(array.shape) if s == 1 and g.chance(0.7)]
        need(bool(ones))
        return Candidate("Squeeze", [x, g.constant(ones)])
    if g.chance(0.3):
        return Candidate("Flatten", [x], {"axis": g.int(0, array.ndim)})
    return Candidate("Unsqueeze", [x, g.constant([g.int(-array.ndim - 1, array.ndim)])])


@maker
def tile(g: RandomGraph) -> Candidate:
    x = g.pick("fi", lambda a: 0 < a.ndim and a.size < 200)
    return Candidate(
        "Tile", [x, g.constant([g.int(0 if g.chance(0.1) else 1, 3) for _ in g.array(x).shape])]
    )


@maker
def gather(g: RandomGraph) -> Candidate:
    x = g.pick("fib", lambda a: a.ndim > 0)
    array = g.array(x)
    axis = axis_of(g, array.ndim)
    size = array.shape[axis]
    need(size > 0)
    if g.chance(0.3):
        shape = tuple(g.int(1, s) if s else 0 for s in array.shape)
        indices = g.rng.integers(-size, size, shape)
        return Candidate("GatherElements", [x, g.new(indices)], {"axis": axis})
    dtype = g.one_of(["int64", "int32"])
    indices = g.rng.integers(-size, size, g.shape(g.int(0, 2))).astype(dtype)
    return Candidate("Gather", [x, g.new(np.asarray(indices))], {"axis": axis})


@maker
def gather_nd(g: RandomGraph) -> Candidate:
    x = g.pick("fi", lambda a: a.ndim > 0 and a.size > 0)
    array = g.array(x)
    depth = g.int(1, array.ndim)
    rows = g.shape(g.int(0, 2))
    columns = [g.rng.integers(-s, s, rows) for s in array.shape[:depth]]
    return Candidate("GatherND", [x, g.new(np.stack(columns, axis=-1))])


@maker
def scatter(g: RandomGraph) -> Candidate:
    x = g.pick("f", lambda a: a.ndim > 0 and a.size > 0)
    array = g.array(x)
    if g.chance(0.5):
        rows = g.rng.permutation(array.shape[0])[: g.int(0, array.shape[0])]
        updates = g.content("float32", (len(rows), *array.shape[1:]))
        attrs = {"reduction": g.one_of(["add", "mul", "max"])} if g.chance(0.4) else {}
        return Candidate("ScatterND", [x, g.new(rows[:, None]), g.new(updates)], attrs)
    axis = axis_of(g, array.ndim)
    indices = g.rng.permuted(np.indices(array.shape)[axis], axis=axis)
    updates = g.content("float32", array.shape)
    return Candidate("ScatterElements", [x, g.new(indices), g.new(updates)], {"axis": axis})


@maker
def one_hot(g: RandomGraph) -> Candidate:
    x = g.pick("i", lambda a: a.ndim < 4)
    values = g.constant([0.5, 2], "float32")
    return Candidate("OneHot", [x, g.constant(g.int(1, 6)), values], {"axis": -1})
