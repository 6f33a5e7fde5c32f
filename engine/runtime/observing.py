"""Observing: runs a batch of the GPU for a `Probe`, which sees the values around each kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from engine.dims import evaluate
from engine.ir import Array, Node
from engine.ops import kernel_inputs
from engine.records import dataclass
from engine.runtime.context import ExecutionContext
from engine.runtime.device import READBACK
from engine.runtime.probe import Observed, Probe
from engine.runtime.programs import Program

if TYPE_CHECKING:
    from engine.runtime.recorder import Recorder


def observe(recorder: Recorder, context: ExecutionContext, probe: Probe, program: Program) -> None:
    """Runs a batch group by group, and shows the values of each before and after."""
    observer = _Observer(recorder, context, probe)
    plan, calls = recorder.plan, recorder.required().calls
    groups = {tuple(n.key for n in g.nodes): g for g in plan.fusion.groups}
    for nodes, members in groupby(program.commands, lambda c: plan.dispatches[c.index].nodes):
        commands, group = tuple(members), groups[nodes]
        observer.show_in_place(group.inputs)
        inputs = observer.inputs(group.inputs)
        for timed in commands:
            recorder.make_room(context, timed.predicted_ns)
            recorder.open(context)
            calls.record(context.encoder, [timed.command])
        ran = dict.fromkeys((c.index, context.chosen[c.index].variant) for c in commands)
        observer.show(group.nodes, inputs, tuple(ran))


@dataclass(frozen=True)
class _Observer:
    """Reads the values of a call, and tells its probe."""

    recorder: Recorder
    context: ExecutionContext
    probe: Probe

    def show(
        self,
        nodes: tuple[Node, ...],
        inputs: dict[str, Array],
        ran: tuple[tuple[int, int], ...] = (),
        in_place: bool = False,
    ) -> None:
        """Shows nodes that ran as the dispatches `ran`."""
        plan, path, binding = self.recorder.plan, self.probe.path, self.context.binding
        read = partial(peek, self.recorder, self.context)
        self.probe.visit(Observed(plan, path, nodes, ran, inputs, read, binding, in_place))

    def show_in_place(self, names: Sequence[str]) -> None:
        """Shows what was joined or cut in place, each before it is read first."""
        plan, seen = self.recorder.plan, self.context.seen
        for name in map(plan.root, names):
            node = plan.graph.producer.get(name)
            if node is None or plan.parts.copied.get(node.key) != () or name in seen:
                continue
            seen.update(node.writes)
            self.show((node,), self.inputs(kernel_inputs(node)), in_place=True)

    def inputs(self, names: Sequence[str]) -> dict[str, Array]:
        """Those of the values that are in buffers, if the probe asks for inputs."""
        if not self.probe.inputs:
            return {}
        return {n: peek(self.recorder, self.context, n) for n in names if self._lies(n)}

    def _lies(self, name: str) -> bool:
        """Whether a value is in a buffer, and no constant."""
        plan = self.recorder.plan
        whole = plan.parts.whole(plan.root(name))
        return whole in plan.memory.slot_of or whole in self.context.external


def peek(recorder: Recorder, context: ExecutionContext, name: str) -> Array:
    """A value as it lies in its buffer after all that was recorded so far."""
    plan, device = recorder.plan, recorder.required()
    dtype, root = plan.tensor(name).dtype, plan.root(name)
    shape = tuple(evaluate(d, context.binding) for d in plan.shape(name))
    if 0 in shape:
        return np.empty(shape, dtype.numpy)
    part = plan.parts.of.get(root)
    if part is not None:
        whole = peek(recorder, context, part.whole).reshape(-1)
        return whole[part.place.indices(int(np.prod(shape)), context.binding)].reshape(shape)
    storage = plan.storages[root]
    if storage.growing:
        storage = replace(storage, capacity=evaluate(storage.capacity, context.binding))
    recorder.open(context)
    nbytes = int(storage.nbytes(shape))  # type: ignore[arg-type]
    staging = device.buffer(f"peek {name}", nbytes, READBACK)
    context.encoder.copy_buffer_to_buffer(recorder.buffer(context, root), 0, staging, 0, nbytes)
    recorder.submit(context)
    with device.guarded(f"reading {name!r}"):
        staging.map_sync("READ")
        found = storage.from_device(staging.read_mapped(0, nbytes), dtype, shape)
        staging.unmap()
    staging.destroy()
    return found
