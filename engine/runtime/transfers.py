"""Transfers: buffers that the host maps to read or write values.

Where the GPU shares memory with the CPU (`Target.mappable`), a value is read and written in the
buffer that kernels use. Elsewhere it is read through a staging buffer of its own, which is kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import wgpu

from engine import schedule as tasks
from engine.ir import Array
from engine.plan import Dispatch, Plan, Step
from engine.runtime.device import READBACK, Device

MIN_WRITE_NBYTES = 1 << 17
"""Smaller values cost more to map than to copy."""


class Transfers:
    """The buffers of one plan that are mapped.

    Args:
        plan: whose downloads and uploads.
        device: where they are.

    Attributes:
        read, written: values that are read, and written, in their slots.
        usage: what slots are made for beyond `STORAGE`, by index.
    """

    def __init__(self, plan: Plan, device: Device | None) -> None:
        self.device = device
        mappable = device is not None and device.target.mappable
        self.read = _readable(plan) if mappable else frozenset()
        self.written = _writable(plan) if mappable else frozenset()
        self.usage: dict[int, int] = {}
        for names, flag in (
            (self.read, wgpu.BufferUsage.MAP_READ),
            (self.written, wgpu.BufferUsage.MAP_WRITE),
        ):
            for name in names:
                slot = plan.memory.slot_of[name]
                self.usage[slot] = self.usage.get(slot, 0) | flag
        self._staging: dict[str, Any] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the staging buffers."""
        return sum(int(b.size) for b in self._staging.values())

    def staging(self, device: Device, name: str, nbytes: int) -> Any:
        """The staging buffer of a value, large enough."""
        found = self._staging.get(name)
        if found is None or found.size < nbytes:
            found = self._staging[name] = device.buffer(f"read {name}", nbytes, READBACK)
        return found

    def write(self, device: Device, name: str, buffer: Any, words: Array, own: bool) -> None:
        """Puts words into the buffer of a value; `own`: it is the value's slot."""
        if not own or name not in self.written or words.nbytes < MIN_WRITE_NBYTES:
            device.write(buffer, words)
            return
        data = np.ascontiguousarray(words).reshape(-1).view(np.uint8)
        with device.mapped(buffer, data.nbytes, f"writing {name!r}", write=True) as memory:
            memory[:] = data


def _readable(plan: Plan) -> frozenset[str]:
    """Values whose slots keep them from the download until it is waited for."""
    found: set[str] = set()
    waiting: dict[str, int] = {}
    for step in plan.steps:
        written = _slots_written(plan, step)
        waiting = {name: slot for name, slot in waiting.items() if slot not in written}
        if isinstance(step, tasks.Download) and step.value in plan.memory.slot_of:
            waiting[step.value] = plan.memory.slot_of[step.value]
        elif isinstance(step, tasks.Wait):
            found.update(name for name in step.values if name in waiting)
    return frozenset(found)


def _writable(plan: Plan) -> frozenset[str]:
    """Inputs that are uploaded before anything is submitted: no kernel is still at their slots."""
    found: set[str] = set()
    for step in plan.steps:
        if isinstance(step, tasks.Submit):
            break
        if isinstance(step, tasks.Upload) and step.value in plan.memory.slot_of:
            found.add(step.value)
    return frozenset(found & set(plan.graph.inputs))


def _slots_written(plan: Plan, step: Step) -> set[int]:
    slot_of = plan.memory.slot_of
    if isinstance(step, tasks.Upload):
        names = {step.value}
    elif isinstance(step, Dispatch):
        names = {
            name
            for variant in step.variants
            for tensor, name in zip(
                plan.kernels[variant.kernel].tensors, variant.values, strict=True
            )
            if tensor.writable
        }
    else:
        return set()
    return {slot_of[name] for name in names if name in slot_of}
