"""Planner: scheduled tasks to a `Plan`: groups lowered, buffers assigned.

A submit of the plan is what nothing on the host comes between. What would keep the GPU too long at
a time is cut when it is recorded (`runtime/recorder.py`, `runtime/programs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from engine import costs
from engine import schedule as tasks
from engine.checks import Check, merged
from engine.dims import Dim, Guard, at_least, evaluate, symbols_of
from engine.errors import PlanError, in_words
from engine.groups import Fusion, Group
from engine.ir import Graph, Node
from engine.lowering import Lowerer
from engine.memory import Lifetime, MemoryPlan, Slot, assign
from engine.partition import Partition
from engine.parts import Parts
from engine.plan import Append, Dispatch, Plan, Step, Variant, epochs, turns
from engine.shader import Kernel
from engine.sharing import NOTHING, sharing
from engine.target import Target
from engine.tuning import Tuning

Written = Callable[[Kernel], object]
"""Is told a kernel as soon as it is written."""


def view_roots(graph: Graph, is_view: Callable[[Node], bool]) -> Mapping[str, str]:
    """For each view's output, the value whose buffer it shares in the end."""
    roots: dict[str, str] = {}
    for node in graph.nodes:
        if is_view(node):
            source = node.inputs[0]
            roots[node.outputs[0]] = roots.get(source, source)
    return roots


def _lowered(lowerer: Lowerer, group: Group) -> list[Dispatch]:
    with in_words(lambda: group.label):
        return lowerer.lower(group)


def _likely(dispatch: Dispatch, binding: Mapping[str, int]) -> Variant:
    """The variant that runs at sizes that are known as far as inputs decide them."""
    return next(v for v in dispatch.variants if all(_holds(g, binding) for g in v.when))


def _holds(guard: Guard, binding: Mapping[str, int]) -> bool:
    return symbols_of(guard.expr) <= binding.keys() and guard.accepts(evaluate(guard.expr, binding))


def build_plan(
    graph: Graph,
    target: Target,
    partition: Partition,
    fusion: Fusion,
    scheduled: Sequence[tasks.Task],
    *,
    roots: Mapping[str, str],
    parts: Parts,
    sizes: frozenset[str],
    guards: Sequence[Guard],
    checks: Sequence[Check],
    symbols: Sequence[str],
    binding: Mapping[str, int],
    profile: costs.DeviceProfile,
    appends: Mapping[str, Append],
    checked_inputs: Sequence[str],
    tuning: Tuning,
    written: Written,
) -> Plan:
    """Lowers the scheduled groups, renders their kernels and assigns buffers.

    `written` is told each kernel that a call with the sizes of `binding` runs, once it is there.

    Raises: PlanError if a lowering breaks the contract of `KernelCall`; ShaderError for templates.
    """
    lowerer = Lowerer(
        graph,
        target,
        lambda n: roots.get(n, n),
        appends,
        tuning,
        binding,
        parts,
        sharing(graph, scheduled, parts, roots) if target.software else NOTHING,
    )
    fits = all(_holds(g, binding) for g in guards)
    steps = _steps(scheduled, lowerer, binding, written if fits else None)
    fixed = {n for n, v in graph.values.items() if v.constant is not None} | set(lowerer.derived)
    fixed |= set(lowerer.growing)
    lifetimes = _lifetimes(graph, steps, lowerer, fixed)
    memory = _assign_by_epoch(lifetimes, epochs(symbols, steps), binding)
    limits = _limits(steps, {v.name: v.nbytes for v in lifetimes}, target, parts)
    return Plan(
        graph=graph,
        target=target,
        symbols=(*symbols, *(a.capacity for a in appends.values())),
        guards=tuple(dict.fromkeys(guards)),
        checks=merged([*checks, *limits]),
        steps=steps,
        kernels=tuple(lowerer.rendered),
        roots=roots,
        parts=parts,
        storages=lowerer.storages,
        memory=memory,
        derived=lowerer.derived,
        sizes=sizes,
        scratch=lowerer.scratch,
        appends=appends,
        checked_inputs=tuple(checked_inputs),
        partition=partition,
        fusion=fusion,
        binding=dict(binding),
        profile=profile,
    )


def _steps(
    scheduled: Sequence[tasks.Task],
    lowerer: Lowerer,
    binding: Mapping[str, int],
    written: Written | None,
) -> tuple[Step, ...]:
    """Tasks as steps: groups lowered to dispatches, whose likely kernels `written` is told."""
    steps: list[Step] = []
    for task in scheduled:
        if isinstance(task, tasks.RunGpu):
            for dispatch in _lowered(lowerer, task.group):
                steps.append(dispatch)
                if written is not None:
                    written(lowerer.rendered[_likely(dispatch, binding).kernel])
        else:
            if isinstance(task, (tasks.Upload, tasks.Download)):
                lowerer.storage(task.value)
            steps.append(task)
    return tuple(steps)


def _limits(
    steps: Sequence[Step], nbytes: Mapping[str, Dim], target: Target, parts: Parts
) -> list[Check]:
    """That every buffer of a dispatch may be bound. For one that is bound to reach a part, the
    nodes stand that made it a part: without them a smaller one would do.
    """
    limit = target.max_storage_buffer_binding_size
    found = []
    for step in steps:
        if not isinstance(step, Dispatch):
            continue
        for name in sorted({name for v in step.variants for name in v.touches}):
            whole = parts.whole(name)
            if whole in nbytes:
                why = f"{whole!r} takes at most {limit / (1 << 20):.1f} MiB"
                nodes = parts.of[name].by if name in parts.of else step.nodes
                found.append(Check(at_least(limit, nbytes[whole], why), nodes))
    return found


def _assign_by_epoch(
    lifetimes: Sequence[Lifetime], epoch_of: Mapping[str, int], binding: Mapping[str, int]
) -> MemoryPlan:
    """Slots for all values; only those whose sizes are bound together share one.

    A slot that grows when sizes are bound in mid-run would lose what an earlier value still needs.
    """
    groups: dict[int, list[Lifetime]] = {}
    for lifetime in lifetimes:
        bound = max((epoch_of.get(s, 0) for s in symbols_of(lifetime.nbytes)), default=0)
        groups.setdefault(bound, []).append(lifetime)
    plans = [assign(group, binding) for _, group in sorted(groups.items())]
    slot_of: dict[str, int] = {}
    slots: list[Slot] = []
    for plan in plans:
        slot_of.update((name, index + len(slots)) for name, index in plan.slot_of.items())
        base = len(slots)
        slots += [replace(s, index=s.index + base) for s in plan.slots]
    return MemoryPlan(
        slot_of,
        tuple(slots),
        sum(p.peak_nbytes for p in plans),
        sum(p.no_reuse_nbytes for p in plans),
        assign(lifetimes, binding).lower_bound_nbytes,
    )


def _lifetimes(
    graph: Graph, steps: Sequence[Step], lowerer: Lowerer, fixed: set[str]
) -> list[Lifetime]:
    """When each value is in a buffer: from its first step to its last.

    What one of the steps that take turns reads or writes has to last through all turns.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for run in turns(steps, lowerer.rendered):
        for name in (name for index in run for name in _touched(steps[index])):
            if name not in fixed:
                first.setdefault(name, run[0])
                last[name] = run[-1]
    lifetimes = []
    for name, start in first.items():
        tensor = lowerer.scratch.get(name) or graph.tensor(name)
        if tensor is None or tensor.shape is None:
            raise PlanError(f"value {name!r} has no known shape")
        nbytes = lowerer.storage(name).nbytes(tensor.shape)
        lifetimes.append(Lifetime(name, start, last[name], nbytes))
    return lifetimes


def _touched(step: Step) -> set[str]:
    if isinstance(step, Dispatch):
        return {name for v in step.variants for name in v.values}
    if isinstance(step, (tasks.Upload, tasks.Download)):
        return {step.value}
    return set()
