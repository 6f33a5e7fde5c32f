"""Prologue: whether an elementwise chain is worth computing where a kernel loads its result.

What is saved is a dispatch, and that the result is written and read. What it costs is that kernels
load an element as often as their tiles overlap (`OpDef.loads`), and compute the chain each time.
Both are times at the rates of a `DeviceProfile`: a GPU has many operations for each byte that it
moves, and software has few.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from engine import costs
from engine.costs import DeviceProfile, SizedView, Sizes
from engine.dims import Dim
from engine.groups import Prologue
from engine.indexing import axes_of_plane, broadcast_strides, index_map, is_by_plane
from engine.ir import Graph, Node
from engine.ops import NodeView, bound_inputs, definition
from engine.target import Target
from engine.work import time_ns

DIVISION_OPS = 20
"""Operations that a division of integers takes, as GPUs have no instruction for it."""


class PrologueCosts:
    """Weighs prologues (`fusion_rules.Weigh`) at the sizes of one binding."""

    def __init__(
        self, graph: Graph, binding: Mapping[str, int], target: Target, profile: DeviceProfile
    ) -> None:
        self.graph = graph
        self.sizes = Sizes(graph, binding)
        self.target = target
        self.profile = profile

    def __call__(self, prologue: Prologue, anchor: Node) -> str:
        """Why `anchor` should not compute what the prologue makes; "" if it should."""
        size, loads = self.sizes.count(prologue.value), self._loads(prologue.value, anchor)
        moved = 2 * self.sizes.gpu_nbytes(prologue.value)
        saved_ns = self.profile.gpu.launch_ns + costs.fused_ns(moved, self.profile)
        added_ns = self.added_ns(prologue, round(loads * size), self._by_plane(anchor))
        if added_ns <= saved_ns:
            return ""
        return (
            f"it loads each element {loads:.3g} times, which would add {added_ns / 1e3:.3g} us "
            f"and save {saved_ns / 1e3:.3g} us"
        )

    def _loads(self, value: str, anchor: Node) -> float:
        op = definition(anchor)
        view = SizedView(self.graph, anchor, self.sizes, self.target)
        rules = op.loads if op is not None else {}
        tensors = {i: self.graph.tensor(anchor.input(i)) for i in rules}
        source = self.graph.tensor(value)
        assert source is not None
        return sum(
            rule(view)
            for i, rule in rules.items()
            if (t := tensors[i]) is not None and t.size == source.size and view.has(i)
        )

    def _by_plane(self, anchor: Node) -> bool:
        op = definition(anchor)
        return op is not None and op.by_plane(
            SizedView(self.graph, anchor, self.sizes, self.target)
        )

    def added_ns(self, prologue: Prologue, count: int, by_plane: bool = False) -> int:
        """What computing a prologue takes at `count` loads of single elements, or of `by_plane`."""
        shape = self.sizes.shape(prologue.value) or ()
        inside = {name for n in prologue.nodes for name in n.writes}
        operations, more, once = 0.0, -1.0, 0.0
        places: dict[tuple[Dim, ...], float] = {}
        for name in {r for n in prologue.nodes for r in bound_inputs(self.graph, n)} - inside:
            source = self.sizes.shape(name) or ()
            if source == shape:
                more += 1
                continue
            each = _share(shape, source)
            once += each
            strides = broadcast_strides(source, shape)
            walk = shape, strides
            if by_plane and is_by_plane(strides):
                axes = axes_of_plane(shape, strides, not self.target.software)
                walk = shape[axes], strides[axes]
            divisions = len(index_map("at", *walk).params)
            places[strides] = each * DIVISION_OPS * divisions
        operations += sum(places.values())
        for node in prologue.nodes:
            operations += self._operations(node) / max(prod(shape), 1)
        rates = self.profile.gpu
        extra = max(more, 0.0) + once
        return time_ns(round(count * operations), rates.ops_per_s) + time_ns(
            round(count * extra), rates.loads_per_s
        )

    def _operations(self, node: Node) -> int:
        op = definition(node)
        view: NodeView = SizedView(self.graph, node, self.sizes, self.target)
        if op is None or op.flops is None:
            return self.sizes.count(node.outputs[0])
        found = op.flops(view)
        return found if isinstance(found, int) else self.sizes.count(node.outputs[0])


def _share(shape: tuple[int, ...], source: tuple[int, ...]) -> float:
    """Loads of a broadcast operand for an element: four neighbours share one, if it is theirs."""
    aligned = (1,) * (len(shape) - len(source)) + source
    inner = 1
    for size, own in zip(reversed(shape), reversed(aligned), strict=False):
        if own != 1:
            break
        inner *= size
    return 0.25 if inner % 4 == 0 or (inner == 1 and shape and shape[-1] % 4 == 0) else 1.0
