"""Nodes on the host: what a call needs to know of one, worked out once per plan."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import schedule as tasks
from engine.errors import EngineError
from engine.ir import Array, Node, is_control_flow
from engine.plan import Plan
from engine.runtime.interrupts import is_interrupt

if TYPE_CHECKING:
    from cpu_fallback import registry

MIN_SPARE_NBYTES = 4096
"""Below, a new array costs no more than finding out whether an old one is free."""


def numpy_threads(count: int) -> AbstractContextManager[object]:
    """What surrounds the `count` nodes of a plan on the host: our threads help them, if any do.

    OpenBLAS's wait for each other by spinning. Where a software GPU or another program wants the
    cores too, its products take 4 to 20 times as long as with one thread.
    """
    if not count:
        return nullcontext()
    from cpu_fallback import memory

    memory.keep()
    return blas_of_one()


def blas_of_one() -> AbstractContextManager[object]:
    """OpenBLAS uses one thread, and long work is shared among ours; see `cpu_fallback.threads`."""
    from cpu_fallback import threads

    return threads.alone


class HostNode:
    """One node that runs on the host, made once per plan.

    Args:
        plan: its plan.
        node: the node.
        drops: roots of the values that nothing reads after it.

    Attributes:
        key: that of the node.
        constants: its inputs in order; None where a call gives them, and for omitted ones.
        reads: position and name of those that a call gives.
        outputs: position and name of each output that is used.
        spares: positions of inputs whose memory nothing needs after it.
        control_flow: whether bodies do the work.
    """

    def __init__(self, plan: Plan, node: Node, drops: tuple[str, ...] = ()) -> None:
        self.node, self.key, self.drops = node, node.key, drops
        self.constants: list[Any] = [plan.graph.constant(n) if n else None for n in node.inputs]
        self.reads = tuple(
            (i, n) for i, n in enumerate(node.inputs) if n and self.constants[i] is None
        )
        self.outputs = tuple((i, n) for i, n in enumerate(node.outputs) if n)
        self.spares = tuple(i for i, n in self.reads if plan.root(n) in drops)
        self.control_flow = is_control_flow(node)
        self._call: registry.PreparedNode | None = None

    @property
    def call(self) -> registry.PreparedNode:
        """The operator, looked up when it is first needed. Raises: as `registry.run`."""
        if self._call is None:
            from cpu_fallback import registry

            node = self.node
            constants = [i for i, array in enumerate(self.constants) if array is not None]
            self._call = registry.prepare(
                node.op_type,
                node.domain,
                node.since_version,
                node.attrs,
                len(node.outputs),
                constants,
            )
            if not self._call.takes_spare:
                self.spares = ()
        return self._call

    def given(self, host: Mapping[str, Any], read: Callable[[str], Any]) -> list[Any]:
        """The inputs: constants, values of `host`, or what `read` says of a name."""
        inputs = self.constants.copy()
        for index, name in self.reads:
            inputs[index] = host[name] if name in host else read(name)
        return inputs

    def run(self, host: dict[str, Any], read: Callable[[str], Any]) -> None:
        """Computes the outputs into `host`, and drops from it what nothing reads any more.

        Raises: EngineError if the operator fails.
        """
        # no other name for an input: it would count as one who holds its memory
        inputs = self.constants.copy()
        for index, name in self.reads:
            inputs[index] = host[name] if name in host else read(name)
        for name in self.drops:
            host.pop(name, None)
        try:
            call = self._call or self.call
            spare = self._spare(inputs) if self.spares else None
            outputs = call(inputs) if spare is None else call(inputs, inputs[spare])
        except EngineError:
            raise
        except Exception as error:
            if is_interrupt(error):
                raise
            raise self.failure(inputs, error) from error
        for index, name in self.outputs:
            host[name] = outputs[index]

    def _spare(self, inputs: list[Any]) -> int | None:
        """Position of an input whose memory nobody else holds."""
        for index in self.spares:
            if is_unshared(inputs, index):
                return index
        return None

    def failure(self, inputs: Sequence[Any], error: Exception) -> EngineError:
        """What to raise where the operator raised `error`."""
        shapes = ", ".join(described(i) for i in inputs)
        node = self.node
        return EngineError(
            f"{node.op_type} {node.name or node.key!r} failed on ({shapes}): {error}"
        )


def described(value: Any) -> str:
    """Type and shape of a value, for people."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    array = np.asarray(value)
    return f"{array.dtype}{list(array.shape)}"


def last_reads(plan: Plan) -> dict[int, tuple[str, ...]]:
    """For each step, the roots of values on the host that nothing reads after it."""
    last: dict[str, int] = {}
    for index, step in enumerate(plan.steps):
        if isinstance(step, tasks.RunCpu):
            last.update((plan.root(name), index) for name in step.node.reads)
        elif isinstance(step, tasks.Upload):
            last[step.value] = index
        elif isinstance(step, tasks.Bind):
            last.update((value, index) for _, value, _ in step.symbols)
    for name in plan.graph.outputs:
        last.pop(plan.root(name), None)
    dropped: dict[int, tuple[str, ...]] = {}
    for name, index in last.items():
        dropped[index] = (*dropped.get(index, ()), name)
    return dropped


def _holders(items: Sequence[Any], index: int) -> int:
    return sys.getrefcount(items[index])


def _base_holders(array: Array) -> int:
    return sys.getrefcount(array.base)


_ONE_HOLDER = _holders([np.empty(1)], 0)
_ONE_BASE_HOLDER = _base_holders(np.empty(2)[1:])


def is_unshared(items: Sequence[Any], index: int) -> bool:
    """Whether nothing but `items` refers to the memory of the array `items[index]`."""
    array = items[index]
    if not isinstance(array, np.ndarray) or array.nbytes < MIN_SPARE_NBYTES:
        return False
    base, writeable = array.base, array.flags.writeable
    if not writeable or not (base is None or isinstance(base, np.ndarray)):
        return False
    if base is not None and not (base.flags.owndata and base.base is None):
        return False
    owns = array.flags.owndata
    del base
    if not owns and (array.base is None or _base_holders(array) != _ONE_BASE_HOLDER):
        return False
    del array
    return _holders(items, index) == _ONE_HOLDER
