"""Sizes of operands that must agree: a kernel would read past a buffer, or elsewhere, unasked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engine import dims
from engine.dims import Dim, Guard
from engine.errors import ShapeError
from engine.ir import Shape
from engine.ops import InferView, NodeView, lookup
from engine.ops._fit import alike, same
from engine.ops._index_ranges import index_ranges
from engine.ops._recurrence import recurrence
from engine.ops.attention import MASK, PAST_KEY, PAST_VALUE, VALID, K, Q, V, heads_of

Rule = Callable[[NodeView], Iterator[Guard]]


def agreements(view: NodeView, elementwise: bool) -> Iterator[Guard]:
    """What must hold of symbolic sizes so that the operands of a node fit each other.

    NumPy checks that in each call. Kernels don't, and shape inference only does for numbers.
    """
    yield from _not_negative(view)
    if view.node.domain:
        return
    rule = _broadcast if elementwise else _RULES.get(view.node.op_type)
    if rule is not None:
        yield from rule(view)
    yield from _indices(view)


def requirements(view: InferView) -> None:
    """Gives `view` the guards on operands of an operator that others do the work of.

    Raises: ShapeError for what can't hold.
    """
    op = lookup(view.node.op_type, view.node.since_version, view.node.domain)
    if op is not None and op.infer is not None:
        op.infer(view)
    rule = _RULES.get(view.node.op_type)
    if rule is not None:
        view.require(rule(view))


def _not_negative(view: NodeView) -> Iterator[Guard]:
    """Windows and cropping leave nothing where sizes are too small; less than that is an error."""
    for name in view.node.writes:
        tensor = view.graph.tensor(name)
        for dim in (tensor.shape or ()) if tensor is not None else ():
            lowest = dims.bounds(dim)[0]
            if lowest is None or lowest < 0:
                yield dims.at_least(dim, 0, f"{dim} >= 0, a size that {view.describe()} gives")


def _fits(view: NodeView, shape: Shape, onto: Shape) -> Iterator[Guard]:
    """An operand of `shape` broadcasts to `onto`: each size is the same, or 1.

    Raises: ShapeError if it has more axes.
    """
    if len(shape) > len(onto):
        raise ShapeError(f"{view.describe()}: {shape} has more axes than {onto}")
    for dim, out in zip(shape[::-1], onto[::-1], strict=False):
        if dim not in (out, 1):
            why = f"sizes {dim} and {out} broadcast in {view.describe()}"
            yield Guard("zero", (dim - out) * (dim - 1), why)


def _broadcast(view: NodeView) -> Iterator[Guard]:
    onto = view.out_shape()
    for index, name in enumerate(view.node.inputs):
        if name:
            yield from _fits(view, view.shape(index), onto)


def _matmul(view: NodeView) -> Iterator[Guard]:
    a, b, out = view.shape(0), view.shape(1), view.out_shape()
    yield from same(view, a[-1], b[-2] if len(b) > 1 else b[0])
    batch = out[: max(len(a), len(b)) - 2]
    yield from _fits(view, a[:-2], batch)
    yield from _fits(view, b[:-2], batch)


def _gemm(view: NodeView) -> Iterator[Guard]:
    a, b = view.shape(0), view.shape(1)
    inner = (a[0] if view.attr("transA", 0) else a[1], b[1] if view.attr("transB", 0) else b[0])
    yield from same(view, *inner)
    if view.has(2):
        yield from _fits(view, view.shape(2), view.out_shape())


def _concat(view: NodeView) -> Iterator[Guard]:
    first = view.shape(0)
    axis = view.axis(len(first))
    for index in range(1, len(view.node.inputs)):
        for place, (a, b) in enumerate(zip(first, view.shape(index), strict=True)):
            if place != axis:
                yield from same(view, a, b)


def _grouped(view: NodeView, x: Shape, w: Shape) -> Iterator[Guard]:
    """Each group of output channels takes its share of the input's."""
    group = int(view.attr("group", 1))
    yield from same(view, x[1], w[1] * group)
    yield dims.divisible(w[0], group, f"{group} divides {w[0]} in {view.describe()}")


def _conv_integer(view: NodeView) -> Iterator[Guard]:
    yield from _grouped(view, view.shape(0), view.shape(1))


def _conv_quantised(view: NodeView) -> Iterator[Guard]:
    yield from _grouped(view, view.shape(0), view.shape(3))
    if view.has(8):
        yield from same(view, view.shape(8)[0], view.shape(3)[0])


def _conv(view: NodeView) -> Iterator[Guard]:
    yield from _grouped(view, view.shape(0), view.shape(1))
    if view.has(2):
        yield from same(view, view.shape(2)[0], view.out_shape()[1])


def _conv_transpose(view: NodeView) -> Iterator[Guard]:
    x, group = view.shape(0), int(view.attr("group", 1))
    yield from same(view, x[1], view.shape(1)[0])
    yield dims.divisible(x[1], group, f"{group} divides {x[1]} in {view.describe()}")
    if view.has(2):
        yield from same(view, view.shape(2)[0], view.out_shape()[1])


def _expand(view: NodeView) -> Iterator[Guard]:
    for shape in (view.shape(0), tuple(view.dim_list(1) or ())):
        yield from _fits(view, shape, view.out_shape())


def _resize(view: NodeView) -> Iterator[Guard]:
    """Nothing can be taken from an empty axis."""
    for dim, out in zip(view.shape(0), view.out_shape(), strict=True):
        if dim != out:
            yield dims.at_least(dim, 1)


def _split(view: NodeView) -> Iterator[Guard]:
    shape = view.shape(0)
    axis = view.axis(len(shape), default=0)
    parts: Dim = 0
    for index in range(len(view.node.outputs)):
        parts = parts + view.out_shape(index)[axis]
    yield from same(view, shape[axis], parts)


def _blocks(view: NodeView) -> Iterator[Guard]:
    size, shape = int(view.attr("blocksize")), view.shape(0)
    deep = view.node.op_type == "DepthToSpace"
    for dim in shape[1:2] if deep else shape[2:]:
        yield dims.divisible(dim, size * size if deep else size)


def _indices(view: NodeView) -> Iterator[Guard]:
    """Indices that are constant are in their ranges. Raises: ShapeError for one that can't be."""
    place, ranges = index_ranges(view.graph, view.node)
    indices = view.const(place) if ranges else None
    if indices is None or not indices.size:
        return
    rows = indices.reshape(-1, len(ranges))
    for column, (first, end) in enumerate(ranges):
        lowest, highest = int(rows[:, column].min()), int(rows[:, column].max())
        why = f"indices {lowest} to {highest} lie in [{first}, {end}) in {view.describe()}"
        yield dims.at_least(lowest, first, why)
        yield dims.at_least(end, highest + 1, why)


def _coordinates(view: NodeView) -> Iterator[Guard]:
    """The axes of the batch are those of the data."""
    batch = int(view.attr("batch_dims", 0))
    yield from alike(view, view.shape(0)[:batch], view.shape(1)[:batch])


def _gather_elements(view: NodeView) -> Iterator[Guard]:
    shape, indices = view.shape(0), view.shape(1)
    axis = view.axis(len(shape), default=0)
    if len(shape) != len(indices):
        raise ShapeError(f"{view.describe()}: the indices need the rank of the data")
    for place, (size, count) in enumerate(zip(shape, indices, strict=True)):
        if place != axis and size != count:
            yield dims.at_least(size, count)


def _scatter_elements(view: NodeView) -> Iterator[Guard]:
    yield from alike(view, view.shape(1), view.shape(2))
    yield from _gather_elements(view)


def _scatter_nd(view: NodeView) -> Iterator[Guard]:
    data, indices, updates = view.shape(0), view.shape(1), view.shape(2)
    depth = indices[-1]
    if isinstance(depth, int):
        yield from alike(view, (*indices[:-1], *data[depth:]), updates)
    yield from _coordinates(view)


def _attention(view: NodeView) -> Iterator[Guard]:
    """Heads that are multiplied are alike, and a mask is no wider than there are keys."""
    q, k = heads_of(view, Q, "q_num_heads"), heads_of(view, K, "kv_num_heads")
    v, keys = heads_of(view, V, "kv_num_heads"), k.length
    yield from alike(view, (q.batch, q.size), (k.batch, k.size))
    yield from alike(view, (k.batch, k.heads, k.length), (v.batch, v.heads, v.length))
    if isinstance(k.heads, int) and k.heads > 0:
        yield dims.divisible(q.heads, k.heads, f"{k.heads} divides the heads of {view.describe()}")
    if view.has(PAST_KEY):
        past = view.shape(PAST_KEY)[2]
        keys = keys + past
        yield from alike(view, view.shape(PAST_KEY), (k.batch, k.heads, past, k.size))
        yield from alike(view, view.shape(PAST_VALUE), (v.batch, v.heads, past, v.size))
    if view.has(MASK):
        mask = view.shape(MASK)
        yield from _fits(view, mask[:-1], (q.batch, q.heads, q.length))
        why = f"a mask of {mask[-1]} is no wider than {keys} keys in {view.describe()}"
        yield dims.at_least(keys, mask[-1], why)
    if view.has(VALID):
        yield from alike(view, view.shape(VALID), (q.batch,))


def _rotary(view: NodeView) -> Iterator[Guard]:
    """Caches are alike, and positions or rows of caches are given for each entry of the batch."""
    x, cos = heads_of(view, 0, "num_heads"), view.shape(1)
    yield from alike(view, cos, view.shape(2))
    rows = view.shape(3) if view.has(3) else cos[:2]
    yield from alike(view, rows, (x.batch, x.length))


def _recurrent(view: NodeView) -> Iterator[Guard]:
    """Weights, biases, lengths and states have the sizes that input and hidden units imply."""
    found = recurrence(view)
    lead, units = found.directions, found.hidden
    gates = found.cell.gates * units
    sequences = found.sequences
    state = (sequences, lead, units) if found.batch_first else (lead, sequences, units)
    due: tuple[Shape, ...] = (
        (lead, gates, found.inputs),
        (lead, gates, units),
        (lead, 2 * gates),
        (sequences,),
        state,
        state,
        (lead, 3 * units),
    )
    for index, shape in enumerate(due, 1):
        if view.has(index):
            yield from alike(view, view.shape(index), shape)


def _grid_sample(view: NodeView) -> Iterator[Guard]:
    """A grid for each image, a coordinate for each axis, and something to sample."""
    x, grid = view.shape(0), view.shape(1)
    yield from alike(view, (x[0], len(x) - 2), (grid[0], grid[-1]))
    for size in x[2:]:
        yield dims.at_least(size, 1)


def _roi_align(view: NodeView) -> Iterator[Guard]:
    """Four edges and an image for each region, and something to sample."""
    count = view.shape(1)[0]
    for size in (view.shape(0)[0], *view.shape(0)[2:]):
        yield dims.at_least(size, 1)
    yield from alike(view, view.shape(1), (count, 4))
    yield from alike(view, view.shape(2), (count,))


def _reverse_sequence(view: NodeView) -> Iterator[Guard]:
    """A length for each entry."""
    yield from alike(view, view.shape(1), (view.shape(0)[int(view.attr("batch_axis", 1))],))


def _tensor_scatter(view: NodeView) -> Iterator[Guard]:
    """An update is like the cache but in length, and is written at one place for each entry."""
    cache, update = view.shape(0), view.shape(1)
    axis = view.axis(len(cache), -2)
    yield from alike(view, cache, (*update[:axis], cache[axis], *update[axis + 1 :]))
    if view.has(2):
        yield from alike(view, view.shape(2), cache[:1])


def _max_unpool(view: NodeView) -> Iterator[Guard]:
    yield from alike(view, view.shape(0), view.shape(1))


def _normalization(view: NodeView) -> Iterator[Guard]:
    """Scale and bias broadcast to the tensor, and do not make it larger."""
    for index in (1, 2):
        if view.has(index):
            yield from _fits(view, view.shape(index), view.shape(0))


def _per_channel(view: NodeView) -> Iterator[Guard]:
    """One number for each channel, in all inputs but the first."""
    for index in range(1, len(view.node.inputs)):
        yield from alike(view, view.shape(index), view.shape(0)[1:2])


_RULES: dict[str, Rule] = {
    "Attention": _attention,
    "BatchNormalization": _per_channel,
    "Concat": _concat,
    "Conv": _conv,
    "ConvInteger": _conv_integer,
    "ConvTranspose": _conv_transpose,
    "DepthToSpace": _blocks,
    "Expand": _expand,
    "GRU": _recurrent,
    "GatherElements": _gather_elements,
    "GatherND": _coordinates,
    "Gemm": _gemm,
    "GridSample": _grid_sample,
    "GroupNormalization": _per_channel,
    "InstanceNormalization": _per_channel,
    "LSTM": _recurrent,
    "LayerNormalization": _normalization,
    "MatMul": _matmul,
    "MaxUnpool": _max_unpool,
    "QLinearConv": _conv_quantised,
    "RMSNormalization": _normalization,
    "RNN": _recurrent,
    "Resize": _resize,
    "ReverseSequence": _reverse_sequence,
    "RotaryEmbedding": _rotary,
    "RoiAlign": _roi_align,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "SpaceToDepth": _blocks,
    "Split": _split,
    "TensorScatter": _tensor_scatter,
}
