"""Conditions that sizes must fulfil, and the nodes to blame where they do not.

A guard on sizes that the inputs decide picks the plan before it runs. All others are checks: they
are evaluated when their sizes are bound, and a broken one sends its nodes to the CPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod

from engine.dims import Guard, Table, equal, symbols_of
from engine.errors import PlanError
from engine.ir import Graph, Node
from engine.ops import Support
from engine.records import dataclass
from engine.shader import Kernel
from engine.target import Target


class LimitError(PlanError):
    """A device limit would be broken; `nodes` are the keys of those that must leave the GPU."""

    def __init__(self, message: str, nodes: tuple[str, ...]) -> None:
        super().__init__(message)
        self.nodes = nodes


@dataclass(frozen=True)
class Check:
    """A guard, and the keys of the nodes that can only be on the GPU if it holds."""

    guard: Guard
    nodes: tuple[str, ...]


class GuardTable:
    """Guards that are evaluated together."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self.guards = tuple(guards)
        self._table = Table([g.expr for g in self.guards])

    def broken(self, binding: Mapping[str, int]) -> list[Guard]:
        """Those that do not hold. Raises: KeyError for an unbound symbol."""
        values = self._table.evaluate(binding)
        return [g for g, v in zip(self.guards, values, strict=True) if not g.accepts(v)]


def misfit(kernel: Kernel, target: Target) -> str:
    """Why a kernel cannot run on a target whatever the sizes, or ""."""
    most = target.max_storage_buffers_per_shader_stage
    if len(kernel.tensors) > most:
        return f"its kernel binds {len(kernel.tensors)} storage buffers, and {most} are allowed"
    most = target.max_compute_workgroup_storage_size
    if kernel.workgroup_nbytes > most:
        return f"its kernel needs {kernel.workgroup_nbytes} bytes of workgroup memory of {most}"
    most = target.max_compute_invocations_per_workgroup
    sides = (
        target.max_compute_workgroup_size_x,
        target.max_compute_workgroup_size_y,
        target.max_compute_workgroup_size_z,
    )
    size = kernel.workgroup
    if prod(size) > most or any(a > b for a, b in zip(size, sides, strict=True)):
        return f"its kernel has workgroups of {size} invocations, and {most} are allowed"
    lacking = sorted(kernel.features - target.features)
    if lacking:
        return f"its kernel needs {', '.join(lacking)}, which the device lacks"
    return ""


def late_checks(
    nodes: Iterable[Node],
    support: Mapping[str, Support],
    symbols: Collection[str],
    bound: Collection[str],
) -> list[Check]:
    """The guards of nodes that the GPU runs on sizes that are bound in mid-run, with the nodes.

    symbols: those that are known before. bound: all that are ever known.
    """
    before, ever = frozenset(symbols), frozenset(bound)
    found = []
    for node in nodes:
        for guard in support[node.key].guards:
            if not symbols_of(guard.expr) <= before and symbols_of(guard.expr) <= ever:
                found.append(Check(guard, (node.key,)))
    return found


def view_checks(graph: Graph, views: Iterable[Node]) -> list[Check]:
    """That a view has as many elements as what it shows, or its node says what is wrong."""
    found = []
    for node in views:
        source, result = graph.tensor(node.inputs[0]), graph.tensor(node.outputs[0])
        if source is not None and result is not None:
            if source.size is not None and result.size is not None:
                why = f"{result} has the elements of {source}"
                found.append(Check(equal(result.size, source.size, why), (node.key,)))
    return found


def merged(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Each open condition once, with all its nodes."""
    guards: dict[tuple[str, object], Guard] = {}
    nodes: dict[tuple[str, object], dict[str, None]] = {}
    for check in checks:
        if check.guard.known is not True:
            key = (check.guard.kind, check.guard.expr)
            guards.setdefault(key, check.guard)
            nodes.setdefault(key, {}).update(dict.fromkeys(check.nodes))
    return tuple(Check(guard, tuple(nodes[key])) for key, guard in guards.items())
