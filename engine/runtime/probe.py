"""Probe: shows values of a call while it runs as planned: what kernels and nodes read and wrote.

The plan stays as it is: nothing is fused otherwise, and buffers are reused as ever. Around each
group of nodes what was recorded is submitted and waited for, and values are copied from where they
lie, so that no more than those of one group are held at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from engine.ir import Node
from engine.plan import Plan
from engine.records import dataclass


@dataclass(frozen=True)
class Observed:
    """A group of nodes that just ran.

    Attributes:
        plan: the plan that it is part of; that of a body inside control flow.
        path: keys of the control flow nodes around it, outermost first.
        nodes: of the plan's graph; on the GPU those of one kernel, else a single one.
        dispatches: (index in `Plan.dispatches`, variant that ran) on the GPU; empty for NumPy.
        inputs: what was read, as it lay in its buffer or array just before, without constants and
            what kernels do not read. Empty unless the probe asks for inputs.
        read: gives a value that was written, by name, while the probe is being told.
        binding: the sizes bound so far.
        in_place: it is a node on the GPU that no kernel ran for (`engine.parts`).
    """

    plan: Plan
    path: tuple[str, ...]
    nodes: tuple[Node, ...]
    dispatches: tuple[tuple[int, int], ...]
    inputs: Mapping[str, Any]
    read: Callable[[str], Any]
    binding: Mapping[str, int]
    in_place: bool = False

    @property
    def on_gpu(self) -> bool:
        return bool(self.dispatches) or self.in_place

    @property
    def writes(self) -> tuple[str, ...]:
        """The values that can be read: on the GPU, those that other groups need."""
        if self.in_place:
            kept, parts = self.plan.memory.slot_of, self.plan.parts
            return tuple(n for n in self.nodes[0].writes if parts.whole(self.plan.root(n)) in kept)
        if not self.dispatches:
            return self.nodes[0].writes
        written = {n for i, _ in self.dispatches for n in self.plan.dispatches[i].outputs}
        return tuple(n for node in self.nodes for n in node.writes if n in written)


@dataclass
class Probe:
    """Is told of every group of nodes that a call runs, those of bodies too.

    Attributes:
        visit: what is told. What it raises ends the call.
        inputs: whether inputs are read as well.
    """

    visit: Callable[[Observed], None]
    inputs: bool = True
    path: tuple[str, ...] = field(default=(), init=False)

    @contextmanager
    def inside(self, key: str) -> Iterator[None]:
        """What happens in the block happens in the bodies of a control flow node."""
        before, self.path = self.path, (*self.path, key)
        try:
            yield
        finally:
            self.path = before
