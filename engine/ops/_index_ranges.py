"""Where the indices that operators are given must lie: the host checks it, as kernels can't."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.dims import Dim, product
from engine.ir import Graph, Node, Shape

Range = tuple[Dim, Dim]
"""The lowest index, and the first that is too high."""


def index_ranges(graph: Graph, node: Node) -> tuple[int, tuple[Range, ...]]:
    """Which input of a standard node holds indices, and their ranges; none if it has no such.

    There is one for all of them, or one for each column of the last axis.
    """
    place, rule = _RULES.get(node.op_type, (0, None))
    if rule is None or not node.input(place):
        return 0, ()
    tensors = [graph.tensor(n) if n else None for n in node.inputs]
    shapes = [() if t is None or t.shape is None else t.shape for t in tensors]
    return place, rule(node, shapes) if shapes[0] else ()


def unpooled(node: Node, shape: Shape) -> Shape:
    """What a MaxPool took its input of `shape` from: the indices of MaxUnpool count in it."""
    rank = len(shape) - 2
    kernel = node.attrs["kernel_shape"]
    strides = node.attrs.get("strides") or [1] * rank
    pads = node.attrs.get("pads") or [0] * (2 * rank)
    sizes = [
        (shape[2 + d] - 1) * int(strides[d]) + int(kernel[d]) - int(pads[d]) - int(pads[rank + d])
        for d in range(rank)
    ]
    return (*shape[:2], *sizes)


def _from_either_end(size: Dim) -> Range:
    return -1 * size, size


def _along_axis(node: Node, shapes: list[Shape]) -> tuple[Range, ...]:
    return (_from_either_end(shapes[0][int(node.attrs.get("axis", 0))]),)


def _coordinates(node: Node, shapes: list[Shape]) -> tuple[Range, ...]:
    depth = shapes[1][-1] if shapes[1] else 0
    batch = int(node.attrs.get("batch_dims", 0))
    addressed = shapes[0][batch : batch + depth] if isinstance(depth, int) else ()
    return tuple(map(_from_either_end, addressed))


def _positions(node: Node, shapes: list[Shape]) -> tuple[Range, ...]:
    return (_from_either_end(shapes[1][0]),) if shapes[1] else ()


def _images(node: Node, shapes: list[Shape]) -> tuple[Range, ...]:
    return ((0, shapes[0][0]),)


def _lengths(node: Node, shapes: list[Shape]) -> tuple[Range, ...]:
    return ((0, shapes[0][int(node.attrs.get("time_axis", 0))] + 1),)


def _starts(node: Node, shapes: list[Shape]) -> tuple[Range, ...]:
    """Where an update begins that has to end within the cache, unless it goes round."""
    axis = int(node.attrs.get("axis", -2))
    if node.attrs.get("mode", "linear") != "linear" or not shapes[1]:
        return ()
    return ((0, shapes[0][axis] - shapes[1][axis] + 1),)


def _steps(node: Node, shapes: list[Shape]) -> tuple[Range, ...]:
    return ((0, shapes[0][1 if node.attrs.get("layout", 0) else 0] + 1),)


def _cells(node: Node, shapes: list[Shape]) -> tuple[Range, ...]:
    """All elements of what a MaxPool took its input from."""
    return ((0, product(unpooled(node, shapes[0]))),)


_RULES: Mapping[str, tuple[int, Callable[[Node, list[Shape]], tuple[Range, ...]]]] = {
    "Gather": (1, _along_axis),
    "GatherElements": (1, _along_axis),
    "GatherND": (1, _coordinates),
    "GRU": (4, _steps),
    "LSTM": (4, _steps),
    "MaxUnpool": (1, _cells),
    "RNN": (4, _steps),
    "ReverseSequence": (1, _lengths),
    "RoiAlign": (2, _images),
    "RotaryEmbedding": (3, _positions),
    "ScatterElements": (1, _along_axis),
    "ScatterND": (1, _coordinates),
    "TensorScatter": (2, _starts),
}
"""Which input are the indices, and their ranges by the shapes of all inputs."""
