"""Nodes on the host: what a call needs to know of one, worked out once per plan."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.ir import Array, Node
from engine.plan import Plan
from engine.runtime.control import is_driven

if TYPE_CHECKING:
    from cpu_fallback import registry

MIN_SPARE_NBYTES = 4096
"""Below, a new array costs no more than finding out whether an old one is free."""


def blas_of_one() -> AbstractContextManager[object]:
    """What surrounds nodes on the host; see `cpu_fallback.threads`."""
    from cpu_fallback import threads

    return threads.alone


class HostNode:
    """One node that runs on the host, made once per plan.

    Attributes:
        node: the node. key: its key.
        inputs: name and, if it is one, constant array of each input; omitted ones have neither.
        outputs: position and name of each output that is used.
        frees: roots of the values that it reads, as often as it reads them.
        control_flow: whether bodies do the work.
    """

    def __init__(self, plan: Plan, node: Node) -> None:
        self.node, self.key = node, node.key
        self.inputs: tuple[tuple[str, Array | None], ...] = tuple(
            (n, plan.graph.constant(n) if n else None) for n in node.inputs
        )
        self.outputs = tuple((i, n) for i, n in enumerate(node.outputs) if n)
        self.frees = tuple(plan.root(n) for n in node.reads)
        self.control_flow = is_driven(node)
        self._call: registry.Prepared | None = None

    @property
    def call(self) -> registry.Prepared:
        """The operator, looked up when it is first needed. Raises: as `registry.run`."""
        if self._call is None:
            from cpu_fallback import registry

            node = self.node
            constants = [i for i, (_, array) in enumerate(self.inputs) if array is not None]
            self._call = registry.prepare(
                node.op_type,
                node.domain,
                node.since_version,
                node.attrs,
                len(node.outputs),
                constants,
            )
        return self._call

    def compute(self, inputs: list[Any], uses: Mapping[str, int]) -> list[Any]:
        """The outputs. `uses`: how often values are read after this node."""
        call = self._call or self.call
        if not call.takes_spare:
            return call(inputs)
        for index, (name, constant) in enumerate(self.inputs):
            if constant is None and name and not uses.get(name, 1) and alone(inputs, index):
                return call(inputs, inputs[index])
        return call(inputs)


def _holders(items: Sequence[Any], index: int) -> int:
    return sys.getrefcount(items[index])


def _base_holders(array: Array) -> int:
    return sys.getrefcount(array.base)


_ONE_HOLDER = _holders([np.empty(1)], 0)
_ONE_BASE_HOLDER = _base_holders(np.empty(2)[1:])


def alone(items: Sequence[Any], index: int) -> bool:
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
